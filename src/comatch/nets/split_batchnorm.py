"""Batch norm over parts of a batch, as if several GPUs had a part each (MoCo, section 3.3).

In contrastive learning with a queue, only the positive key would have the batch norm statistics of
the query's batch, so these alone would tell it from the negatives. Statistics of small parts, with
the keys distributed over the parts in another order, take that hint away.
"""

from typing import Any

import torch
from torch import Tensor, nn

from comatch import distributed
from comatch.nets.own_batchnorm import OwnBatchNorm


class SplitBatchNorm(OwnBatchNorm):
    """Normalises each of `groups` equal parts of a batch alone.

    Running statistics are means over parts and ranks.
    """

    groups: int

    def normalise(self, x: Tensor) -> Tensor:
        precise = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
        parts = precise.unflatten(0, (self.groups, -1))  # [G, n, C, ...]
        others = [1, *range(3, parts.ndim)]
        var, mean = torch.var_mean(parts, others, correction=0, keepdim=True)
        count = x.numel() // (x.shape[1] * self.groups)
        means, unbiased = (
            mean.flatten(1).mean(0),
            var.flatten(1).mean(0) * count / max(1, count - 1),
        )
        self.average(*distributed.mean(torch.stack([means, unbiased]).detach()))
        y = ((parts - mean) * (var + self.eps).rsqrt()).flatten(0, 1)
        shape = [-1 if d == 1 else 1 for d in range(x.ndim)]
        return (y * self.weight.view(shape) + self.bias.view(shape)).to(x.dtype)


def split_batchnorm(net: nn.Module, groups: int) -> None:
    """Convert every batch norm in `net` in place; parameters and names stay the same.

    The groups are those of the batch of all ranks, of which each has its share.
    """
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            split: Any = module
            split.__class__ = SplitBatchNorm
            split.groups = max(1, groups // distributed.world())
