"""The network of a finished run, and such a network as the teacher of another run."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from comatch import files
from comatch.errors import UserError
from comatch.methods.distill import Distill
from comatch.nets import Network, build_encoder
from comatch.nets.frozen import build_frozen, build_frozen_0_1
from comatch.nets.heads import WithHead
from comatch.nets.network import width_of
from comatch.training.recipe import Recipe
from comatch.training.run_folder import RunFolder


def load_network(folder: RunFolder) -> Network:
    """The network of a run folder of any version. Nothing in the folder is executed."""
    weights, described = folder.read_weights(), folder.description()
    if described.get("pretraining"):
        raise UserError(
            f"{folder.path} was pre-trained without labels and has no classifier: "
            f"comatch train DATA --init {folder.path} trains one"
        )
    with files.expecting(folder.model):
        net, weights = build_network(described, weights)
    try:
        net.load_state_dict(weights)
    except RuntimeError:
        raise UserError(
            f"{folder.weights} does not fit {folder.model}: damaged run folder"
        ) from None
    return net


def build_network(
    described: dict[str, Any], weights: dict[str, Tensor]
) -> tuple[Network, dict[str, Tensor]]:
    """The network of a description, and the weights as it names them."""
    encoder = build_encoder(described["net"], described["image_size"], described["stem"])
    if layers := described.get("head_layers", 0):
        encoder = WithHead(encoder, width_of(encoder), layers)
    activation = described.get("head_activation", "leaky_relu")
    heads = len(described["classes"]), described["embedding_dim"]
    if components := described.get("components", 0):
        return build_frozen(encoder, components, *heads, activation), weights
    if described.get("frozen", False):
        return build_frozen_0_1(encoder, weights, *heads)
    return Network(encoder, *heads, activation), weights


def give_teacher(method: Distill, recipe: Recipe, classes: list[str]) -> None:
    """Load the teacher, which must know the same classes and see images of the same size."""
    path = recipe.method.teacher  # type: ignore[attr-defined]
    if path is None:
        return
    folder = RunFolder(Path(path))
    described, size = folder.description(), recipe.dataset.image_size
    if described["classes"] and described["classes"] != classes:
        raise UserError(
            f"the teacher {path} has other classes than these data "
            f"({len(described['classes'])}: {', '.join(described['classes'][:3])}, ...): give "
            "another --teacher"
        )
    if described["image_size"] != size:
        raise UserError(
            f"the teacher {path} sees images of {described['image_size']} pixels: use "
            f"--set image_size={described['image_size']}, or another --teacher"
        )
    with torch.random.fork_rng(devices=[]):  # keep the random state of the run
        net = load_network(folder)
    mean, std = (torch.tensor(described[key]) for key in ("mean", "std"))
    method.learn_from(net, mean, std)
