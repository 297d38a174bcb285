"""Initial weights that are not random: the setting `init`."""

from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from comatch.errors import UserError
from comatch.nets import Network, is_wide, pretrained
from comatch.nets.config import ModelConfig
from comatch.nets.heads import with_head
from comatch.nets.network import Embedder
from comatch.nets.pretrained import Loaded
from comatch.training.run_folder import RunFolder


class Weights(NamedTuple):
    tensors: dict[str, Tensor]
    source: str  # for the report of what was loaded
    classes: list[str] | None = None  # of the classifier, if they are known


def load_initial(
    net: Network | Embedder, model: ModelConfig, image_size: int, classes: list[str]
) -> Loaded | None:
    """Load `init` into a network, if it is set."""
    if model.init is None:
        return None
    weights = read_weights(model.init, model.net, image_size)
    if layers := model.init_head_layers:
        weights = weights._replace(tensors=with_head(weights.tensors, layers))
    asked = model.init_classifier
    same = weights.classes == classes or (asked and weights.classes is None)
    loaded = pretrained.fill(net, weights.tensors, weights.source, classifier=same)
    if model.init_head_layers and loaded.left_out:
        raise UserError(
            f"init_head_layers={model.init_head_layers}: {weights.source} has no SimCLR head of "
            "more layers: pre-train with --method simclr --set head_layers=3"
        )
    if asked and loaded.heads["classifier"] != "loaded":
        raise UserError(
            f"init_classifier=yes: {weights.source} has no classifier for the {len(classes)} "
            f"classes of these data: classifier {loaded.heads['classifier']}"
        )
    return loaded


def channel_statistics(init: str, net: str) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Channel means and deviations that the weights were trained with, if they are known.

    A file does not record them: those of timm's default weights for the net are taken.
    """
    run = RunFolder(Path(init))
    if run.model.exists():
        described = run.description()
        return tuple(described["mean"]), tuple(described["std"])
    if is_wide(net):  # timm has none
        return None
    name = pretrained.name_of(init, net) if pretrained.is_timm(init) else net
    seen = pretrained.seen_by_timm(name)
    return None if seen is None else (tuple(seen.mean), tuple(seen.std))


def check_exists(init: str | None) -> None:
    """Called before the data is read, which may take long."""
    if init is not None and not pretrained.is_timm(init) and not Path(init).exists():
        raise UserError(
            f"{init} does not exist: --init takes a run folder, a file of weights, or timm"
        )


def check_available(model: ModelConfig) -> None:
    """Called before the data is read: the initial weights exist, or can be downloaded."""
    if model.init is not None and pretrained.is_timm(model.init):
        pretrained.check_timm(model.init, model.net)
    check_exists(model.init)


def read_weights(init: str, net: str, image_size: int) -> Weights:
    if pretrained.is_timm(init):
        return Weights(*pretrained.read_timm(init, net, image_size))
    check_exists(init)
    if Path(init).is_dir():
        return read_run(RunFolder(Path(init)), net)
    return Weights(pretrained.read_file(Path(init)), init)


def read_run(folder: RunFolder, net: str) -> Weights:
    """The weights of a finished run, whose network must be of the same kind."""
    if not folder.model.exists() and not folder.split.exists():
        raise UserError(f"{folder.path} is no run folder: name the file of weights in it")
    weights, described = folder.read_weights(), folder.description()
    if described["net"] != net:
        raise UserError(
            f"{folder.path} has net={described['net']} and this run net={net}: "
            f"use --set net={described['net']}, or another --init"
        )
    return Weights(weights, str(folder.path), described["classes"])
