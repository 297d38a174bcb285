"""The command line as people use it, and every mistake they make: one line, exit code 2."""

import csv
import json
import os
import resource
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import comatch
from comatch import files
from helpers import TINY_WORDS, make_images, start

FAST = ["--steps", 2, "--device", "cpu", *TINY_WORDS]
FOLDER = ["--set", "mu=1"]  # the folder in these tests is small


def fails(result, *fragments):
    """One line that says what is wrong and what to do; no traceback."""
    code, _, err = result
    lines = [line for line in err.splitlines() if line.strip() and "warning:" not in line]
    assert code == 2, err
    assert len(lines) == 1, err
    assert lines[0].startswith("error: "), err
    for fragment in fragments:
        assert fragment in lines[0], err


@pytest.fixture
def run(cli, images):
    """A trained run on the folder `images`."""
    code, _, err = cli("train", images, *FAST, *FOLDER, "--out", "run")
    assert code == 0, err
    return images.parent / "run"


def test_train_leaves_a_whole_run_folder(run):
    files = {p.name for p in run.iterdir()}
    assert files == {
        "config.json",
        "split.json",
        "metrics.jsonl",
        "environment.json",
        "last.pt",
        "model.safetensors",
        "model.json",
        "summary.json",
        "tensorboard",
    }
    summary = json.loads((run / "summary.json").read_text())
    assert summary["steps"] == 2
    assert 0 <= summary["top1"] <= 1
    environment = json.loads((run / "environment.json").read_text())["sessions"][0]
    assert environment["packages"]["torch"] == torch.__version__.split("+")[0]
    assert environment["command"].startswith("comatch train")
    assert any((run / "tensorboard").iterdir())
    for line in (run / "metrics.jsonl").read_text().splitlines():
        assert json.loads(line)["step"] <= 2


def test_nothing_is_written_into_the_users_folder(cli, images):
    def listing():
        return sorted((p.as_posix(), p.stat().st_mtime_ns) for p in images.rglob("*"))

    before = listing()
    code, _, err = cli("train", images, *FAST, *FOLDER, "--out", "run")
    assert code == 0, err
    assert listing() == before


def test_evaluate(cli, run):
    code, out, _ = cli("evaluate", run)
    assert code == 0
    for word in ("standing", "lying", "taken for", "top-1 accuracy", "calibration error"):
        assert word in out


def test_evaluate_agrees_with_the_summary(run):
    scores = comatch.evaluate(run)
    assert scores.top1 == json.loads((run / "summary.json").read_text())["top1"]


def test_a_run_without_a_network_cannot_be_evaluated_yet(cli, run):
    for name in ("model.safetensors", "model.json", "summary.json"):
        (run / name).unlink()
    fails(cli("evaluate", run), "holds no trained network yet", "--resume")
    fails(cli("evaluate", run, "--folds", 2), "has not finished", "--resume")


def test_predict_loads_matplotlib_only_if_it_draws(run, images):
    """It takes its time."""
    program = "import sys; from comatch.cli import main\n"
    program += "try: main()\nfinally: sys.exit('matplotlib' in sys.modules)"
    words = ["predict", run, images / "test", "--out", run / "p.csv", "--device", "cpu"]
    done = [
        subprocess.run([sys.executable, "-c", program, *map(str, more)]).returncode
        for more in (words, [*words, "--sheet", run / "sheet.png"])
    ]
    assert done == [0, 1]


def test_predict_writes_a_table(cli, run, images):
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


def test_a_name_in_brackets_is_told_as_it_is(cli, run, images):
    code, out, _ = cli("predict", run, images / "unlabeled", "--out", "a[b].csv")
    assert code == 0
    assert "classified: a[b].csv" in out


def test_predict_draws_a_sheet(cli, run, images):
    (images / "unlabeled" / "broken.png").write_bytes(b"not an image")
    code, out, err = cli("predict", run, images / "unlabeled", "--sheet", "new/look.png")
    assert code == 0, err
    assert "some of each class: new/look.png" in out
    with Image.open("new/look.png") as image:
        assert image.format == "PNG"
        assert len(image.convert("RGB").getcolors(10**6)) > 100  # there is something to see
    words = ["predict", run, images / "test", "--sheet", "run/config.json/look.png"]
    fails(cli(*words), "cannot write run/config.json/look.png")


def test_python_and_command_line_agree(cli, run, images):
    path = images / "test/lying/0.png"
    cli("predict", run, path, "--out", "one.csv")
    with open("one.csv", newline="") as file:
        (row,) = csv.DictReader(file)
    classifier = comatch.load(run)
    array = np.asarray(Image.open(path))
    for given in (path, str(path), [path], Image.open(path), array, array[None]):
        predictions = classifier.predict(given)
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


