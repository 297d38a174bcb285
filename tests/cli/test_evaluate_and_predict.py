"""`comatch evaluate` and `comatch predict`, and the same from Python."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas
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
@pytest.mark.parametrize(
    ("folder", "message"),
    [("nowhere", "there is no run folder nowhere"), ("empty", "empty is not a run folder")],
)
def test_a_folder_that_is_no_run(cli, tmp_path, command, folder, message):
    (tmp_path / "empty").mkdir()
    Image.new("RGB", (8, 8)).save("a.png")
    words = [command, folder, *(["a.png"] if command == "predict" else [])]
    assert_one_line_error(cli(*words), message)
    with pytest.raises(comatch.errors.UserError, match=message):
        comatch.load(folder)


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
    assert list(rows[0]) == ["path", "label", "probability", "fit", "lying", "standing"]
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
    words = ["predict", run, images / "test", "--overwrite", "--sheet", "run/config.json/look.png"]
    assert_one_line_error(cli(*words), "cannot write run/config.json/look.png")


def test_predict_overwrites_nothing_unasked(cli, run, images):
    words = ["predict", run, images / "test"]
    assert cli(*words, "--sheet", "look.png")[0] == 0
    before = Path("predictions.csv").read_bytes()
    assert_one_line_error(cli(*words), "predictions.csv exists: add --overwrite")
    result = cli(*words, "--out", "other.csv", "--sheet", "look.png")
    assert_one_line_error(result, "look.png exists")
    assert not Path("other.csv").exists()
    assert cli("predict", run, images / "test/lying", "--overwrite")[0] == 0
    assert len(Path("predictions.csv").read_bytes()) < len(before)


def test_predict_in_every_format(cli, run, images):
    words = ["predict", run, images / "test"]
    for name in ("a.csv", "a.json", "a.parquet"):
        code, out, err = cli(*words, "--out", name)
        assert code == 0, err
        assert f"8 images classified: {name}" in out
    with open("a.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    records = json.loads(Path("a.json").read_text())
    table = pandas.read_parquet("a.parquet")
    assert [one["path"] for one in records] == list(table["path"]) == [row["path"] for row in rows]
    assert [one["label"] for one in records] == list(table["label"]) == [r["label"] for r in rows]
    for name in ("lying", "standing"):
        shares = [one["probabilities"][name] for one in records]
        assert shares == pytest.approx(list(table[name]), abs=1e-6)
        assert shares == pytest.approx([float(row[name]) for row in rows], abs=1e-6)
    assert_one_line_error(cli(*words, "--out", "a.xlsx"), ".csv, .json, .parquet")


def test_predict_to_standard_output(run, images):
    words = ["predict", run, images / "test", "--out", "-"]
    done = subprocess.run([sys.executable, "-m", "comatch", *map(str, words)], capture_output=True)
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(done.stdout.decode().splitlines()))
    assert len(rows) == 8
    assert b"8 images classified" in done.stderr


def test_predict_counts_the_classes(cli, run, images):
    _, out, _ = cli("predict", run, images / "test")
    with open("predictions.csv", newline="") as file:
        labels = [row["label"] for row in csv.DictReader(file)]
    for name in set(labels):
        (line,) = [line for line in out.splitlines() if line.split()[:1] == [name]]
        assert line.split()[1] == str(labels.count(name))


def test_evaluate_on_a_folder_of_labelled_images(cli, run, images, tmp_path):
    code, _, err = cli("evaluate", run, images / "test", "--out", "scores")
    assert code == 0, err
    found = comatch.evaluate(run, images / "test")
    assert found.top1 == comatch.evaluate(run).top1
    scores = read_json(tmp_path / "scores/scores.json")
    assert (scores["top1"], scores["images"]) == (found.top1, 8)
    assert set(scores["classes"]) == {"lying", "standing"}
    low, high = scores["interval"]
    assert low <= found.top1 <= high
    with open("scores/confusion.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    for row, name in zip(rows, ("lying", "standing"), strict=True):
        assert row["class"] == name
        right = [one for one in found.checks if one.label == one.predicted == name]
        assert int(row[f"predicted {name}"]) == len(right)
    with open("scores/mistakes.csv", newline="") as file:
        assert [row["path"] for row in csv.DictReader(file)] == [m.path for m in found.mistakes]
    with Image.open("scores/confusion.png") as image:
        assert len(image.convert("RGB").getcolors(10**6)) > 20
    again = cli("evaluate", run, images / "test", "--out", "scores")
    assert_one_line_error(again, "scores/scores.json exists")


def test_folders_that_cannot_be_evaluated(cli, run, images, tmp_path):
    assert_one_line_error(cli("evaluate", run, "nowhere"), "nowhere is no folder")
    (images / "test" / "flying").mkdir()
    Image.new("RGB", (9, 9)).save(images / "test/flying/1.png")
    result = cli("evaluate", run, images / "test")
    assert_one_line_error(result, "has the class 'flying'", "lying, standing")
    assert_one_line_error(cli("evaluate", run, images, "--folds", 2), "leave FOLDER or --folds out")
    Image.new("RGB", (9, 9)).save(tmp_path / "loose.png")
    (tmp_path / "only").mkdir()
    (tmp_path / "loose.png").rename(tmp_path / "only/loose.png")
    assert_one_line_error(cli("evaluate", run, "only"), "has no labelled image")


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
