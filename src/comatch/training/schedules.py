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


def steps(progress: Tensor) -> Tensor:
    """A tenth after 60 % of the run, a hundredth after 80 % (PCL)."""
    return 0.1 ** ((progress >= 0.6).to(progress.dtype) + (progress >= 0.8).to(progress.dtype))


def warmed(
    schedule: Callable[[Tensor], Tensor], progress: Tensor, warmup: float, step: float
) -> Tensor:
    """The schedule after a linear growth over the first part of the run. `step` is 1 / steps."""
    if not warmup:
        return schedule(progress)
    grown = ((progress + step) / warmup).clamp(max=1)
    return grown * schedule(((progress - warmup) / (1 - warmup)).clamp(min=0))


SCHEDULES: dict[str, Callable[[Tensor], Tensor]] = {
    "cosine-7/16": cosine_7_16,
    "cosine": cosine,
    "steps": steps,
}
