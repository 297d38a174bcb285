"""Runs that are built but not trained."""

import pytest
import torch

from comatch import recipes
from comatch.config import replace
from comatch.data import splits
from comatch.planning import load_dataset
from comatch.training.build import build
from helpers import settings_for


@pytest.fixture
def build_run(tmp_path):
    """A function that builds a run on digits, ready for its first step."""

    def make(device="cpu", method="comatch", **settings):
        settings = {**settings_for(method), "labels": 20, **settings}
        recipe = replace(recipes.get("digits", method), **settings)
        torch.manual_seed(recipe.seed)
        dataset = load_dataset(recipe.dataset, recipe.streaming, tmp_path, progress=False)
        split = splits.make(dataset, recipe.dataset, recipe.split_seed)
        return build(recipe, dataset, split, torch.device(device))

    return make