def test_labels_file_and_labels_csv_mean_the_same(cli, tmp_path):
    images = make_images(tmp_path / "p")
    rows = [f"{kind}/{i}.png,{kind}" for kind in ("standing", "lying") for i in range(3)]
    (tmp_path / "mine.csv").write_text("path,label\n" + "\n".join(rows))
    code, _, err = cli(
        "train", images, "--labels-file", "mine.csv", *FAST, *FOLDER, "--out", "a"
    )  # fmt: skip
    assert code == 0, err
    split = json.loads((tmp_path / "a/split.json").read_text())
    assert sorted(split["labelled"]) == sorted(row.split(",")[0] for row in rows)
    (images / "labels.csv").write_bytes((tmp_path / "mine.csv").read_bytes())
    assert cli("train", images, *FAST, *FOLDER, "--out", "b")[0] == 0
    other = json.loads((tmp_path / "b/split.json").read_text())
    assert other["labelled"] == split["labelled"]


def test_runs_are_numbered_and_resume_takes_the_last(cli, tmp_path):
    words = ["train", "digits", "--labels", 20, *FAST]
    for expected in ("digits-comatch-20-seed0", "digits-comatch-20-seed0-2"):
        code, out, err = cli(*words)
        assert code == 0, err
        assert f"run folder: runs/{expected}\n" in out
    code, out, _ = cli(*words, "--resume")
    assert code == 0
    assert "digits-comatch-20-seed0-2\n" in out
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_a_share_of_the_labels(cli, tmp_path):
    code, _, err = cli("train", "digits", "--labels", "2.8%", *FAST)
    assert code == 0, err
    run = tmp_path / "runs" / "digits-comatch-2.8pct-seed0"
    assert json.loads((run / "summary.json").read_text())["labels"] == 40
    split = json.loads((run / "split.json").read_text())
    assert split["origin"].startswith("4 a class (0.028 of 1,438 labelled images in 10 classes)")
    assert cli("train", "--out", run, "--resume", "--labels", "0.028")[0] == 0


def test_baseline_is_trained_on_the_same_split(cli, tmp_path):
    code, out, err = cli("train", "digits", "--labels", 20, "--baseline", *FAST, "--out", "run")
    assert code == 0, err
    assert "supervised" in out
    assert "comatch" in out
    labelled = [
        json.loads((tmp_path / name / "split.json").read_text())["labelled"]
        for name in ("run", "run-supervised")
    ]
    assert labelled[0] == labelled[1]


def test_labels_alone(cli, tmp_path):
    """A folder in which everything is labelled: nothing for CoMatch, all that a baseline needs."""
    images = make_images(tmp_path / "p", unlabelled=0)
    words = ["train", images, "--steps", 2, "--set", "image_size=8", "--out", "run"]
    fails(cli(*words), "there are none", "--method supervised")
    code, _, err = cli(*words, "--method", "supervised")
    assert code == 0, err


def test_a_mistake_is_told_before_the_baseline_is_trained(cli, tmp_path):
    words = ["train", "digits", "--labels", 20, "--baseline", *FAST]
    fails(cli(*words, "--set", "bnak_size=3"), "unknown setting 'bnak_size'")
    fails(cli(*words, "--method", "comach"), "unknown method")
    assert not (tmp_path / "runs").exists()


def test_a_corrupt_image_is_skipped_and_named(cli, images):
    (images / "lying" / "3.png").write_bytes(b"\x89PNG\r\n\x1a\n truncated")
    code, _, err = cli("train", images, *FAST, *FOLDER, "--out", "run")
    assert code == 0, err
    assert "1 images were left out (lying/3.png" in err
    split = json.loads((images.parent / "run/split.json").read_text())
    assert split["skipped"][0].startswith("lying/3.png")


def test_catalogues(cli):
    for command, names in (("methods", ["comatch", "supervised"]), ("recipes", ["cifar10"])):
        code, out, _ = cli(command)
        assert code == 0
        for name in names:
            assert name in out
            assert cli(command, name)[0] == 0
    assert "edge_threshold" in cli("recipes", "cifar10")[1]
    fails(cli("methods", "comach"), "did you mean 'comatch'")


