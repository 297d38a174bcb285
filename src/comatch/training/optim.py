"""SGD as the paper uses it: Nesterov momentum, no weight decay on batch norm. Or Muon."""

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

from comatch.config import Recipe
from comatch.methods import Method
from comatch.training.muon import Muon

NORMS = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm)


def build(method: Method, lr: Tensor, recipe: Recipe) -> torch.optim.SGD:
    """What the recipe names. Muon takes the encoder's convolutions and matrices, SGD the rest."""
    r = recipe
    parameters = [p for p in method.net.encoder.parameters() if p.requires_grad]
    matrices = [p for p in parameters if p.ndim >= 2]
    if r.optimizer == "sgd" or not matrices:
        return build_sgd(method, lr, r.momentum, r.weight_decay, r.decay_norms)
    taken = {id(p) for p in matrices}
    groups = groups_of(method, r.weight_decay, r.decay_norms, taken)
    decay = r.weight_decay if r.muon_decay is None else r.muon_decay
    return Muon(matrices, groups, lr, r.muon_lr / r.lr, r.momentum, decay)


def build_sgd(
    net: nn.Module, lr: Tensor, momentum: float, weight_decay: float, decay_norms: bool
) -> torch.optim.SGD:
    """`lr` is a tensor that the training step writes, so a captured step needs no rebuild."""
    groups = groups_of(net, weight_decay, decay_norms)
    return torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=momentum > 0, fused=True)


def groups_of(
    net: nn.Module, weight_decay: float, decay_norms: bool, taken: Collection[int] = ()
) -> list[dict[str, Any]]:
    """What is decayed and what is not, but for parameters that are taken already, by their id."""
    norms = [p for m in net.modules() if isinstance(m, NORMS) for p in m.parameters(recurse=False)]
    free = set() if decay_norms else {id(p) for p in norms}
    parameters = [p for p in net.parameters() if p.requires_grad and id(p) not in taken]
    groups = [
        {"params": [p for p in parameters if id(p) not in free], "weight_decay": weight_decay},
        {"params": [p for p in parameters if id(p) in free], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def gradient_norm(parameters: list[nn.Parameter]) -> Tensor:
    """Length of the whole gradient; not finite as soon as any part of it is not."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    return torch.stack(torch._foreach_norm(gradients)).norm()
