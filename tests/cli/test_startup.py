"""What needs no PyTorch does not load it: it takes seconds."""

import os
import subprocess
import sys

import pytest
from rich.console import Console

from comatch.cli import console
from comatch.data import names
from comatch.data.sources import SOURCES

PROGRAM = """
import sys
from comatch.cli import main
try:
    main()
finally:
    loaded = [name for name in ("torch", "matplotlib", "sklearn") if name in sys.modules]
    print("loaded:", *loaded)
"""


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], 2),  # the help
        (["--help"], 0),
        (["train", "--help"], 0),
        (["reproduce", "table1", "--help"], 0),
        (["methods"], 0),
        (["recipes"], 0),
        (["report", "run"], 0),
        (["train", "--nothing"], 2),
        (["train", "--steps", "many"], 2),
        (["train", "--labels", "few"], 2),
        (["train", "nowhere"], 2),
        (["train", "--recipe", "cifar"], 2),
        (["train", "--method", "comach"], 2),
        (["compare", "nowhere"], 2),
        (["evaluate", "nowhere"], 2),
        (["predict", "nowhere", "image.png"], 2),
        (["predict", "run", "nowhere.png"], 2),
        (["export", "nowhere"], 2),
        (["serve", "nowhere"], 2),
        (["serve", "run", "--host", "0.0.0.0"], 2),
        (["push", "run", "name"], 2),
        (["report", "nowhere"], 2),
    ],
)
def test_torch_is_not_loaded(trained, words, code):
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], cwd=trained, capture_output=True, text=True
    )
    assert run.returncode == code, run.stderr
    assert run.stdout.splitlines()[-1] == "loaded:"


def test_import_comatch_does_not_load_torch():
    code = "import comatch, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_names_of_data_sets_are_complete():
    assert set(names.DATA_SETS) == set(SOURCES)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_shows_that_torch_is_loading(monkeypatch, terminal):
    with open(os.devnull, "w") as file:
        screen = Console(file=file, force_terminal=terminal, record=True)
        monkeypatch.setattr(console, "err", screen)
        monkeypatch.delitem(sys.modules, "torch")
        with console.loading_torch():
            pass
    assert ("loading PyTorch" in screen.export_text()) == terminal