def test_help_is_quick_and_teaches():
    result = subprocess.run(
        [sys.executable, "-c", "import comatch.cli, sys; sys.exit('torch' in sys.modules)"],
        check=False,
    )
    assert result.returncode == 0, "the command line must not import torch before it needs it"
    text = subprocess.run(
        [sys.executable, "-m", "comatch", "train", "--help"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for word in ("--labels", "--labels-file", "--set", "--resume", "--baseline", "comatch recipes"):
        assert word in text


# ---------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        (["nowhere"], ["neither a folder nor a known source", "digits"]),
        (["digts"], ["did you mean digits"]),
        (["digits", "--method", "comach"], ["unknown method", "did you mean 'comatch'"]),
        (["digits", "--recipe", "cifar"], ["unknown recipe", "did you mean 'cifar10'"]),
        (["digits", "--set", "alhpa=1"], ["unknown setting", "did you mean 'alpha'"]),
        (["digits", "--set", "alpha"], ["key=value"]),
        (["digits", "--set", "net=resnet81"], ["unknown net", "resnet"]),
        (["digits", "--labels", "41"], ["41 labels", "use --labels 40 or 50"]),
        (["digits", "--labels", "5"], ["use --labels 10"]),
        (["digits", "--labels", "5000"], ["labelled images, not 500"]),
        (["digits", "--labels", "0"], ["labels=0"]),
        (["digits", "--labels", "100%"], ["labels=1.0", "a share as in 1%"]),
        (["digits", "--labels", "few"], ["--labels few", "a share as in 1%"]),
        (["digits", "--labels", "99%"], ["labelled images, not 142"]),
        (["digits", "--set", "stream=yes"], ["digits is read whole"]),
        (["digits", "--steps", "0"], ["steps=0"]),
        (["digits", "--device", "tpu"], ["unknown device"]),
        (["digits", "--set", "batch=1000"], ["fewer than", "add images, or --set mu=1"]),
        (["digits", "--set", "mu=40", "--set", "batch=40"], ["fewer than", "--set mu=34"]),
        (["--recipe", "folder"], ["needs data"]),
        (["cifar10", "--data-dir", "empty"], ["cifar-10-python.tar.gz"]),
        (["digits", "--labels-file", "missing.csv"], ["missing.csv"]),
    ],
)
def test_mistakes_on_the_command_line(cli, tmp_path, monkeypatch, words, fragments):
    monkeypatch.setattr("comatch.data.downloads.urlopen", no_network)
    fails(cli("train", *words), *fragments)
    assert not (tmp_path / "runs").exists(), "nothing may be written before everything is checked"


def no_network(*_, **__):
    raise OSError(101, "Network is unreachable")


