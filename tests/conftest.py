"""Fixtures that all tests share: the command line in this process, and a small folder of images."""

import os
import sys

# Before torch is imported. The networks of the tests are too small to gain from several threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["COLUMNS"] = "200"  # of the terminal; read when comatch.cli is imported
os.environ["HF_HUB_OFFLINE"] = "1"  # no test depends on what the model hub answers
os.environ["HF_HUB_CACHE"] = "/nowhere/hub"  # or on what was downloaded before

import torch

# Without a GPU, Triton interprets its kernels on the CPU. This must come before all other imports:
# comatch imports Triton, which reads it then.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

import pytest

from helpers import TINY, make_images, settings_for

torch.set_num_threads(1)  # tiny nets are slower with more, above all beside other processes


def pytest_collection_modifyitems(config, items):
    if "browser" not in config.option.markexpr:
        skip = pytest.mark.skip(reason="needs a browser: make browser")
        for item in items:
            if "browser" in item.keywords:
                item.add_marker(skip)
    if not torch.cuda.is_available():
        skip = pytest.mark.skip(reason="needs a CUDA GPU")
        for item in items:
            if "cuda" in item.keywords:
                item.add_marker(skip)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request):
    """Where kernels run: on the GPU, or interpreted on the CPU."""
    if request.param == "cpu":
        request.getfixturevalue("interpreter")
    return request.param


@pytest.fixture
def interpreter(monkeypatch):
    """Triton's interpreter. That of Triton 3.6 needs `__index__`, since NumPy 2.4."""
    if torch.cuda.is_available():
        pytest.skip("the kernels are compiled for the GPU")
    interpreter = pytest.importorskip("triton.runtime.interpreter", reason="needs Triton")
    patch_tensor = interpreter._patch_lang_tensor

    def patch_more(tensor, *scopes):  # none before Triton 3.6
        patch_tensor(tensor, *scopes)
        for scope in scopes:
            scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch_more)


@pytest.fixture(autouse=True)
def own_feature_cache(tmp_path_factory, monkeypatch):
    """Each test has a feature cache of its own."""
    root = tmp_path_factory.mktemp("features")
    monkeypatch.setattr("comatch.data.feature_store.default_root", lambda: root)
    return root


@pytest.fixture
def tiny():
    return dict(TINY)


@pytest.fixture
def cli(monkeypatch, capsys, tmp_path):
    """Run `comatch WORDS` in a new folder; return exit code, stdout and stderr."""
    from comatch.cli import main

    monkeypatch.chdir(tmp_path)

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


@pytest.fixture
def build_run(tmp_path):
    """A function that builds a run on digits, ready for its first step."""
    from comatch import recipes
    from comatch.config import replace
    from comatch.data import splits
    from comatch.planning import load_dataset
    from comatch.training.build import build

    def make(device="cpu", method="comatch", **settings):
        settings = {**settings_for(method), "labels": 20, **settings}
        recipe = replace(recipes.get("digits", method), **settings)
        torch.manual_seed(recipe.seed)
        dataset = load_dataset(recipe.reading, tmp_path, progress=False)
        split = splits.make(dataset, recipe.dataset, recipe.split_seed)
        return build(recipe, dataset, split, torch.device(device))

    return make
