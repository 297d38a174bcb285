"""`comatch train`: what it writes, resuming, the baseline, labels, and disks that are full."""

import json
import resource

import pytest
import torch

import comatch
from comatch.files import locked
from helpers import FAST, SMALL_FOLDER, assert_one_line_error, make_images, read_json

DIGITS = ["train", "digits", "--labels", 20, *FAST]


def test_files_of_a_run_folder(cli, images, tmp_path):
    before = listing(images)
    code, _, err = cli("train", images, *FAST, *SMALL_FOLDER, "--out", "run")
    assert code == 0, err
    assert listing(images) == before, "nothing is written among the user's images"
    run = tmp_path / "run"
    assert {path.name for path in run.iterdir()} == {
        "config.json",
        "split.json",
        "metrics.jsonl",
        "environment.json",
        "last.pt",
        "model.safetensors",
        "model.json",
        "known_images.safetensors",
        "summary.json",
        "tensorboard",
        ".lock",
    }
    summary = read_json(run / "summary.json")
    assert summary["steps"] == 2
    assert 0 <= summary["top1"] <= 1
    environment = read_json(run / "environment.json")["sessions"][0]
    assert environment["packages"]["torch"] == torch.__version__.split("+")[0]
    assert environment["command"].startswith("comatch train")
    assert any((run / "tensorboard").iterdir())
    for line in (run / "metrics.jsonl").read_text().splitlines():
        assert json.loads(line)["step"] <= 2


def listing(folder):
    return sorted((path.as_posix(), path.stat().st_mtime_ns) for path in folder.rglob("*"))


def test_labels_file_and_labels_csv_give_the_same_split(cli, tmp_path):
    images = make_images(tmp_path / "p")
    rows = [f"{kind}/{i}.png,{kind}" for kind in ("standing", "lying") for i in range(3)]
    (tmp_path / "mine.csv").write_text("path,label\n" + "\n".join(rows))
    words = ["train", images, *FAST, *SMALL_FOLDER]
    code, _, err = cli(*words, "--labels-file", "mine.csv", "--out", "a")
    assert code == 0, err
    split = read_json(tmp_path / "a/split.json")
    assert sorted(split["labelled"]) == sorted(row.split(",")[0] for row in rows)
    (images / "labels.csv").write_bytes((tmp_path / "mine.csv").read_bytes())
    assert cli(*words, "--out", "b")[0] == 0
    assert read_json(tmp_path / "b/split.json")["labelled"] == split["labelled"]


def test_runs_are_numbered_and_resume_continues_the_last(cli, tmp_path):
    for expected in ("digits-comatch-20-seed0", "digits-comatch-20-seed0-2"):
        code, out, err = cli(*DIGITS)
        assert code == 0, err
        assert f"run folder: runs/{expected}\n" in out
    code, out, _ = cli(*DIGITS, "--resume")
    assert code == 0
    assert "digits-comatch-20-seed0-2\n" in out
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_labels_as_a_share(cli, tmp_path):
    code, _, err = cli("train", "digits", "--labels", "2.8%", *FAST)
    assert code == 0, err
    run = tmp_path / "runs" / "digits-comatch-2.8pct-seed0"
    assert read_json(run / "summary.json")["labels"] == 40
    split = read_json(run / "split.json")
    assert split["origin"].startswith("4 a class (0.028 of 1,438 labelled images in 10 classes)")
    assert cli("train", "--out", run, "--resume", "--labels", "0.028")[0] == 0


def test_the_baseline_is_trained_on_the_same_split(cli, tmp_path):
    own = ["--set", "alpha=0.5"]  # a setting of CoMatch, which the baseline does not have
    code, out, err = cli(*DIGITS, *own, "--baseline", "--out", "run")
    assert code == 0, err
    assert "supervised" in out
    assert "comatch" in out
    splits = [read_json(tmp_path / name / "split.json") for name in ("run", "run-supervised")]
    assert splits[0]["labelled"] == splits[1]["labelled"]


def test_an_error_is_found_before_the_baseline_is_trained(cli, tmp_path):
    words = [*DIGITS, "--baseline"]
    result = cli(*words, "--set", "bnak_size=3")
    assert_one_line_error(result, "unknown setting 'bnak_size'")
    assert_one_line_error(cli(*words, "--method", "comach"), "unknown method")
    assert not (tmp_path / "runs").exists()


