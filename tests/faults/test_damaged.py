"""Damaged files of a run folder: an error of one line, or the same result. Never a wrong one.

`make faults` damages many more places.
"""

import json
import os
import pickle
import random
import shutil

import pytest
import torch

import comatch
from comatch import weights
from comatch.errors import UserError
from comatch.training import loop
from helpers import LONG, TINY, assert_one_line_error, interrupt_at, make_images

pytestmark = pytest.mark.slow

PLACES = 12 if LONG else 1  # of each kind of damage
FILES = [
    "config.json",
    "environment.json",
    "last.pt",
    "metrics.jsonl",
    "model.json",
    "model.safetensors",
    "split.json",
    "summary.json",
]
UNFINISHED = [name for name in FILES if name != "summary.json"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Images, a finished run, and one that was stopped on the way."""
    folder = tmp_path_factory.mktemp("runs")
    images = make_images(folder / "images", per_class=4, unlabelled=20, test=2)
    settings = {**TINY, "mu": 1, "batch": 4, "bank_size": 20, "checkpoint_every": 2}
    options = {"steps": 4, "device": "cpu", "settings": settings, "progress": False}
    comatch.train(images, out=folder / "finished", **options)
    with pytest.MonkeyPatch.context() as patch:
        interrupt_at(patch, 2)
        with pytest.raises(loop.Interrupted):
            comatch.train(images, out=folder / "stopped", **options)
    return folder


@pytest.fixture
def place(runs, tmp_path, monkeypatch):
    """A folder with copies of them, which is made anew for each damage."""

    def renew():
        for name in ("finished", "stopped"):
            shutil.rmtree(tmp_path / name, ignore_errors=True)
            shutil.copytree(runs / name, tmp_path / name)

    (tmp_path / "images").symlink_to(runs / "images")
    return renew


def damages(content, name):
    """The content with bytes flipped, zeroed, cut or exchanged."""
    moments = random.Random(name)
    for _ in range(PLACES):
        start = moments.randrange(len(content))
        length = moments.choice([1, 1, 8, 200])
        change = moments.choice([0xFF, 1 << moments.randrange(8)])
        flipped = bytes(byte ^ change for byte in content[start : start + length])
        yield f"flipped {start}+{length}", content[:start] + flipped + content[start + length :]
        zeros = b"\0" * len(flipped)
        yield f"zeroed {start}+{length}", content[:start] + zeros + content[start + length :]
        yield f"cut at {start}", content[:start]
    yield "an object", b"{}\n"
    if LONG:
        yield "empty", b""
        yield "a list", b"[1, 2]\n"
        yield "nested", b"[" * 100_000


def check(result, *unchanged):
    """An error of one line, or success with nothing changed."""
    if result[0] == 0:
        for before, after in unchanged:
            assert before == after
    else:
        assert_one_line_error(result)
    return result[0] == 0


@pytest.mark.parametrize("name", FILES)
def test_using_a_finished_run(cli, runs, place, tmp_path, name):
    place()
    assert cli("predict", "finished", "images/test", "--out", "before.csv")[0] == 0
    before = (tmp_path / "before.csv").read_bytes()
    for _, content in damages((runs / "finished" / name).read_bytes(), name):
        place()
        (tmp_path / "finished" / name).write_bytes(content)
        result = cli("predict", "finished", "images/test", "--out", "after.csv", "--overwrite")
        if check(result):
            assert (tmp_path / "after.csv").read_bytes() == before
        if name in ("last.pt", "metrics.jsonl"):
            assert result[0] == 0, "the run needs neither of them any more"
        for words in (
            ["train", "--out", "finished", "--resume"],
            ["evaluate", "finished"],
            ["report", "finished"],
        ):
            check(cli(*words))


@pytest.mark.parametrize("name", UNFINISHED)
def test_resuming(cli, runs, place, tmp_path, name):
    expected = (runs / "finished" / "model.safetensors").read_bytes()
    for what, content in damages((runs / "stopped" / name).read_bytes(), name):
        place()
        (tmp_path / "stopped" / name).write_bytes(content)
        if check(cli("train", "--out", "stopped", "--resume")):
            found = (tmp_path / "stopped" / "model.safetensors").read_bytes()
            assert found == expected, what
        else:  # nothing is lost: what was damaged is still there
            assert (tmp_path / "stopped" / name).read_bytes() == content


def test_a_missing_file(cli, runs, place, tmp_path):
    for run in ("finished", "stopped"):
        for name in FILES if LONG else FILES[:4]:
            place()
            (tmp_path / run / name).unlink(missing_ok=True)
            check(cli("train", "--out", run, "--resume"))
            check(cli("predict", run, "images/test", "--out", "p.csv", "--overwrite"))
            check(cli("report", run))


class Payload:
    """Unpickling it makes a file."""

    def __reduce__(self):
        return os.system, ("touch executed",)


@pytest.mark.parametrize("name", UNFINISHED)
def test_nothing_in_a_run_folder_is_executed(cli, place, tmp_path, name):
    for write in (pickle.dumps, lambda value: json.dumps([value.__class__.__name__]).encode()):
        place()
        for run in ("finished", "stopped"):
            (tmp_path / run / name).write_bytes(write(Payload()))
        check(cli("train", "--out", "stopped", "--resume"))
        check(cli("predict", "finished", "images/test", "--out", "p.csv", "--overwrite"))
    torch.save({"method": Payload()}, tmp_path / "stopped" / "last.pt")
    check(cli("train", "--out", "stopped", "--resume"))
    weights_file = tmp_path / "weights.pt"
    torch.save({"state_dict": Payload()}, weights_file)
    words = ["--steps", 1, "--init", weights_file, "--out", "new"]
    assert_one_line_error(cli("train", "digits", *words), "nothing in it is executed")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_every_changed_bit_of_weights_is_noticed(tmp_path, suffix):
    tensors = {"a": torch.arange(30.0), "b": torch.zeros((), dtype=torch.long)}
    path = tmp_path / f"weights{suffix}"
    if suffix == ".pt":
        torch.save(tensors, path)
    else:
        path.write_bytes(weights.to_safetensors(tensors))
    content = path.read_bytes()
    noticed = 0
    for place in range(0, len(content), 1 if LONG else 3):
        path.write_bytes(content[:place] + bytes([content[place] ^ 16]) + content[place + 1 :])
        try:
            found = weights.read(path)
        except Exception:  # its users make one line of any error
            noticed += 1
            continue
        assert {name: value.tolist() for name, value in found.items()} == {
            name: value.tolist() for name, value in tensors.items()
        }, place
    assert noticed > 50


def test_weights_of_other_programs_need_no_checksum(tmp_path):
    from safetensors.torch import save_file

    save_file({"a": torch.ones(3)}, tmp_path / "a.safetensors")
    assert weights.read(tmp_path / "a.safetensors")["a"].tolist() == [1, 1, 1]


def test_a_changed_setting_is_noticed(place, tmp_path):
    place()
    config = tmp_path / "stopped" / "config.json"
    config.write_text(config.read_text().replace('"lr": ', '"lr": 1'))
    with pytest.raises(UserError, match="changed after it was written"):
        comatch.train(out=tmp_path / "stopped", resume=True, progress=False)
