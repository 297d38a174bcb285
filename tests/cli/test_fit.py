"""The fit of predictions: a column, `--reject`, and runs of versions without it."""

import csv
import json
from pathlib import Path

import pytest
import torch

import comatch
from helpers import assert_one_line_error


def table(name="predictions.csv"):
    with open(name, newline="") as file:
        return list(csv.DictReader(file))


def test_every_prediction_has_a_fit(cli, run, images):
    code, _, err = cli("predict", run, images / "unlabeled")
    assert code == 0, err
    found = comatch.load(run).predict(sorted((images / "unlabeled").iterdir()))
    assert found.fit.shape == (30,)
    assert ((found.fit > 0) & (found.fit <= 1)).all()
    fits = [float(row["fit"]) for row in table()]
    assert fits == pytest.approx(found.fit.tolist(), abs=0.05)


def test_many_images_have_the_fit_of_few(run, images):
    paths = sorted((images / "unlabeled").iterdir())
    one, many = comatch.load(run), comatch.load(run)
    many.expect(1000)
    assert torch.allclose(one.predict(paths).features, many.predict(paths).features, atol=1e-3)


def test_rejected_images_have_no_label(cli, run, images):
    words = ["predict", run, images / "unlabeled", "--reject", 0.5]
    code, out, err = cli(*words, "--sheet", "sheet.png")
    assert code == 0, err
    rows = table()
    rejected = [row for row in rows if not row["label"]]
    assert all((float(row["fit"]) < 0.5) == (not row["label"]) for row in rows)
    assert f"{len(rejected)} of them rejected (fit below 0.5)" in out
    assert cli(*words, "--out", "a.json")[0] == 0
    records = json.loads(Path("a.json").read_text())
    assert sum(one["label"] is None for one in records) == len(rejected)


def test_all_images_may_be_rejected(cli, run, images):
    code, out, err = cli("predict", run, images / "unlabeled", "--reject", 1, "--sheet", "a.png")
    assert code == 0, err
    assert "30 images classified" in out


def test_a_rate_that_rejects_nothing_is_noted(cli, run, images):
    code, _, err = cli("predict", run, images / "test", "--reject", 0.001)
    assert code == 0
    assert "--reject 0.001 rejects none" in err


@pytest.mark.parametrize("rate", ["2", "-1", "many"])
def test_a_rate_is_a_share(cli, run, images, rate):
    assert cli("predict", run, images / "test", "--reject", rate)[0] == 2


def test_a_run_without_statistics_predicts_without_fit(cli, run, images):
    (run / "known_images.safetensors").unlink()
    code, _, err = cli("predict", run, images / "test")
    assert code == 0
    assert sum("no out-of-distribution statistics" in line for line in err.splitlines()) == 1
    assert {row["fit"] for row in table()} == {""}
    assert all(row["label"] for row in table())
    result = cli("predict", run, images / "test", "--overwrite", "--reject", 0.1)
    assert_one_line_error(result, "no out-of-distribution statistics")
    assert comatch.load(run).predict([images / "test/lying/0.png"]).fit is None


def test_damaged_statistics_are_an_error(cli, run, images):
    (run / "known_images.safetensors").write_bytes(b"nothing")
    assert_one_line_error(cli("predict", run, images / "test"), "known_images.safetensors")
