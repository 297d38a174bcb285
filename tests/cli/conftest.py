"""A tiny run that the tests of several commands share."""

import shutil

import pytest

import comatch
from helpers import TINY, make_images


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A folder with `images` and a `run` trained on them. No test changes it."""
    folder = tmp_path_factory.mktemp("trained")
    options = {"steps": 2, "device": "cpu", "settings": {**TINY, "mu": 1}, "progress": False}
    comatch.train(make_images(folder / "images"), out=folder / "run", **options)
    return folder


@pytest.fixture
def run(trained, tmp_path):
    """A copy of that run, which a test may change."""
    return shutil.copytree(trained / "run", tmp_path / "run")
