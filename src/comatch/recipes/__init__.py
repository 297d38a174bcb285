"""Recipes: the settings for a data set, one function each.

A function takes the name of a method and returns a `Recipe`. Its docstring gives the command, the
cost and the result. To add a recipe, write a function and add it to `RECIPES`.
"""

import ast
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from comatch.config import check_name

if TYPE_CHECKING:
    from comatch.training.recipe import Recipe

# Module and function by name. The modules load PyTorch, so they are imported when one is used.
RECIPES = {
    "digits": ("digits", "digits"),
    "cifar10": ("cifar10", "cifar10"),
    "cifar10-fast": ("cifar10", "cifar10_fast"),
    "stl10": ("stl10", "stl10"),
    "photos": ("folder", "photos"),
    "folder": ("folder", "folder"),
    "folder-gpu": ("folder", "folder_gpu"),
    "imagenet-1pct": ("imagenet", "imagenet_1pct"),
    "imagenet-10pct": ("imagenet", "imagenet_10pct"),
    "tiny-imagenet": ("imagenet", "tiny_imagenet"),
}
PRETRAINING = {  # for `comatch pretrain`
    "pretrain-digits": ("pretraining", "digits"),
    "pretrain-cifar10": ("pretraining", "cifar10"),
    "pretrain-folder": ("pretraining", "folder"),
    "pretrain-folder-gpu": ("pretraining", "folder_gpu"),
    "pretrain-tiny-imagenet": ("pretraining", "tiny_imagenet"),
    "pretrain-imagenet": ("pretraining", "imagenet"),
}
ALL = RECIPES | PRETRAINING
ENCODED = "photos"  # the recipe for features of a frozen encoder
FOR_FOLDERS = ("folder", "folder-gpu")  # those for a folder of images without one
MANY_CLASSES = ("imagenet-1pct", "imagenet-10pct", "tiny-imagenet")


def get(name: str, method: str | None = None) -> "Recipe":
    """The recipe for a method; by default CoMatch, with many classes its momentum form.

    The default for pre-training is SimCLR.
    """
    check_name(name, ALL, "recipe")
    module, function = ALL[name]
    default = "comatch_momentum" if name in MANY_CLASSES else "comatch"
    if name in PRETRAINING:
        default = "simclr"
    make: Callable[[str], Recipe] = getattr(
        importlib.import_module(f"comatch.recipes.{module}"), function
    )
    return make(method or default)


def default_for(data: str, gpu: bool, pretraining: bool = False) -> str:
    """The recipe called like the data set, or that for a folder of images."""
    if pretraining:
        own = f"pretrain-{data}"
        return own if own in PRETRAINING else f"pretrain-{default_for('', gpu)}"
    if data in RECIPES:
        return data
    return "folder-gpu" if gpu else "folder"


def descriptions() -> dict[str, str]:
    """The docstring of every recipe, read without importing the modules."""
    found = {}
    for name, (module, function) in ALL.items():
        tree = ast.parse(Path(__file__).with_name(f"{module}.py").read_text())
        body = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        found[name] = ast.get_docstring(body[function]) or ""
    return found
