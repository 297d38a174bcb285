"""Cross-validation: each label is predicted once, by a classifier trained without it."""

import csv
import shutil

import pytest
import torch

import comatch
from comatch.commands import cross_validation
from comatch.errors import UserError
from comatch.evaluation import temperature
from comatch.training.loop import Interrupted
from helpers import TINY, TINY_WORDS, read_json

pytestmark = pytest.mark.slow


@pytest.fixture
def train(images, monkeypatch):
    """Trains a tiny run on the folder `images`."""
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


def validate(run):
    return comatch.cross_validate(run, folds=3, device="cpu", progress=False)


def test_each_label_is_predicted_by_a_classifier_trained_without_it(train, images):
    run = train()
    checked = validate(run)
    labelled = read_json(run / "split.json")["labelled"]
    assert {one.path: one.label for one in checked.checks} == labelled
    assert len(checked.checks) == len(labelled) == checked.scores.images

    predicted = {one.path: (one.predicted, one.probability) for one in checked.checks}
    for part in (1, 2, 3):
        fold = run / "folds" / f"{part}-of-3"
        split = read_json(fold / "split.json")
        assert split["labelled"].keys() | split["validation"].keys() == labelled.keys()
        assert not split["labelled"].keys() & split["validation"].keys()
        assert "top1" not in read_json(fold / "summary.json")  # the test part is not used
        names = list(split["validation"])
        result = comatch.load(fold, "cpu").predict([images / name for name in names])
        for name, label, p in zip(names, result.labels, result.probabilities, strict=True):
            assert predicted[name] == (label, pytest.approx(p.max().item(), abs=1e-6))
    right = [one for one in checked.checks if one.predicted == one.label]
    assert checked.scores.top1 == pytest.approx(len(right) / len(labelled))


def test_the_run_is_calibrated(cli, train, images, monkeypatch):
    run, fitted = train(), []
    paths = sorted((images / "unlabeled").iterdir())
    before = comatch.load(run, "cpu").predict(paths)

    def fit(p, labels):
        fitted.append((p.amax(1), labels))
        return 2.5

    monkeypatch.setattr(temperature, "fit", fit)
    checked = validate(run)
    assert read_json(run / "model.json")["temperature"] == checked.temperature == 2.5
    after = comatch.load(run, "cpu").predict(paths)
    assert after.labels == before.labels
    softer = temperature.soften(before.probabilities, 2.5)
    torch.testing.assert_close(after.probabilities, softer)

    ((confidence, labels),) = fitted  # all folds at once
    assert sorted(confidence.tolist()) == sorted(one.probability for one in checked.checks)
    assert labels.bincount().tolist() == [12, 12]
    _, out, _ = cli("evaluate", run, "--folds", 3, "--device", "cpu")
    assert "calibrated (temperature 2.50)" in out


def test_the_table_has_the_most_confident_mistakes_first(train):
    checked = validate(train())
    with checked.table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["path"] for row in rows] == [one.path for one in checked.checks]
    count = len(checked.mistakes)
    assert [row["predicted"] == row["label"] for row in rows] == [False] * count + [True] * (
        len(rows) - count
    )
    confidence = [float(row["probability"]) for row in rows]
    assert confidence[:count] == sorted(confidence[:count], reverse=True)


def test_finished_folds_are_kept_and_an_interrupted_one_is_resumed(train, monkeypatch):
    run, trained, fit = train(), [], cross_validation.fit

    def interrupted(folder, *args):
        trained.append(folder.path.name)
        if trained == ["1-of-3", "2-of-3"]:
            raise Interrupted(1, folder.path)
        return fit(folder, *args)

    monkeypatch.setattr(cross_validation, "fit", interrupted)
    with pytest.raises(Interrupted):
        validate(run)
    first = validate(run)
    assert trained == ["1-of-3", "2-of-3", "2-of-3", "3-of-3"]
    assert validate(run).checks == first.checks
    assert len(trained) == 4


def test_streamed_images_are_predicted_too(train, images):
    run = train(stream="yes", workers=1)
    whole = validate(run)
    checks = {one.path: one for one in whole.checks}
    assert len(checks) == whole.scores.images == 24
    lost = whole.checks[0].path
    content = (images / lost).read_bytes()
    (images / lost).write_bytes(content[:60].ljust(len(content), b"\0"))  # of the same length
    rest = validate(run)
    assert {one.path: one for one in rest.checks} == {
        name: one for name, one in checks.items() if name != lost
    }


@pytest.mark.parametrize(
    ("settings", "folds", "message"),
    [
        ({}, 1, "folds=1: must be at least 2"),
        ({}, 25, "24 labels are too few for 25 parts"),
        ({"validation": 4}, 3, "held images out already"),
        ({"fold": "1/4"}, 3, "held images out already"),
    ],
)
def test_mistakes_are_reported_before_the_first_fold(train, settings, folds, message):
    run = train(**settings)
    with pytest.raises(UserError, match=message):
        comatch.cross_validate(run, folds=folds, device="cpu", progress=False)
    assert not (run / "folds").exists()


def test_the_run_must_be_finished(train):
    run = train()
    (run / "summary.json").unlink()
    with pytest.raises(UserError, match="has not finished"):
        validate(run)


def test_changed_images_are_an_error(train, images):
    run = train()
    shutil.copy(images / "lying/0.png", images / "standing/another.png")
    (images / "lying/0.png").unlink()
    with pytest.raises(UserError, match="the data changed"):
        validate(run)


def test_the_command_prints_scores_and_mistakes(cli, train, images):
    shutil.rmtree(images / "test")
    run = train()
    code, _, err = cli("evaluate", run)
    assert code == 2
    assert "--folds 4" in err
    code, out, err = cli("evaluate", run, "--folds", 2, "--device", "cpu")
    assert code == 0, err
    for words in ("top-1 accuracy", "95 % confidence interval", "run/folds/2.csv"):
        assert words in out
    assert "fold 2/2" in err
    mistakes = comatch.cross_validate(run, folds=2, device="cpu", progress=False).mistakes
    assert ("Contradicted labels" in out) == bool(mistakes)
    for one in mistakes[:10]:
        assert one.path in out


def test_train_suggests_cross_validation_without_a_test_part(cli, images):
    words = [*TINY_WORDS, "--set", "mu=1"]
    _, out, _ = cli("train", images, "--steps", 1, *words, "--out", "one")
    assert "--folds" not in out
    shutil.rmtree(images / "test")
    _, out, _ = cli("train", images, "--steps", 1, *words, "--out", "other")
    assert "comatch evaluate other --folds 4" in out
