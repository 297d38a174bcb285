"""`comatch evaluate` and `comatch predict`, and the same from Python."""

import csv
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import comatch
from helpers import assert_one_line_error, read_json

HELD_BACK = ("model.safetensors", "model.json", "summary.json")


def test_evaluate_shows_every_class_and_the_accuracy(cli, run):
    code, out, _ = cli("evaluate", run)
    assert code == 0
    for word in ("standing", "lying", "recall", "top-1 accuracy", "calibration error"):
        assert word in out


def test_evaluate_agrees_with_the_summary(run):
    assert comatch.evaluate(run).top1 == read_json(run / "summary.json")["top1"]


def test_a_run_without_a_network_cannot_be_evaluated(cli, run):
    for name in HELD_BACK:
        (run / name).unlink()
    assert_one_line_error(cli("evaluate", run), "holds no trained network yet", "--resume")
    result = cli("evaluate", run, "--folds", 2)
    assert_one_line_error(result, "has not finished", "--resume")


@pytest.mark.parametrize("command", ["evaluate", "predict"])
@pytest.mark.parametrize("folder", ["nowhere", "empty"])
def test_a_folder_that_is_no_run(cli, tmp_path, command, folder):
    (tmp_path / "empty").mkdir()
    Image.new("RGB", (8, 8)).save("a.png")
    words = [command, folder, *(["a.png"] if command == "predict" else [])]
    assert_one_line_error(cli(*words), f"{folder} is not a run folder")


def test_predict_loads_matplotlib_only_for_a_sheet(trained, tmp_path):
    """Importing it takes long. Drawing a sheet is tested below."""
    program = "import sys; from comatch.cli import main\n"
    program += "try: main()\nfinally: sys.exit('matplotlib' in sys.modules)"
    words = ["predict", trained / "run", trained / "images/test", "--out", tmp_path / "p.csv"]
    assert subprocess.run([sys.executable, "-c", program, *map(str, words)]).returncode == 0
    assert (tmp_path / "p.csv").exists()


def test_predict_writes_a_csv_file(cli, run, images):
    (images / "unlabeled" / "broken.png").write_bytes(b"not an image")
    code, out, err = cli("predict", run, images / "unlabeled", images / "test/lying/0.png")
    assert code == 0, err
    assert "31 images classified, 1 skipped: predictions.csv" in out
    assert "broken.png" in err
    with open("predictions.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 31
    assert list(rows[0]) == ["path", "label", "probability", "lying", "standing"]
    for row in rows:
        shares = {name: float(row[name]) for name in ("lying", "standing")}
        assert sum(shares.values()) == pytest.approx(1, abs=1e-5)
        assert row["label"] == max(shares, key=shares.get)
        assert float(row["probability"]) == max(shares.values())


def test_a_file_name_in_square_brackets_is_printed_as_it_is(cli, run, images):
    code, out, _ = cli("predict", run, images / "unlabeled", "--out", "a[b].csv")
    assert code == 0
    assert "classified: a[b].csv" in out


def test_predict_draws_a_sheet(cli, run, images):
    (images / "unlabeled" / "broken.png").write_bytes(b"not an image")
    code, out, err = cli("predict", run, images / "unlabeled", "--sheet", "new/look.png")
    assert code == 0, err
    assert "new/look.png" in out
    with Image.open("new/look.png") as image:
        assert image.format == "PNG"
        assert len(image.convert("RGB").getcolors(10**6)) > 100  # it is not blank
    words = ["predict", run, images / "test", "--sheet", "run/config.json/look.png"]
    assert_one_line_error(cli(*words), "cannot write run/config.json/look.png")


def test_python_and_command_line_predict_the_same(cli, run, images):
    path = images / "test/lying/0.png"
    cli("predict", run, path, "--out", "one.csv")
    with open("one.csv", newline="") as file:
        (row,) = csv.DictReader(file)
    classifier = comatch.load(run)
    array = np.asarray(Image.open(path))
    for image in (path, str(path), [path], Image.open(path), array, array[None]):
        predictions = classifier.predict(image)
        assert predictions.labels == [row["label"]]
        assert predictions.probabilities.max().item() == pytest.approx(
            float(row["probability"]), abs=1e-5
        )


def test_images_that_python_cannot_read(run, tmp_path):
    classifier = comatch.load(run)
    (tmp_path / "bad.png").write_bytes(b"nothing")
    for bad in ("missing.png", tmp_path / "bad.png", [], torch.zeros(1, 3, 9, 9)):
        with pytest.raises(comatch.errors.UserError):
            classifier.predict(bad)


def test_nothing_to_predict(cli, run, images, tmp_path):
    result = cli("predict", run, "missing.png")
    assert_one_line_error(result, "missing.png does not exist")
    (tmp_path / "none").mkdir()
    assert_one_line_error(cli("predict", run, "none"), "no images")
    (tmp_path / "bad.png").write_bytes(b"")
    code, _, err = cli("predict", run, "bad.png")
    assert code == 2
    assert "none of the images could be read" in err
    result = cli("predict", run, images, "--out", "no/such/folder.csv")
    assert_one_line_error(result, "cannot write")
