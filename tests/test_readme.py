"""Every command in the README runs as written."""

import re
import shlex
import sys
from pathlib import Path

import pytest
import timm

import comatch
from helpers import make_images, write_cifar10

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder with the images and the data that the README speaks of."""
    make_images(tmp_path / "images", unlabelled=110)
    write_cifar10(tmp_path / "data", per_batch=100)
    create = timm.create_model  # where weights would be downloaded, they are random
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained=False, **o: create(name, **o))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_commands_run_as_written(workplace, cli):
    """Only the number of steps and of seeds is cut, where a command trains, and tables of many runs
    are filled with what is there."""
    lines = [line.split("#")[0].strip() for block in blocks("bash") for line in block.splitlines()]
    commands = [shlex.split(line) for line in lines if line.startswith("comatch ")]
    assert len(commands) >= 9
    for _, command, *words in commands:
        if command in ("train", "compare") and "--resume" not in words:
            words = [{"3000": "2", "0,1,2": "0"}.get(word, word) for word in words]
            words += [] if "--steps" in words else ["--steps", "2"]
        if command == "reproduce" and words[0] != "curves":
            words += ["--no-train"]  # test_reproduce trains
        code, _, err = cli(command, *words)
        assert code == 0, f"comatch {command} {words}: {err}"
    assert (workplace / "predictions.csv").read_text().count("\n") == 111


def test_make_has_the_two_commands():
    makefile = (ROOT / "Makefile").read_text()
    for line in blocks("bash")[0].splitlines():
        target = line.split("#")[0].split()[1]
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_python_runs_as_written(workplace, monkeypatch, capsys):
    from comatch import api

    train = api.train
    monkeypatch.setattr(api, "train", lambda *a, **k: train(*a, **k, steps=2, progress=False))
    (code,) = blocks("python")
    exec(code, {"__name__": "readme"})
    assert capsys.readouterr().out.count("tensor") == 1


def test_version_is_said_once():
    assert f'version = "{comatch.__version__}"' in (ROOT / "pyproject.toml").read_text()
    assert sys.version_info >= (3, 11)
