"""A command line in the same process, and images made on the spot."""

import os
import sys

import pytest
import torch

from helpers import TINY, make_images

# Without a GPU, Triton interprets its kernels on the CPU: to be said before Triton is imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_modifyitems(items):
    if not torch.cuda.is_available():
        skip = pytest.mark.skip(reason="needs a CUDA GPU")
        for item in items:
            if "cuda" in item.keywords:
                item.add_marker(skip)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request):
    """Where the kernels run: interpreted on the CPU or, where there is a GPU, really."""
    if request.param == "cpu":
        request.getfixturevalue("interpreter")
    return request.param


@pytest.fixture
def interpreter(monkeypatch):
    """The kernels run on the CPU. Triton 3.6 does there what NumPy 2.4 no longer has: mended."""
    if torch.cuda.is_available():
        pytest.skip("the kernels are compiled for the GPU")
    interpreter = pytest.importorskip("triton.runtime.interpreter", reason="needs Triton")
    teach = interpreter._patch_lang_tensor

    def teach_more(tensor, scope):
        teach(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", teach_more)


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
def images(tmp_path):
    return make_images(tmp_path / "images")
