"""Batch norm over parts of a batch, as if several GPUs had a part each (MoCo, section 3.3).

In contrastive learning with a queue, only the positive key would have the batch norm statistics of
the query's batch, so these alone would tell it from the negatives. Statistics of small parts, with
the keys distributed over the parts in another order, take that hint away.
"""

from typing import Any

import torch
from torch import Tensor, nn

from comatch import distributed


class SplitBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Normalises each of `groups` equal parts of a batch alone; running statistics are means."""

    groups: int

    def forward(self, x: Tensor) -> Tensor:
        x = self.normalise(x) if self.training else super().forward(x)
        for name in ("drop", "act"):  # timm has norms that include an activation
            if name in self._modules:
                x = getattr(self, name)(x)
        return x

    def normalise(self, x: Tensor) -> Tensor:
        precise = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
        parts = precise.unflatten(0, (self.groups, -1))  # [G, n, C, ...]
        others = [1, *range(3, parts.ndim)]
        var, mean = torch.var_mean(parts, others, correction=0, keepdim=True)
        self.track(mean.flatten(1), var.flatten(1), x.numel() // (x.shape[1] * self.groups))
        y = ((parts - mean) * (var + self.eps).rsqrt()).flatten(0, 1)
        shape = [-1 if d == 1 else 1 for d in range(x.ndim)]
        return (y * self.weight.view(shape) + self.bias.view(shape)).to(x.dtype)

    @torch.no_grad()
    def track(self, means: Tensor, variances: Tensor, count: int) -> None:
        """Update running statistics with means over parts and ranks, of unbiased variances."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        unbiased = variances * (count / max(1, count - 1))
        mean, var = distributed.mean(torch.stack([means.mean(0), unbiased.mean(0)]))
        self.num_batches_tracked.add_(1)
        share = 0.1 if self.momentum is None else self.momentum
        self.running_mean.add_(share * (mean - self.running_mean))
        self.running_var.add_(share * (var - self.running_var))

    def _check_input_dim(self, x: Tensor) -> None:
        """Any number of dimensions is valid."""


def split_batchnorm(net: nn.Module, groups: int) -> None:
    """Convert every batch norm in `net` in place; parameters and names stay the same.

    The groups are those of the batch of all ranks, of which each has its share.
    """
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            split: Any = module
            split.__class__ = SplitBatchNorm
            split.groups = max(1, groups // distributed.world())
