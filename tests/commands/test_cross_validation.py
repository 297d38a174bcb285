"""Each label is asked once, of a classifier that did not know it."""

import csv
import json
import shutil

import pytest
import torch

import comatch
from comatch import api
from comatch.errors import UserError
from comatch.evaluation import temperature
from comatch.training.loop import Interrupted
from helpers import TINY, TINY_WORDS


@pytest.fixture
def train(images, monkeypatch):
    """A run on the folder `images`, whose test part may be taken away."""
    monkeypatch.chdir(images.parent)

    def run(**settings):
        return comatch.train(
            images,
            out="run",
            steps=2,
            device="cpu",
            progress=False,
            settings={**TINY, "mu": 1, **settings},
        ).path

    return run


def validate(run, **more):
    return comatch.cross_validate(run, folds=3, device="cpu", progress=False, **more)


def written(path):
    return json.loads(path.read_text())


def test_each_label_is_asked_once_of_one_who_does_not_know_it(train, images):
    run = train()
    checked = validate(run)
    labelled = written(run / "split.json")["labelled"]
    assert {one.path: one.label for one in checked.asked} == labelled
    assert len(checked.asked) == len(labelled) == checked.scores.images

    guesses = {one.path: (one.guess, one.probability) for one in checked.asked}
    for part in (1, 2, 3):
        fold = run / "folds" / f"{part}-of-3"
        split = written(fold / "split.json")
        assert split["labelled"].keys() | split["validation"].keys() == labelled.keys()
        assert not split["labelled"].keys() & split["validation"].keys()
        assert "top1" not in written(fold / "summary.json")  # nobody looked at the test part
        names = list(split["validation"])
        said = comatch.load(fold, "cpu").predict([images / name for name in names])
        for name, label, p in zip(names, said.labels, said.probabilities, strict=True):
            assert guesses[name] == (label, pytest.approx(p.max().item(), abs=1e-6))
    right = [one for one in checked.asked if one.guess == one.label]
    assert checked.scores.top1 == pytest.approx(len(right) / len(labelled))


def test_the_run_is_less_sure_afterwards_if_it_was_too_sure(cli, train, images, monkeypatch):
    run, fitted = train(), []
    paths = sorted((images / "unlabeled").iterdir())
    before = comatch.load(run, "cpu").predict(paths)

    def fit(p, labels):
        fitted.append((p.amax(1), labels))
        return 2.5

    monkeypatch.setattr(temperature, "fit", fit)
    checked = validate(run)
    assert written(run / "model.json")["temperature"] == checked.temperature == 2.5
    after = comatch.load(run, "cpu").predict(paths)
    assert after.labels == before.labels
    softer = temperature.soften(before.probabilities, 2.5)
    torch.testing.assert_close(after.probabilities, softer)

    ((sure, labels),) = fitted  # all of them at once, as they were said
    assert sorted(sure.tolist()) == sorted(one.probability for one in checked.asked)
    assert labels.bincount().tolist() == [12, 12]
    _, out, _ = cli("evaluate", run, "--folds", 3, "--device", "cpu")
    assert "it was too sure" in out


def test_the_table_has_the_surest_mistakes_first(train):
    checked = validate(train())
    with checked.table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["path"] for row in rows] == [one.path for one in checked.asked]
    count = len(checked.mistakes)
    assert [row["guess"] == row["label"] for row in rows] == [False] * count + [True] * (
        len(rows) - count
    )
    sure = [float(row["probability"]) for row in rows]
    assert sure[:count] == sorted(sure[:count], reverse=True)


def test_finished_folds_are_not_trained_again_and_a_stopped_one_goes_on(train, monkeypatch):
    run, learned, learn = train(), [], api.learn

    def note(folder, *others):
        learned.append(folder.path.name)
        if learned == ["1-of-3", "2-of-3"]:
            raise Interrupted(1, folder.path)
        return learn(folder, *others)

    monkeypatch.setattr(api, "learn", note)
    with pytest.raises(Interrupted):
        validate(run)
    first = validate(run)
    assert learned == ["1-of-3", "2-of-3", "2-of-3", "3-of-3"]
    assert validate(run) == first
    assert len(learned) == 4


def test_streamed_images_are_asked_too(train, images):
    run = train(stream="yes", workers=1)
    whole = validate(run)
    asked = {one.path: one for one in whole.asked}
    assert len(asked) == whole.scores.images == 24
    lost = whole.asked[0].path
    content = (images / lost).read_bytes()
    (images / lost).write_bytes(content[:60].ljust(len(content), b"\0"))  # as long as before
    rest = validate(run)
    assert {one.path: one for one in rest.asked} == {
        name: one for name, one in asked.items() if name != lost
    }


@pytest.mark.parametrize(
    ("settings", "folds", "says"),
    [
        ({}, 1, "folds=1: must be at least 2"),
        ({}, 25, "24 labels are too few for 25 parts"),
        ({"validation": 4}, 3, "held images back already"),
        ({"fold": "1/4"}, 3, "held images back already"),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_trained(train, settings, folds, says):
    run = train(**settings)
    with pytest.raises(UserError, match=says):
        comatch.cross_validate(run, folds=folds, device="cpu", progress=False)
    assert not (run / "folds").exists()


def test_a_run_that_has_not_finished_is_not_asked(train):
    run = train()
    (run / "summary.json").unlink()
    with pytest.raises(UserError, match="has not finished"):
        validate(run)


def test_images_that_changed_are_noticed(train, images):
    run = train()
    shutil.copy(images / "lying/0.png", images / "standing/another.png")
    (images / "lying/0.png").unlink()
    with pytest.raises(UserError, match="the data changed"):
        validate(run)


def test_the_command_line_says_it(cli, train, images):
    shutil.rmtree(images / "test")
    run = train()
    code, _, err = cli("evaluate", run)
    assert code == 2
    assert "--folds 4" in err
    code, out, err = cli("evaluate", run, "--folds", 2, "--device", "cpu")
    assert code == 0, err
    for words in ("top-1 accuracy", "19 times out of 20", "run/folds/2.csv"):
        assert words in out
    assert "fold 2/2" in err
    mistakes = comatch.cross_validate(run, folds=2, device="cpu", progress=False).mistakes
    assert ("Contradicted labels" in out) == bool(mistakes)
    for one in mistakes[:10]:
        assert one.path in out


def test_whoever_has_no_test_part_is_told_how_to_ask(cli, images):
    words = [*TINY_WORDS, "--set", "mu=1"]
    _, out, _ = cli("train", images, "--steps", 1, *words, "--out", "one")
    assert "--folds" not in out
    shutil.rmtree(images / "test")
    _, out, _ = cli("train", images, "--steps", 1, *words, "--out", "other")
    assert "comatch evaluate other --folds 4" in out
