"""Batch norm over the batch of all ranks, so that several processes compute the same as one.

PyTorch's SyncBatchNorm runs on GPUs only, breaks a compiled graph, and does not work with
`torch.func`, which VAT needs. This one is differentiable PyTorch code without these limits.
"""

import torch
from torch import Tensor, nn

from comatch import distributed
from comatch.errors import UserError
from comatch.nets.own_batchnorm import OwnBatchNorm
from comatch.nets.split_batchnorm import SplitBatchNorm


class SyncBatchNorm(OwnBatchNorm):
    """Combines mean m_r and variance v_r of each rank, which are over equally many values:

    m = mean of m_r,      v = mean of v_r + (m_r - m)^2
    """

    def normalise(self, x: Tensor) -> Tensor:
        precise = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
        others = [d for d in range(x.ndim) if d != 1]
        var, mean = torch.var_mean(precise, others, correction=0)  # [C]
        m, v = distributed.gather(torch.stack([mean, var])[None]).unbind(1)  # [ranks, C]
        mean = m.mean(0)
        var = (v + (m - mean).square()).mean(0)
        if self.track_running_stats:
            count = distributed.world() * x.numel() // x.shape[1]
            self.average(mean.detach(), var.detach() * (count / max(1, count - 1)))

        scale = (var + self.eps).rsqrt()
        scale = scale if self.weight is None else scale * self.weight
        shift = -mean * scale if self.bias is None else self.bias - mean * scale
        shape = [-1 if d == 1 else 1 for d in range(x.ndim)]
        return (x * scale.view(shape) + shift.view(shape)).to(x.dtype)


def sync_batchnorm(net: nn.Module) -> None:
    """Convert every batch norm in `net` in place; parameters and names stay the same.

    One that is split on purpose stays split.
    """
    if distributed.world() == 1:
        return
    for name, module in net.named_modules():
        if not isinstance(module, nn.modules.batchnorm._BatchNorm):
            continue
        if isinstance(module, SplitBatchNorm):
            continue
        known = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
        if type(module) not in known and type(module).__name__ != "BatchNormAct2d":
            raise UserError(
                f"{name} is a {type(module).__name__}, which several processes cannot share: "
                "use another --set net=..., or one process"
            )
        module.__class__ = SyncBatchNorm
