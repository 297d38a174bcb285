"""A command line in the same process, and pictures made on the spot."""

import sys

import pytest
import torch

from helpers import TINY, make_pictures


def pytest_collection_modifyitems(items):
    if not torch.cuda.is_available():
        skip = pytest.mark.skip(reason="needs a CUDA GPU")
        for item in items:
            if "cuda" in item.keywords:
                item.add_marker(skip)


@pytest.fixture
def tiny():
    return dict(TINY)


@pytest.fixture
def cli(monkeypatch, capsys, tmp_path):
    """Runs `comatch WORDS` in a fresh folder: exit code, what it printed, what it complained."""
    from comatch.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["comatch", *map(str, words)])
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.fixture
def pictures(tmp_path):
    return make_pictures(tmp_path / "pictures")
