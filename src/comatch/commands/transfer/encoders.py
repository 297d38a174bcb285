"""The encoders that are evaluated: of a run, of timm, of a file of weights, or random."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from comatch.classifier import load_classifier
from comatch.data.streaming import side_for
from comatch.device import choose_device
from comatch.errors import UserError, shortened
from comatch.nets import Network, build_encoder, pretrained
from comatch.recipes.imagenet import MEAN, STD
from comatch.training.run_folder import RunFolder

RANDOM = "random"
PUBLISHED: dict[str, Any] = {  # the network and the preprocessing of the paper
    "net": "resnet50",
    "stem": "standard",
    "image_size": 224,
    "resize": 256,
    "mean": MEAN,
    "std": STD,
}


@dataclass(frozen=True)
class Encoder:
    """A network and its preprocessing."""

    name: str
    net: Network
    image_size: int
    resize: int  # shorter side before the centre crop
    mean: Tensor  # [3]
    std: Tensor  # [3]
    trained: bool = True

    @property
    def short_name(self) -> str:
        return Path(self.name).name

    def digest(self) -> str:
        """A hash of weights, architecture and preprocessing.

        The architecture is part of it because strides, for example, are not weights.
        """
        encoder, state = self.net.encoder, self.net.encoder.state_dict()
        architecture = f"{self.image_size} {self.resize} {encoder} {list(state)}"
        digest = hashlib.sha256(architecture.encode())
        for tensor in (self.mean, self.std, *state.values()):
            digest.update(tensor.cpu().numpy().tobytes())
        return digest.hexdigest()


def check_exist(names: Sequence[str]) -> None:
    """Called before data is downloaded."""
    for name in names:
        if name != RANDOM and not pretrained.is_timm(name) and not Path(name).exists():
            raise UserError(
                f"{name} does not exist: give run folders, files of weights, "
                f"{pretrained.TIMM}:NAME.TAG or {RANDOM}"
            )


def default_description(names: Sequence[str]) -> dict[str, Any]:
    """Network and preprocessing for files and random weights: those of the first run, if any."""
    runs = [RunFolder(Path(name)) for name in names if Path(name).is_dir()]
    return runs[0].description() if runs and runs[0].model.exists() else PUBLISHED


def load_encoder(name: str, default: dict[str, Any], device: str = "auto") -> Encoder:
    """The encoder of a run folder, a file of weights, `timm:NAME.TAG` or `random`.

    A file and random weights have the network and preprocessing of `default`.
    """
    where = choose_device(device)
    folder = RunFolder(Path(name))
    if Path(name).is_dir() and folder.description().get("pretraining"):
        return load_pretrained(folder, where)
    if Path(name).is_dir():
        run = load_classifier(folder, where)
        return Encoder(name, run.net, run.image_size, run.resize, run.mean, run.std)
    described = describe_timm(name, default["net"]) if pretrained.is_timm(name) else default
    net, size = described["net"], described["image_size"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = Network(build_encoder(net, size, described["stem"]), classes=1)
    if pretrained.is_timm(name):
        weights, name = pretrained.read_timm(name, net, size)
        require_whole(pretrained.fill(network, weights, name))
    elif name != RANDOM:
        require_whole(pretrained.fill(network, pretrained.read_file(Path(name)), name))
    mean, std = (torch.tensor(described[key], device=where) for key in ("mean", "std"))
    resize, trained = described.get("resize", size), name != RANDOM
    name = name if trained else f"{RANDOM} {net}"  # so that two nets have results of their own
    return Encoder(name, network.to(where), size, resize, mean, std, trained)


def load_pretrained(folder: RunFolder, where: torch.device) -> Encoder:
    """The encoder of a run without labels, whose network has no classifier."""
    described, name = folder.description(), str(folder.path)
    size = described["image_size"]
    with torch.random.fork_rng(devices=[]):
        encoder = build_encoder(described["net"], size, described["stem"])
        network = Network(encoder, classes=1)
    require_whole(pretrained.fill(network, folder.read_weights(), name))
    mean, std = (torch.tensor(described[key], device=where) for key in ("mean", "std"))
    return Encoder(name, network.to(where), size, described["resize"], mean, std)


def describe_timm(name: str, default_net: str) -> dict[str, Any]:
    """Network and preprocessing of timm's weights. `read_timm` reports an unknown name."""
    full_name = pretrained.name_of(name, default_net)
    config = pretrained.seen_by_timm(full_name)
    described = PUBLISHED | {"net": full_name.split(".")[0]}
    if config is None:
        return described
    size = config.input_size[-1]
    return described | {
        "image_size": size,
        "resize": side_for(size),
        "mean": config.mean,
        "std": config.std,
    }


def require_whole(loaded: pretrained.Loaded) -> None:
    """Raise an error if some weights are missing: the encoder is not trained any more."""
    if loaded.left_out:
        raise UserError(f"{loaded.source} is no whole encoder: {shortened(loaded.left_out)}")
