"""Full disks and folders that cannot be written: one line, and the run goes on afterwards."""

import os
import resource
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

import comatch
from comatch.data.feature_store import FeatureStore
from comatch.errors import UserError
from helpers import LONG, TINY, TINY_SHARED_WORDS, TINY_WORDS, assert_one_line_error, make_images

pytestmark = pytest.mark.slow

STEPS = 4
WORDS = ["train", "digits", "--labels", 20, "--steps", STEPS, "--device", "cpu", *TINY_WORDS]
WORDS += ["--set", "checkpoint_every=2"]
COMPARED = ["--methods", "supervised", "--labels", 20, "--steps", 2, *TINY_SHARED_WORDS]
RUN = ("config.json", "split.json", "metrics.jsonl", "model.safetensors", "model.json")
ROOMS = [0, 1, 8, 60, 200, 300, 400, 600, 900, 1200, 1600] if LONG else [8, 900]  # KiB


class SmallDisk:
    """A folder with little room: a file system in memory, if this user may mount one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self.mount("-t", "tmpfs", "-o", "size=4m", "tmpfs", str(path))

    def mount(self, *words: str) -> None:
        done = subprocess.run(["mount", *words], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"needs the right to mount a small disk: {done.stderr.strip()}")

    def resize(self, kib: int) -> None:
        self.mount("-o", f"remount,size={max(4, kib)}k", str(self.path))

    def protect(self) -> None:
        self.mount("-o", "remount,ro", str(self.path))

    def free(self) -> None:
        subprocess.run(["umount", "--lazy", self.path], check=False)


@pytest.fixture
def disk(tmp_path):
    if os.name != "posix" or not hasattr(os, "geteuid") or os.geteuid():
        pytest.skip("needs the right to mount a small disk")
    disk = SmallDisk(tmp_path / "disk")
    yield disk
    disk.free()


@contextmanager
def largest_file(kib):
    """No file may get larger: what a process sees of a full disk, without one."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (kib * 1024, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that is not disturbed."""
    out = tmp_path_factory.mktemp("whole") / "run"
    settings = {**TINY, "checkpoint_every": 2}
    options = {"labels": 20, "steps": STEPS, "device": "cpu", "settings": settings}
    return comatch.train("digits", out=out, progress=False, **options).path


def finish(cli, run, whole):
    """With room again, the run ends as if nothing had been."""
    resume = ["--resume"] if (run / "config.json").exists() else []
    code, _, err = cli(*WORDS, "--out", run, *resume)
    assert code == 0, err
    for name in RUN:
        assert (run / name).read_bytes() == (whole / name).read_bytes(), name


def assert_stopped(result, why):
    """The last line says why; what a run prints may stand before it."""
    code, _, err = result
    *before, last = err.splitlines()
    assert code == 2, err
    assert last.startswith("error: "), err
    assert why in last
    assert not any("Traceback" in line or line.startswith("error:") for line in before), err


def complete(run):
    """A file is there completely or not at all."""
    assert not list(run.rglob("*.part"))


@pytest.mark.parametrize("room", ROOMS)
def test_train_with_a_limit_of_files(cli, tmp_path, whole, room):
    with largest_file(room):
        result = cli(*WORDS, "--out", "run")
    if result[0]:
        assert_stopped(result, "File too large")
        complete(tmp_path / "run")
        finish(cli, tmp_path / "run", whole)


@pytest.mark.parametrize("room", ROOMS)
def test_train_on_a_full_disk(cli, disk, whole, room):
    disk.resize(room)
    result = cli(*WORDS, "--out", disk.path / "run")
    if result[0]:
        assert_stopped(result, "No space left on device")
        if (disk.path / "run").exists():
            complete(disk.path / "run")
        disk.resize(4000)
        finish(cli, disk.path / "run", whole)


def test_commands_on_a_full_disk(cli, disk, whole, tmp_path):
    make_images(tmp_path / "images", per_class=2, unlabelled=0, test=2)
    run = disk.path / "run"
    assert cli(*WORDS, "--out", run)[0] == 0
    before = {path: path.read_bytes() for path in run.iterdir() if path.is_file()}
    ballast = disk.path / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass
    for words in (
        ["predict", run, tmp_path / "images", "--out", disk.path / "p.csv"],
        ["predict", run, tmp_path / "images", "--out", disk.path / "p.json"],
        ["evaluate", run, "--out", disk.path / "scores"],
        ["evaluate", run, "--folds", 2],
        ["compare", "digits", "--out", disk.path / "c", *COMPARED],
        *([["export", run, "--out", disk.path / "model.pt2"]] if LONG else []),  # it is slow
    ):
        result = cli(*words, "--device", "cpu") if words[0] != "export" else cli(*words)
        assert_stopped(result, "No space left on device")
    assert not [path.name for path in disk.path.rglob("*.part")]
    assert {path: path.read_bytes() for path in before} == before
    ballast.unlink()
    code, _, err = cli("evaluate", run)
    assert code == 0, err


def test_a_folder_that_cannot_be_written(cli, disk, tmp_path):
    make_images(tmp_path / "images", per_class=2, unlabelled=0, test=2)
    run = disk.path / "run"
    assert cli(*WORDS, "--out", run)[0] == 0
    unfinished = disk.path / "unfinished"
    unfinished.mkdir()
    for name in ("config.json", "split.json", "last.pt"):
        (unfinished / name).write_bytes((run / name).read_bytes())
    disk.protect()
    for words in (
        [*WORDS, "--out", disk.path / "new"],
        [*WORDS, "--out", unfinished, "--resume"],
        ["predict", run, tmp_path / "images", "--out", disk.path / "p.csv"],
        ["evaluate", run, "--folds", 2],
        ["evaluate", run, "--out", disk.path / "scores"],
        ["compare", "digits", "--out", disk.path / "c", *COMPARED],
        *([["export", run]] if LONG else []),
    ):
        assert_one_line_error(cli(*words), "ead-only")
    # Reading needs no right to write.
    for words in (
        ["evaluate", run],
        ["report", run],
        ["predict", run, tmp_path / "images", "--out", tmp_path / "p.csv"],
        [*WORDS, "--out", run, "--resume"],
    ):
        code, _, err = cli(*words)
        assert code == 0, err


@pytest.mark.skipif(not hasattr(os, "geteuid") or not os.geteuid(), reason="root may write it")
def test_a_folder_without_the_right_to_write(cli, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine").chmod(0o555)
    assert_one_line_error(cli(*WORDS, "--out", tmp_path / "mine" / "run"), "Permission denied")


@pytest.mark.parametrize("room", range(0, 24, 1 if LONG else 7))
def test_the_feature_cache_on_a_full_disk(tmp_path, room):
    digests = np.random.default_rng(0).integers(1, 2**63, (50, 2), np.int64).astype("<u8")
    features = np.random.default_rng(0).standard_normal((50, 200)).astype(np.float16)
    store = FeatureStore(tmp_path, "net", 200)
    store.append(0, digests[:5], features[:5])
    with largest_file(room), suppress(UserError):
        store.append(0, digests[5:], features[5:])
    for one in (store, FeatureStore(tmp_path, "net", 200)):
        found, there = one.read(0, digests)
        assert there[:5].all(), "what was there is kept"
        assert np.array_equal(found[there], features[there])
    lacking = ~there
    store.append(0, digests[lacking], features[lacking])
    found, there = FeatureStore(tmp_path, "net", 200).read(0, digests)
    assert there.all()
    assert np.array_equal(found, features)