def test_no_gpu(cli, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    fails(cli("train", "digits", "--device", "cuda"), "--device cpu")


def empty_folder(path):
    for file in path.rglob("*.*"):
        file.unlink()


def one_class(path):
    for file in [*(path / "lying").iterdir()]:
        file.unlink()
    (path / "lying").rmdir()


def class_without_images(path):
    (path / "sitting").mkdir()


def stranger(path):
    (path / "labels.csv").write_text("path,label\nlying/0.png,lying\nstanding/9999.png,standing\n")


def two_labels(path):
    (path / "labels.csv").write_text("path,label\nlying/0.png,a\nlying/0.png,b\n")


def same_file_two_labels(path):
    (path / "standing" / "copy.png").write_bytes((path / "lying" / "0.png").read_bytes())


def all_corrupt(path):
    for file in path.rglob("*.*"):
        file.write_bytes(f"not an image: {file}".encode())


@pytest.mark.parametrize(
    ("spoil", "fragments"),
    [
        (empty_folder, ["has no images"]),
        (one_class, ["two classes or more"]),
        (class_without_images, ["class 'sitting' has no image"]),
        (stranger, ["standing/9999.png"]),
        (two_labels, ["two labels", "'a' and 'b'"]),
        (same_file_two_labels, ["the same image"]),
        (all_corrupt, ["can be read"]),
    ],
)
def test_mistakes_in_a_folder(cli, images, spoil, fragments):
    spoil(images)
    fails(cli("train", images, *FAST, *FOLDER, "--out", "run"), *fragments)
    assert not (images.parent / "run").exists()


def test_fewer_images_than_a_batch(cli, images):
    fails(cli("train", images), "30 unlabelled images are fewer than", "--set batch=10")


def test_unwritable_output(cli, tmp_path):
    (tmp_path / "file").write_text("")
    fails(cli("train", "digits", *FAST, "--labels", 20, "--out", "file/run"), "file/run")
    fails(cli("train", "digits", *FAST, "--labels", 20, "--out", "file"), "file")


def test_a_folder_with_something_else_in_it_is_left_alone(cli, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    fails(cli("train", "digits", *FAST, "--out", "mine"), "not empty", "another --out")
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_a_run_of_another_configuration(cli, tmp_path):
    words = ["train", "digits", "--labels", 20, *FAST, "--out", "run"]
    assert cli(*words)[0] == 0
    fails(cli(*words), "--resume", "another --out")
    fails(cli(*words, "--resume", "--set", "lr=9"), "another configuration", "lr is 0.")
    fails(cli(*words, "--resume", "--method", "supervised"), "method is comatch")
    fails(cli("train", "--out", "run", "--resume", "--seed", 5), "seed is 0, not 5")
    fails(cli("train", "cifar10", "--out", "run", "--resume"), "data is digits, not cifar10")
    assert cli("train", "--out", "run", "--resume")[0] == 0


def test_a_checkpoint_of_another_run(cli, tmp_path):
    words = ["train", "digits", "--labels", 20, *FAST]
    assert cli(*words, "--out", "a")[0] == 0
    assert cli(*words, "--set", "embedding_dim=7", "--out", "b")[0] == 0
    (tmp_path / "a/last.pt").write_bytes((tmp_path / "b/last.pt").read_bytes())
    (tmp_path / "a/summary.json").unlink()
    fails(cli(*words, "--out", "a", "--resume"), "another version or another run")


def test_a_folder_of_the_same_name_does_not_change_the_recipe(cli, tmp_path):
    (tmp_path / "digits").mkdir()
    assert cli("train", "digits", "--labels", 20, *FAST, "--out", "run")[0] == 0
    recipe = json.loads((tmp_path / "run/config.json").read_text())["recipe"]
    assert (recipe["name"], recipe["data"]) == ("digits", "digits")


def test_none_is_a_setting_too(cli):
    words = ["train", "digits", "--labels", 20, *FAST, "--out", "run"]
    assert cli(*words)[0] == 0
    fails(
        cli("train", "--out", "run", "--resume", "--set", "labels=none"), "labels is 20, not None"
    )


def test_changed_data_cannot_be_resumed(cli, images, tmp_path):
    words = ["train", images, *FAST, *FOLDER, "--out", "run"]
    assert cli(*words)[0] == 0
    (tmp_path / "run/summary.json").unlink()  # as if it had been stopped at the end
    (images / "unlabeled" / "0.jpg").unlink()
    fails(cli(*words, "--resume"), "the data changed since this run began", "start a new run")


def test_full_disk_keeps_the_last_checkpoint(tmp_path):
    """A real limit on the size of files, set before the run is continued with a longer journal."""
    words = ["train", "digits", "--labels", 20, *FAST, "--out", "run"]
    words[words.index("--steps") + 1] = 40

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))

    process = start(*words, cwd=tmp_path, preexec_fn=limit)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 2, err
    assert err.strip().splitlines()[-1].startswith("error: cannot write")
    assert "Traceback" not in err
    assert not list((tmp_path / "run").glob("*.part"))
    process = start(*words, "--resume", cwd=tmp_path)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err


def test_a_failing_write_keeps_what_was_there(tmp_path, monkeypatch):
    from comatch.training import checkpoint

    checkpoint.save(tmp_path / "last.pt", {"step": 1})

    def full(file):
        file.write(b"half of it")
        raise OSError(28, os.strerror(28))

    with pytest.raises(
        comatch.errors.UserError, match="No space left on device; the one written before it is kept"
    ):
        files.write_file(tmp_path / "last.pt", full)
    assert checkpoint.load(tmp_path / "last.pt") == {"step": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["last.pt"]


@pytest.mark.parametrize("words", [["evaluate"], ["predict"]])
def test_runs_that_are_none(cli, tmp_path, words):
    (tmp_path / "empty").mkdir()
    Image.new("RGB", (8, 8)).save("a.png")
    tail = ["a.png"] if words == ["predict"] else []
    fails(cli(*words, "nowhere", *tail), "nowhere")
    fails(cli(*words, "empty", *tail), "empty")


def test_predicting_nothing(cli, run, tmp_path):
    fails(cli("predict", run, "missing.png"), "missing.png does not exist")
    (tmp_path / "none").mkdir()
    fails(cli("predict", run, "none"), "no images")
    (tmp_path / "bad.png").write_bytes(b"")
    code, _, err = cli("predict", run, "bad.png")
    assert code == 2
    assert "none of the images could be read" in err
    fails(cli("predict", run, tmp_path / "images", "--out", "no/such/folder.csv"), "cannot write")


def test_loading_a_run_executes_nothing_from_it(run, tmp_path):
    """A pickle that would touch a file, put where the checkpoint and the weights lie."""
    import pickle

    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "executed"), "w"))

    for name in ("last.pt", "model.safetensors"):
        (run / name).write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(comatch.errors.UserError, match="damaged"):
        comatch.load(run)
    (run / "summary.json").unlink()
    with pytest.raises(comatch.errors.UserError, match="damaged"):
        comatch.train(out=run, resume=True, progress=False)
    assert not (tmp_path / "executed").exists()
