"""SGD as the paper uses it: Nesterov momentum, no weight decay on batch norm."""

import torch
from torch import Tensor, nn

NORMS = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm)


def build_sgd(
    net: nn.Module, lr: Tensor, momentum: float, weight_decay: float, decay_norms: bool
) -> torch.optim.SGD:
    """`lr` is a tensor that the training step writes, so a captured step needs no rebuild."""
    norms = [p for m in net.modules() if isinstance(m, NORMS) for p in m.parameters(recurse=False)]
    free = set() if decay_norms else {id(p) for p in norms}
    parameters = [p for p in net.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if id(p) not in free], "weight_decay": weight_decay},
        {"params": [p for p in parameters if id(p) in free], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=momentum > 0, fused=True)


def gradient_norm(parameters: list[nn.Parameter]) -> Tensor:
    """Length of the whole gradient; not finite as soon as any part of it is not."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    return torch.stack(torch._foreach_norm(gradients)).norm()
