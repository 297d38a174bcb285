"""MixUp: interpolation of pairs of images and of their labels (Zhang et al., 2018).

    mixed = l a + (1 - l) b,   l = max(l', 1 - l'),   l' ~ Beta(alpha, alpha)

The maximum is MixMatch's addition: each row is closer to itself than to its partner, so it is known
which mixed rows come from labelled images.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Mix(NamedTuple):
    order: Tensor  # [N] the partner of each row
    share: Tensor  # [N] weight of the row itself, at least a half


def sample_mix(n: int, alpha: float, device: torch.device) -> Mix:
    order = torch.rand(n, device=device).argsort()
    gamma = torch._standard_gamma(torch.full((2, n), alpha, device=device))
    share = gamma[0] / (gamma[0] + gamma[1]).clamp(min=1e-20)  # Beta, from two Gammas
    return Mix(order, share.maximum(1 - share))


def mix(rows: Tensor, params: Mix) -> Tensor:
    share = params.share.to(rows.dtype).view(-1, *[1] * (rows.ndim - 1))
    return torch.lerp(rows[params.order], rows, share)
