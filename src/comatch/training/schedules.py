"""Learning rate schedules, as functions of progress (0 to 1) that stay on the device."""

import math
from collections.abc import Callable

import torch
from torch import Tensor


def cosine_7_16(progress: Tensor) -> Tensor:
    """cos(7 pi / 16 · progress): ends at a fifth of the initial value (FixMatch, CoMatch)."""
    return torch.cos(progress * (7 * math.pi / 16))


def cosine(progress: Tensor) -> Tensor:
    """Half a cosine, down to zero."""
    return 0.5 * (1 + torch.cos(progress * math.pi))


SCHEDULES: dict[str, Callable[[Tensor], Tensor]] = {
    "cosine-7/16": cosine_7_16,
    "cosine": cosine,
}
