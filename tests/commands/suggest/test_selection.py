"""Which pictures are chosen, on groups of points whose structure is known."""

import numpy as np
import pytest

from comatch.commands.suggest import learner, selection


@pytest.fixture
def blobs():
    """Six groups of 30 points each in eight dimensions, and which group each belongs to."""
    random = np.random.default_rng(0)
    centres = 10 * np.eye(8)[:6]
    points = np.concatenate([centre + random.normal(0, 0.6, (30, 8)) for centre in centres])
    return points.astype(np.float32), np.repeat(np.arange(6), 30)


def test_typical_pictures_cover_all_groups(blobs):
    points, group = blobs
    chosen = selection.typical(points, 6)
    assert sorted(group[chosen]) == list(range(6))
    for row in chosen:  # in the middle of their groups
        here = points[group == group[row]]
        middle = np.linalg.norm(here - here.mean(0), axis=1)
        assert np.linalg.norm(points[row] - here.mean(0)) <= np.median(middle)


def test_groups_without_a_label_come_first(blobs):
    points, group = blobs
    taken = [0, 1, 30, 31, 60]  # of the first three groups
    chosen = selection.typical(points, 3, taken)
    assert sorted(group[chosen]) == [3, 4, 5]


@pytest.mark.parametrize("number", [1, 7, 179, 180, 500])
def test_no_picture_is_chosen_twice(blobs, number):
    points, _ = blobs
    taken = [5, 50]
    chosen = selection.typical(points, number, taken)
    assert len(chosen) == min(number, 178)
    assert len({*chosen, *taken}) == len(chosen) + 2


def test_few_pictures():
    points = np.zeros((3, 4), np.float32)  # the same three times
    assert sorted(selection.typical(points, 5)) == [0, 1, 2]
    assert selection.typical(points[:1], 5) == [0]
    assert selection.typical(points, 2, [0, 1, 2]) == []


def test_the_same_seed_chooses_the_same(blobs):
    points, _ = blobs
    assert selection.typical(points, 10, seed=3) == selection.typical(points, 10, seed=3)


def test_uncertain_pictures_are_diverse(blobs):
    points, group = blobs
    random = np.random.default_rng(1)
    probabilities = random.dirichlet([5.0] * 6, len(points))
    chosen = selection.uncertain(points, probabilities, np.full(180, -1), 6, taken=[0])
    assert sorted(group[chosen]) == list(range(6))
    margin = np.diff(np.sort(probabilities, 1)[:, -2:], axis=1)[:, 0]
    assert margin[chosen].mean() < np.median(margin)
    assert 0 not in chosen


def test_classes_with_few_labels_come_first(blobs):
    points, group = blobs
    labels = np.full(180, -1)
    labels[[0, 1, 2, 30, 31, 60, 61, 90, 91, 120, 121, 150]] = [0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5]
    probabilities = learner.predict(points, labels, 6)
    taken = np.flatnonzero(labels >= 0).tolist()
    chosen = selection.uncertain(points, probabilities, labels, 6, taken)
    assert group[chosen[0]] == 5
    assert group[chosen[-1]] == 0


def test_groups_are_counted(blobs):
    points, group = blobs
    found = selection.groups(points)
    assert found.max() + 1 == 6
    assert len(set(zip(found.tolist(), group.tolist(), strict=True))) == 6


def test_prediction_of_labels(blobs):
    points, group = blobs
    labels = np.full(180, -1)
    labels[::15] = group[::15]
    assert (learner.predict(points, labels, 6).argmax(1) == group).all()
    one = np.full(180, -1)
    one[:3] = 4
    assert (learner.predict(points, one, 6).argmax(1) == 4).all()


def test_cross_validation_finds_the_wrong_label(blobs):
    points, group = blobs
    labels = np.full(180, -1)
    labels[::5] = group[::5]
    labels[10] = 3  # is 0
    checked = learner.cross_validate(points, labels)
    assert checked.right == 35
    assert len(checked.rows) == 36
    assert learner.contradicted(checked, labels) == [10]


def test_labels_without_structure_have_the_accuracy_of_guessing():
    """An estimate that had seen its labels would be near 100 %."""
    random = np.random.default_rng(0)
    points = random.normal(size=(200, 150))
    labels = random.integers(0, 2, 200)
    checked = learner.cross_validate(points, labels)
    assert 70 <= checked.right <= 130


@pytest.mark.parametrize("labels", [[0, 0, 0, 1, 1, 1], [0] * 20, list(range(20))])
def test_too_few_labels_have_no_estimate(labels):
    points = np.random.default_rng(0).normal(size=(len(labels), 4))
    assert learner.cross_validate(points, np.array(labels)) is None
