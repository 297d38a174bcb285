"""The weights that a run begins with, where they are not random: the setting `init`."""

from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from comatch.config import Recipe
from comatch.errors import UserError
from comatch.methods import Method
from comatch.nets import pretrained
from comatch.nets.pretrained import Loaded
from comatch.training.folder import RunFolder


class Weights(NamedTuple):
    tensors: dict[str, Tensor]
    source: str  # to be named in the report
    classes: list[str] | None = None  # that the classifier is for, if that is known


def begin_from(method: Method, recipe: Recipe, classes: list[str]) -> Loaded | None:
    """Fills the method's network, and the averaged copy with it, as the recipe says."""
    if recipe.init is None:
        return None
    weights = read(recipe.init, recipe)
    same = weights.classes == classes
    loaded = pretrained.fill(method.net, weights.tensors, weights.source, classifier=same)
    method.ema.net.load_state_dict(method.net.state_dict())
    return loaded


def check_there(init: str | None) -> None:
    """Told at once: reading the data may take long."""
    if init is not None and not pretrained.is_timm(init) and not Path(init).exists():
        raise UserError(
            f"{init} does not exist: --init takes a run folder, a file of weights, or timm"
        )


def read(init: str, recipe: Recipe) -> Weights:
    if pretrained.is_timm(init):
        return Weights(*pretrained.read_timm(init, recipe.net, recipe.image_size))
    check_there(init)
    if Path(init).is_dir():
        return read_run(RunFolder(Path(init)), recipe)
    return Weights(pretrained.read_file(Path(init)), init)


def read_run(folder: RunFolder, recipe: Recipe) -> Weights:
    """The network that a run tests and ships; it must be of the same kind."""
    if not folder.model.exists() and not folder.split.exists():
        raise UserError(f"{folder.path} is no run folder: name the file of weights in it")
    weights, described = folder.read_weights(), folder.description()
    if described["net"] != recipe.net:
        raise UserError(
            f"{folder.path} has net={described['net']} and this run net={recipe.net}: "
            f"use --set net={described['net']}, or another --init"
        )
    return Weights(weights, str(folder.path), described["classes"])
