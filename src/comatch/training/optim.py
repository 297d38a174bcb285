"""The optimiser: SGD with Nesterov momentum as in the paper, Muon, or LARS for large batches."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from comatch.config import Config, require, setting
from comatch.methods import Method
from comatch.training.lars import Lars
from comatch.training.muon import Muon
from comatch.training.schedules import SCHEDULES

NORMS = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm)


@dataclass(frozen=True)
class OptimConfig(Config):
    """How the network is optimised."""

    batch: int = setting(64, "B: labelled images a step", least=1)
    mu: int = setting(7, "unlabelled images a step for every labelled one", least=1)
    steps: int = setting(524_288, "optimiser steps", least=1)
    lr: float = setting(0.03, "initial learning rate", above=0)
    init_lr: float | None = setting(
        None, "initial learning rate of a run with --init; default: same as lr", above=0
    )
    init_steps: int | None = setting(
        None, "optimiser steps of a run with --init; default: same as steps", least=1
    )
    schedule: str = setting(
        "cosine-7/16",
        "learning rate over the run: cosine-7/16 (ends at a fifth), cosine (ends at zero) or "
        "steps (a tenth after 60 %, a hundredth after 80 %)",
        choices=tuple(SCHEDULES),
    )
    warmup: float = setting(
        0.0, "share of the run in which the learning rate grows linearly", least=0, below=1
    )
    head_lr: float | None = setting(
        None, "initial learning rate of the classifier; default: same as lr", above=0
    )
    optimizer: str = setting(
        "sgd",
        "sgd, muon (Muon for the encoder's weight matrices) or lars (for large batches)",
        choices=("sgd", "muon", "lars"),
    )
    muon_lr: float = setting(0.02, "initial learning rate of Muon, same schedule", above=0)
    muon_decay: float | None = setting(None, "weight decay of Muon; default: same as weight_decay")
    momentum: float = setting(0.9, "momentum")
    nesterov: bool = setting(True, "SGD: Nesterov momentum")
    weight_decay: float = setting(5e-4, "weight decay")
    decay_norms: bool = setting(False, "apply weight decay to batch norm and norm biases too")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.head_lr is None or self.optimizer == "sgd",
            f"head_lr={self.head_lr}: only optimizer=sgd has a learning rate for the classifier",
        )


def build(
    method: Method, lr: Tensor, config: OptimConfig, head_lr: Tensor | None = None
) -> torch.optim.SGD:
    """SGD or LARS for every parameter; or Muon for the encoder's matrices and SGD for the rest.

    With `head_lr`, the classifier has that learning rate.
    """
    c = config
    if c.optimizer == "lars":
        learning = [p for p in method.parameters() if p.requires_grad]
        return Lars(learning, lr, c.momentum, c.weight_decay)
    parameters = [p for p in method.net.encoder.parameters() if p.requires_grad]
    matrices = [p for p in parameters if p.ndim >= 2]
    if c.optimizer == "sgd" or not matrices:
        return build_sgd(method, lr, c.momentum, c.weight_decay, c.decay_norms, c.nesterov, head_lr)
    taken = {id(p) for p in matrices}
    groups = groups_of(method, c.weight_decay, c.decay_norms, taken)
    decay = c.weight_decay if c.muon_decay is None else c.muon_decay
    return Muon(matrices, groups, lr, c.muon_lr / c.lr, c.momentum, decay)


def build_sgd(
    net: nn.Module,
    lr: Tensor,
    momentum: float,
    weight_decay: float,
    decay_norms: bool,
    nesterov: bool = True,
    head_lr: Tensor | None = None,
) -> torch.optim.SGD:
    """`lr` is a tensor that the training step writes, so a captured step stays valid."""
    head = [] if head_lr is None else list(net.net.classifier.parameters())  # type: ignore
    groups = groups_of(net, weight_decay, decay_norms, {id(p) for p in head})
    if head:
        groups.append({"params": head, "weight_decay": weight_decay, "lr": head_lr})
    nesterov = nesterov and momentum > 0
    return torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=nesterov, fused=True)


def groups_of(
    net: nn.Module, weight_decay: float, decay_norms: bool, taken: Collection[int] = ()
) -> list[dict[str, Any]]:
    """Parameters with weight decay and without, except those whose id is in `taken`."""
    norms = [p for m in net.modules() if isinstance(m, NORMS) for p in m.parameters(recurse=False)]
    free = set() if decay_norms else {id(p) for p in norms}
    parameters = [p for p in net.parameters() if p.requires_grad and id(p) not in taken]
    groups = [
        {"params": [p for p in parameters if id(p) not in free], "weight_decay": weight_decay},
        {"params": [p for p in parameters if id(p) in free], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def gradient_norm(parameters: list[nn.Parameter]) -> Tensor:
    """Norm of the whole gradient. It is not finite if any part is not."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    return torch.stack(torch._foreach_norm(gradients)).norm()
