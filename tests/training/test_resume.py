"""A run that is stopped or killed and then resumed ends bit-identical to an uninterrupted one."""

import json
import math
import signal
import time

import pytest
import torch

import comatch
from comatch import methods
from comatch.training import loop, state
from helpers import (
    TINY_WORDS,
    VARIANTS,
    assert_one_line_error,
    assert_same,
    interrupt_at,
    settings_for,
    start,
)

pytestmark = pytest.mark.slow

STEPS = 24


def train_words(out):
    words = ["train", "digits", "--labels", 20, "--steps", STEPS, "--device", "cpu", "--seed", 3]
    return [*words, "--set", "validation=20", *TINY_WORDS, "--out", out]


def run_until(process, file, lines):
    """Wait until metrics.jsonl has this many lines."""
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if file.exists() and file.read_bytes().count(b"\n") >= lines:
            return
        time.sleep(0.005)
    assert process.poll() is None, process.communicate()


def state_of(folder):
    saved = torch.load(folder / "last.pt", weights_only=True)
    return {key: value for key, value in saved.items() if key != "seconds"}


def test_a_killed_run_resumes_bit_exactly(tmp_path):
    whole = start(*train_words("whole"), cwd=tmp_path)
    _, err = whole.communicate(timeout=300)
    assert whole.returncode == 0, err

    journal = tmp_path / "broken" / "metrics.jsonl"
    # Killed after the first lines, stopped by Ctrl-C in the middle, killed again near the end.
    for lines, number, code in ((1, signal.SIGKILL, -9), (5, signal.SIGINT, 130), (11, 9, -9)):
        more = ["--resume"] if journal.exists() else []
        process = start(*train_words("broken"), *more, cwd=tmp_path)
        run_until(process, journal, lines)
        process.send_signal(number)
        _, err = process.communicate(timeout=120)
        assert process.returncode == code, err
        assert not (tmp_path / "broken" / "summary.json").exists()
        if number == signal.SIGINT:
            assert "everything up to there is saved" in err
            assert "--out broken" in err
            assert "--resume" in err
    # The command that the interrupted run printed:
    last = start("train", "--out", "broken", "--resume", cwd=tmp_path)
    _, err = last.communicate(timeout=300)
    assert last.returncode == 0, err

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for name in ("model.safetensors", "model.json", "metrics.jsonl", "split.json", "config.json"):
        assert (whole / name).read_bytes() == (broken / name).read_bytes(), name
    assert_same(state_of(whole), state_of(broken))
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (whole, broken)]
    for summary in summaries:
        del summary["seconds"], summary["peak_memory_mb"]
    assert summaries[0] == summaries[1]
    assert len(json.loads((broken / "environment.json").read_text())["sessions"]) == 4


def test_stopping_between_two_log_points_keeps_the_metrics(tmp_path, tiny, monkeypatch):
    """The sums of the unfinished interval are part of the checkpoint."""
    options = {"labels": 20, "steps": 6, "device": "cpu", "progress": False}
    settings = {**tiny, "log_every": 4, "checkpoint_every": 100}
    comatch.train("digits", **options, out=tmp_path / "whole", settings=settings)

    with monkeypatch.context() as patch:
        interrupt_at(patch, 3)
        with pytest.raises(loop.Interrupted) as stopped:
            comatch.train("digits", **options, out=tmp_path / "broken", settings=settings)
    assert stopped.value.step == 3
    comatch.train("digits", **options, out=tmp_path / "broken", settings=settings, resume=True)
    for name in ("metrics.jsonl", "model.safetensors"):
        whole, broken = ((tmp_path / run / name).read_bytes() for run in ("whole", "broken"))
        assert whole == broken, name


def test_resuming_a_finished_run_returns_it(tmp_path, tiny):
    options = {"labels": 20, "steps": 2, "out": tmp_path / "run", "progress": False}
    first = comatch.train("digits", **options, settings=tiny)
    again = comatch.train("digits", **options, settings=tiny, resume=True)
    assert first.summary == again.summary


@pytest.mark.parametrize("left", [["config.json.part"], ["config.json"]])
def test_killed_before_the_first_step(tmp_path, tiny, left):
    """--resume works with whatever a kill leaves in a new run folder."""
    options = {"labels": 20, "steps": 2, "progress": False, "settings": tiny}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    comatch.train("digits", **options, out=whole)
    killed.mkdir()
    for name in left:
        (killed / name).write_bytes((whole / name.removesuffix(".part")).read_bytes())
    comatch.train("digits", **options, out=killed, resume=True)
    for name in ("split.json", "model.safetensors", "metrics.jsonl"):
        assert (whole / name).read_bytes() == (killed / name).read_bytes()


def test_resume_never_starts_another_run(tmp_path, cli, tiny):
    comatch.train("digits", labels=20, steps=2, settings=tiny, progress=False, out="mine")
    (tmp_path / "empty").mkdir()
    for words in (["--out", "mime"], ["--out", "empty"], ["digits", "--out", "mime"], ["digits"]):
        result = cli("train", *words, "--resume")
        assert_one_line_error(result, "there is no run to continue")
        if "mime" in words:
            assert_one_line_error(result, "did you mean mine?")
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "empty"}


def test_more_steps_name_another_way(tmp_path, cli, tiny):
    comatch.train("digits", labels=20, steps=2, settings=tiny, progress=False, out="mine")
    result = cli("train", "--out", "mine", "--resume", "--steps", 9)
    assert_one_line_error(result, "mine is a run of 2 steps", "--init mine")


@pytest.mark.parametrize("method", [name for name in methods.METHODS if name != "distill"])
def test_every_method_resumes_exactly(tmp_path, monkeypatch, method):
    check_resume(tmp_path, settings_for(method), monkeypatch, method)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_resumes_exactly(tmp_path, tiny, monkeypatch, variant):
    check_resume(tmp_path, {**tiny, **VARIANTS[variant]}, monkeypatch, "comatch")


def check_resume(tmp_path, settings, monkeypatch, method):
    """Stop after a checkpoint and resume: the end is that of an uninterrupted run, all finite."""
    options = {"labels": 20, "steps": 6, "method": method, "device": "cpu", "progress": False}

    def train(out, resume=False):
        run = comatch.train(
            "digits", out=tmp_path / out, settings=settings, resume=resume, **options
        )
        return run.path

    whole = train("whole")
    save = state.save

    def stop(folder, run, step, *rest):
        save(folder, run, step, *rest)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(state, "save", stop)
        with pytest.raises(KeyboardInterrupt):
            train("parts")
    assert 0 < state_of(tmp_path / "parts")["step"] < 6
    parts = train("parts", resume=True)
    assert_same(state_of(whole), state_of(parts))
    lines = [(path / "metrics.jsonl").read_text() for path in (whole, parts)]
    assert lines[0] == lines[1]
    for line in map(json.loads, lines[0].splitlines()):
        assert all(math.isfinite(value) for key, value in line.items() if key != "kind")
