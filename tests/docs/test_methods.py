"""Every method has a page: its metrics are those that it logs, its steps those of the recipes."""

import dataclasses
import re

import pytest
import torch
from doc_tables import ROOT

from comatch import methods, recipes
from comatch.config import settings_of
from comatch.nets import WideResNet
from comatch.types import Batch, Task
from helpers import SMALL

PAGES = ROOT / "docs" / "explanation" / "methods"


def row(name):
    """The row of a method in the table of all methods."""
    cifar10, stl10 = recipes.get("cifar10", name), recipes.get("stl10", name)
    usual, own, other = methods.config(name), cifar10.method, stl10.method
    unlike = []
    for key in settings_of(usual):
        before, here, there = (getattr(config, key) for config in (usual, own, other))
        unlike += [f"`{key}={here:g}`"] if here != before else []
        unlike += [f"`{key}={there:g}` on STL-10"] if there != here else []
    assert (stl10.optim.steps, stl10.optim.mu) == (cifar10.optim.steps, cifar10.optim.mu)
    mu = cifar10.optim.mu if methods.METHODS[name].views else ""
    return f"| [{name}]({name}.md) | {cifar10.optim.steps:,} | {mu} | {', '.join(unlike)} |"


def test_the_table_of_methods_has_the_values_of_the_recipes():
    lines = (PAGES / "index.md").read_text().splitlines()
    assert [line for line in lines if line.startswith("| [")] == list(map(row, methods.METHODS))
    assert {page.stem for page in PAGES.glob("*.md")} == {"index", "estimators", *methods.METHODS}
    without_labels = {page.stem for page in (PAGES / "pretraining").glob("*.md")}
    assert without_labels == {"index", *methods.PRETRAINING}


@pytest.mark.parametrize("name", [*methods.METHODS, *methods.PRETRAINING])
def test_a_page_lists_the_metrics_of_its_method(name):
    method = methods.find(name)
    folder = PAGES if method.uses_labels else PAGES / "pretraining"
    page = (folder / f"{name}.md").read_text()
    built = dataclasses.replace(methods.config(name), **SMALL.get(name, {}))
    built = methods.build(built, WideResNet(10, 1), Task(3, unlabelled=8))
    torch.manual_seed(0)
    batch = Batch(
        torch.randn(4, 3, 8, 8),
        torch.tensor([0, 1, 2, 0]),
        tuple(torch.randn(8, 3, 8, 8) for _ in built.views),
        torch.arange(8),
    )
    step = built(batch)
    logged = set(step.metrics)
    if step.pseudo_labels is not None:
        logged |= {"confident", "pseudo_accuracy"}  # which the training step adds
    listed = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    only_with_a_setting = {"mean_confidence"} if name == "comatch" else set()
    assert listed - only_with_a_setting == logged - {"loss"}
