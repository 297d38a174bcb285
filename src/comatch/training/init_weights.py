"""The weights that a run begins with, where they are not random: the setting `init`."""

from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from comatch.config import Recipe
from comatch.errors import UserError
from comatch.methods import Method
from comatch.nets import is_wide, pretrained
from comatch.nets.pretrained import Loaded
from comatch.training.run_folder import RunFolder


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


def colours(init: str, net: str) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Channel means and deviations that the weights are used to, if that is known.

    A file does not tell: those that timm has for such a net are taken.
    """
    run = RunFolder(Path(init))
    if run.model.exists():
        described = run.description()
        return tuple(described["mean"]), tuple(described["std"])
    if is_wide(net):  # which timm does not have
        return None
    name = pretrained.name_of(init, net) if pretrained.is_timm(init) else net
    seen = pretrained.seen_by_timm(name)
    return None if seen is None else (tuple(seen.mean), tuple(seen.std))


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
