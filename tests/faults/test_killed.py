"""SIGKILL at random moments. The same command again ends as an undisturbed one does.

`make faults` kills fifty times, and train before each of its writes.
"""

import csv
import random
import shutil
import time
from pathlib import Path

import processes
import pytest

from helpers import LONG, TINY_SHARED_WORDS, TINY_WORDS, make_images

pytestmark = pytest.mark.slow

KILLS = 10 if LONG else 1  # of each command
QUICK = ["--device", "cpu", "--set", "checkpoint_every=2"]
TRAIN = ["train", "digits", "--labels", 20, "--steps", 8, "--out", "run", *TINY_WORDS, *QUICK]
METHODS = ["--methods", "supervised,fixmatch", "--seeds", 0, "--labels", 20, "--steps", 4]
COMPARE = ["compare", "digits", *METHODS, "--out", "runs", *TINY_SHARED_WORDS, *QUICK]
COMMANDS = {
    "train": TRAIN,
    "predict": ["predict", "run", "images", "--out", "found.csv", "--device", "cpu"],
    "evaluate": ["evaluate", "run", "--folds", 2, "--device", "cpu"],
    "compare": COMPARE,
    "export": ["export", "run", "--out", "model.pt2"],
}
RUN = ("config.json", "split.json", "metrics.jsonl", "model.safetensors", "model.json")
NAMES = list(COMMANDS) if LONG else [name for name in COMMANDS if name != "export"]  # it is slow


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder with images and a finished run."""
    folder = tmp_path_factory.mktemp("prepared")
    make_images(folder / "images", per_class=20 if LONG else 4)
    processes.seconds(*TRAIN, cwd=folder)
    return folder


@pytest.fixture
def place(prepared, tmp_path):
    """A function that makes a folder in which a command can be started."""

    def make(name: str, command: str) -> Path:
        path = tmp_path / name
        shutil.copytree(prepared, path)
        if command == "train":
            shutil.rmtree(path / "run")
        return path

    return make


def results(folder: Path, command: str) -> object:
    """What must not depend on a kill."""
    match command:
        case "train":
            return [(folder / "run" / name).read_bytes() for name in RUN]
        case "predict":
            return (folder / "found.csv").read_bytes()
        case "evaluate":
            table, model = folder / "run/folds/2.csv", folder / "run/model.json"
            return table.read_bytes(), model.read_bytes()
        case "compare":
            runs = [folder / f"runs/{method}-seed0" for method in ("supervised", "fixmatch")]
            rows = csv.DictReader((folder / "runs/compare.csv").open())
            weights = [(run / "model.safetensors").read_bytes() for run in runs]
            return weights, [{**row, "seconds": ""} for row in rows]
        case _:
            return (folder / "model.pt2").stat().st_size > 0


def again(command: str, folder: Path) -> list[object]:
    """The command that continues."""
    if command == "train" and (folder / "run/config.json").exists():
        return [*TRAIN, "--resume"]
    if command == "predict" and (folder / "found.csv").exists():
        return [*COMMANDS["predict"], "--overwrite"]
    return COMMANDS[command]


@pytest.mark.parametrize("name", NAMES)
def test_killed_at_random_moments(place, name):
    whole = place("whole", name)
    duration = processes.seconds(*COMMANDS[name], cwd=whole)
    expected = results(whole, name)
    moments = random.Random(name)
    for number in range(KILLS):
        folder = place(f"killed-{number}", name)
        command = processes.start(*COMMANDS[name], cwd=folder)
        time.sleep(moments.uniform(0, duration))
        command.kill()
        if name == "predict" and (folder / "found.csv").exists():
            assert results(folder, name) == expected, "a table appears once it is complete"
        command = processes.start(*again(name, folder), cwd=folder)
        assert command.wait() == 0, command.text
        assert "Traceback" not in command.text
        assert results(folder, name) == expected
        assert not list(folder.rglob("*.part"))
        shutil.rmtree(folder)


@pytest.mark.skipif(not LONG, reason="make faults")
def test_killed_before_each_write(place):
    whole = place("whole", "train")
    processes.seconds(*TRAIN, cwd=whole)
    expected = results(whole, "train")
    for number in range(1000):
        folder = place(f"killed-{number}", "train")
        command = processes.start(*TRAIN, cwd=folder, die_at=number)
        if command.wait() == 0:  # it has no more writes
            assert number > 20
            return
        assert command.process.exitcode == -9, command.text
        command = processes.start(*again("train", folder), cwd=folder)
        assert command.wait() == 0, command.text
        assert results(folder, "train") == expected
        shutil.rmtree(folder)


def test_two_processes_in_one_run_folder(place):
    """The second is refused, and changes nothing."""
    folder = place("shared", "train")
    first = processes.start(*TRAIN, "--steps", 100_000, cwd=folder)
    while first.process.is_alive() and not (folder / "run/last.pt").exists():
        time.sleep(0.01)
    resumed = [word if word != 8 else 100_000 for word in TRAIN]
    for words in ([*resumed, "--resume"], resumed):
        second = processes.start(*words, cwd=folder)
        assert second.wait() == 2, second.text
        assert "another process" in second.text or "is not empty" in second.text
        assert "Traceback" not in second.text
    assert first.process.is_alive(), first.text
    first.kill()