def test_supervised_needs_no_unlabelled_images(cli, tmp_path):
    images = make_images(tmp_path / "p", unlabelled=0)
    words = ["train", images, "--steps", 2, "--set", "image_size=8", "--out", "run"]
    assert_one_line_error(cli(*words), "there are none", "--method supervised")
    code, _, err = cli(*words, "--method", "supervised")
    assert code == 0, err


def test_a_damaged_image_is_skipped_and_named(cli, images):
    (images / "lying" / "3.png").write_bytes(b"\x89PNG\r\n\x1a\n truncated")
    code, _, err = cli("train", images, *FAST, *SMALL_FOLDER, "--out", "run")
    assert code == 0, err
    assert "1 images were left out (lying/3.png" in err
    split = read_json(images.parent / "run/split.json")
    assert split["skipped"][0].startswith("lying/3.png")


def test_a_folder_called_digits_does_not_change_the_recipe(cli, tmp_path):
    (tmp_path / "digits").mkdir()
    assert cli(*DIGITS, "--out", "run")[0] == 0
    recipe = read_json(tmp_path / "run/config.json")["recipe"]
    assert (recipe["name"], recipe["dataset"]["data"]) == ("digits", "digits")


# ---------------------------------------------------------------------------------- resuming


def test_resuming_with_other_settings_is_an_error(cli):
    words = [*DIGITS, "--out", "run"]
    assert cli(*words)[0] == 0
    assert_one_line_error(cli(*words), "--resume", "another --out")
    for more, fragment in (
        (["--set", "lr=9"], "lr is 0."),
        (["--set", "labels=none"], "labels is 20, not None"),
        (["--method", "supervised"], "method is comatch"),
        (["--seed", 5], "seed is 0, not 5"),
    ):
        assert_one_line_error(cli(*words, "--resume", *more), "another configuration", fragment)
    other = cli("train", "cifar10", "--out", "run", "--resume")
    assert_one_line_error(other, "data is digits, not cifar10")
    assert cli("train", "--out", "run", "--resume")[0] == 0


def test_a_second_process_is_refused(cli, tmp_path):
    words = [*DIGITS, "--out", "run"]
    with locked(tmp_path / "run"):
        assert_one_line_error(cli(*words), "another process is using run")
        assert_one_line_error(cli("compare", "digits", *FAST, "--out", "run"), "another process")
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]
    assert cli(*words)[0] == 0
    (tmp_path / "run/summary.json").unlink()
    with locked(tmp_path / "run"):
        assert_one_line_error(cli(*words, "--resume"), "another process is using run")
    assert cli(*words, "--resume")[0] == 0


def test_a_checkpoint_of_another_run_is_an_error(cli, tmp_path):
    assert cli(*DIGITS, "--out", "a")[0] == 0
    assert cli(*DIGITS, "--set", "embedding_dim=7", "--out", "b")[0] == 0
    (tmp_path / "a/last.pt").write_bytes((tmp_path / "b/last.pt").read_bytes())
    (tmp_path / "a/summary.json").unlink()
    result = cli(*DIGITS, "--out", "a", "--resume")
    assert_one_line_error(result, "another version or another run")


def test_resuming_on_changed_data_is_an_error(cli, images, tmp_path):
    words = ["train", images, *FAST, *SMALL_FOLDER, "--out", "run"]
    assert cli(*words)[0] == 0
    (tmp_path / "run/summary.json").unlink()  # as if it had been stopped before the end
    (images / "unlabeled" / "0.jpg").unlink()
    result = cli(*words, "--resume")
    assert_one_line_error(result, "the data changed since this run began", "start a new run")


def test_a_full_disk_keeps_the_last_checkpoint(cli, tmp_path):
    """The system limits the size of files. Without the limit, the run is continued."""
    words = [*DIGITS, "--out", "run"]
    words[words.index("--steps") + 1] = 40
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, before[1]))
    try:
        code, _, err = cli(*words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == 2, err
    assert err.strip().splitlines()[-1].startswith("error: cannot write")
    assert not list((tmp_path / "run").glob("*.part"))
    code, _, err = cli(*words, "--resume")
    assert code == 0, err


def test_loading_a_run_executes_nothing_from_it(run, tmp_path):
    """The checkpoint and the weights are replaced with a pickle that would write a file."""
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
