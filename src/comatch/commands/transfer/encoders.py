"""The networks that are compared: of runs, of timm, of files, and one that has learned nothing."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from comatch import api
from comatch.data.streaming import side_for
from comatch.errors import UserError, shortened
from comatch.nets import Network, build_encoder, pretrained
from comatch.recipes.imagenet import MEAN, STD
from comatch.training.run_folder import RunFolder

RANDOM = "random"
USUAL: dict[str, Any] = {  # as the paper has it
    "net": "resnet50",
    "stem": "standard",
    "image_size": 224,
    "resize": 256,
    "mean": MEAN,
    "std": STD,
}


@dataclass(frozen=True)
class Encoder:
    """A network, and how it wants to see an image."""

    name: str
    net: Network
    image_size: int
    side: int  # of the square whose middle is seen
    mean: Tensor  # [3]
    std: Tensor  # [3]
    learned: bool = True  # or it is as it was initialised

    @property
    def short(self) -> str:
        return Path(self.name).name

    def digest(self) -> str:
        """Two encoders that differ in anything have another one.

        Strides and the like are no weights, so how it is built counts too.
        """
        encoder, state = self.net.encoder, self.net.encoder.state_dict()
        built = f"{self.image_size} {self.side} {encoder} {list(state)}"
        everything = hashlib.sha256(built.encode())
        for tensor in (self.mean, self.std, *state.values()):
            everything.update(tensor.cpu().numpy().tobytes())
        return everything.hexdigest()


def check_there(names: Sequence[str]) -> None:
    """Told at once: data may have to be downloaded first."""
    for name in names:
        if name != RANDOM and not pretrained.is_timm(name) and not Path(name).exists():
            raise UserError(
                f"{name} does not exist: give run folders, files of weights, "
                f"{pretrained.TIMM}:NAME.TAG or {RANDOM}"
            )


def like_the_first(names: Sequence[str]) -> dict[str, Any]:
    """What no run is does not say how it sees images: as the first run does, or the paper."""
    runs = [RunFolder(Path(name)) for name in names if Path(name).is_dir()]
    return runs[0].description() if runs and runs[0].model.exists() else USUAL


def read(name: str, like: dict[str, Any], device: str = "auto") -> Encoder:
    """A run folder, a file of weights for a network as described, `timm:NAME.TAG`, or `random`."""
    if Path(name).is_dir():
        run = api.load(name, device)
        return Encoder(name, run.net, run.image_size, run.resize, run.mean, run.std)
    described = of_timm(name, like["net"]) if pretrained.is_timm(name) else like
    net, size = described["net"], described["image_size"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = Network(build_encoder(net, size, described["stem"]), classes=1)
    if pretrained.is_timm(name):
        weights, name = pretrained.read_timm(name, net, size)
        whole(pretrained.fill(network, weights, name))
    elif name != RANDOM:
        whole(pretrained.fill(network, pretrained.read_file(Path(name)), name))
    where = api.choose_device(device)
    mean, std = (torch.tensor(described[key], device=where) for key in ("mean", "std"))
    side, learned = described.get("resize", size), name != RANDOM
    name = name if learned else f"{RANDOM} {net}"  # of two kinds, each has its figures
    return Encoder(name, network.to(where), size, side, mean, std, learned)


def of_timm(name: str, usual: str) -> dict[str, Any]:
    """How a network of timm's wants to see images; what timm does not know is told later."""
    full = pretrained.name_of(name, usual)
    known = pretrained.seen_by_timm(full)
    described = USUAL | {"net": full.split(".")[0]}
    if known is None:
        return described
    size = known.input_size[-1]
    return described | {
        "image_size": size,
        "resize": side_for(size),
        "mean": known.mean,
        "std": known.std,
    }


def whole(loaded: pretrained.Loaded) -> None:
    """Of a network that is random in part, nothing would be learned here."""
    if loaded.left_out:
        raise UserError(f"{loaded.source} is no whole encoder: {shortened(loaded.left_out)}")
