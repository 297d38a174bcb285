"""The fixed teachers of CoMatch against dense matrices and scikit-learn."""

import pytest
import torch
import torch.nn.functional as F

from comatch import propagation
from comatch.methods import CoMatch, self_training, teachers
from comatch.nets.frozen import GivenFeatures
from comatch.types import AllImages, Batch, Examples, Task

CLASSES, WIDTH = 3, 6


def images(n, seed):
    """Unit features around three points, in the order of their classes, and these classes."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % CLASSES
    v = torch.eye(CLASSES, WIDTH)[y] + 0.25 * torch.randn(n, WIDTH, generator=generator)
    return F.normalize(v, dim=1), y


def dense(v_x, y, v_u, k, alpha):
    """Label spreading by the inverse of a matrix, with one loop over the edges."""
    v = torch.cat([v_x, v_u]).double()
    similar = v @ v.T
    similar.fill_diagonal_(-2)
    edges = torch.zeros_like(similar)
    for i, row in enumerate(similar):
        for j in row.argsort(descending=True)[:k]:
            edges[i, j] += 1
            edges[j, i] += 1
    degree = edges.sum(1)
    w = edges / (degree[:, None] * degree[None]).sqrt()
    known = torch.zeros(len(v), CLASSES, dtype=torch.double)
    known[torch.arange(len(y)), y] = 1
    z = torch.linalg.inv(torch.eye(len(v)) - alpha * w) @ known
    return (z / z.sum(1, keepdim=True))[len(y) :]


def test_labels_spread_as_with_dense_matrices():
    (v_x, y), (v_u, _) = images(6, 0), images(40, 1)
    found = propagation.spread_labels(v_x, y, v_u, CLASSES, k=5, alpha=0.8)
    expected = dense(v_x, y, v_u, 5, 0.8)
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-4)


def test_images_outside_the_graph_take_the_mean_of_their_neighbours(monkeypatch):
    (v_x, y), (v_u, truth) = images(6, 0), images(90, 1)
    monkeypatch.setattr(propagation, "MOST_IN_GRAPH", 30)
    found = propagation.spread_labels(v_x, y, v_u, CLASSES, k=5, alpha=0.8)
    assert found.shape == (90, CLASSES)
    assert (found.argmax(1) == truth).float().mean() > 0.9


@pytest.mark.parametrize("unlabelled", [0, 1, 30])
def test_the_answer_is_the_product_of_both(unlabelled):
    (x, y), (u, _) = images(6, 0), images(unlabelled, 1)
    x, u = 3 * x, 3 * u  # label spreading sees unit features, self-training these
    views = torch.stack([x, x + 0.1, x - 0.1], 1)
    found = teachers.answer(x, y, u, views, CLASSES)
    assert found.shape == (unlabelled, CLASSES)
    if unlabelled:
        trained = self_training.fit(Examples(views, y, u), folds=3, threshold=0.75).predict_proba(u)
        spread = propagation.spread_labels(x / 3, y, u / 3, CLASSES, 15, 0.8)
        product = torch.ones(unlabelled, CLASSES)
        for p in (spread, torch.from_numpy(trained).float()):
            p = p / p.mean(0).sqrt()
            product = product * (p / p.sum(1, keepdim=True)).clamp(min=teachers.LEAST_SHARE)
        torch.testing.assert_close(
            found, product / product.sum(1, keepdim=True), rtol=1e-4, atol=1e-5
        )


def test_pseudo_labels_are_confident_where_the_teachers_agree():
    (v_x, y), (v_u, truth) = images(6, 0), images(30, 1)
    task = Task(CLASSES, unlabelled=30)

    def confident(**settings):
        torch.manual_seed(0)
        method = CoMatch(GivenFeatures(WIDTH), task, CoMatch.Config(threshold=0.6, **settings))
        method.before_step(0, AllImages([v_x], y, [v_u]))
        again = CoMatch(GivenFeatures(WIDTH), task, CoMatch.Config(threshold=0.6, **settings))
        again.load_state_dict(method.state_dict())  # a resumed run has the answers
        again.before_step(1, AllImages([], y, []))
        return again(Batch(v_x, y, (v_u, v_u, v_u), torch.arange(30))).pseudo_labels

    taught = confident(teachers=4.0)
    assert (taught >= 0).sum() > (confident(teachers=0.5) >= 0).sum()
    assert (taught == truth)[taught >= 0].float().mean() > 0.9


def test_only_with_teachers_all_images_are_needed():
    for exponent in (0.0, 1.0):
        method = CoMatch(GivenFeatures(4), Task(2, unlabelled=3), CoMatch.Config(teachers=exponent))
        assert method.needs_all_images() == (exponent > 0)
