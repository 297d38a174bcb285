"""LARS: SGD whose step in each layer is in proportion to the layer's weights (You et al., 2017).

    d = g + decay W,      v <- m v + eta |W| / |d| d,      W <- W - lr v

So a very large batch can have a large learning rate. Biases and the parameters of norms have
neither this factor nor weight decay (SimCLR, BYOL). The result replaces the gradient, and SGD
applies it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

ETA = 0.001


class Lars(torch.optim.SGD):
    """The state is that of SGD with momentum."""

    def __init__(
        self, parameters: list[nn.Parameter], lr: Tensor, momentum: float, weight_decay: float
    ) -> None:
        self.scaled = [p for p in parameters if p.ndim > 1]
        self.decay = weight_decay
        others = [p for p in parameters if p.ndim <= 1]
        groups = [{"params": some} for some in (self.scaled, others) if some]
        super().__init__(groups, lr=lr, momentum=momentum, fused=True)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        weights: list[Tensor] = [p for p in self.scaled if p.grad is not None]
        gradients = [p.grad for p in weights if p.grad is not None]
        torch._foreach_add_(gradients, weights, alpha=self.decay)
        lengths = torch.stack(torch._foreach_norm(weights))
        directions = torch.stack(torch._foreach_norm(gradients))
        both = (lengths > 0) & (directions > 0)
        factors = ETA * lengths / directions.masked_fill(~both, 1)
        factors = torch.where(both, factors, torch.ones_like(factors))
        torch._foreach_mul_(gradients, list(factors.unbind()))
        return super().step(closure)
