"""How the learning rate changes, as functions of progress (0 to 1) that stay on the device."""

import math
from collections.abc import Callable

import torch
from torch import Tensor


def cosine_7_16(progress: Tensor) -> Tensor:
    """cos(7 pi / 16 · progress): ends at a fifth of where it began (FixMatch, CoMatch)."""
    return torch.cos(progress * (7 * math.pi / 16))


def cosine(progress: Tensor) -> Tensor:
    """Half a cosine, down to zero."""
    return 0.5 * (1 + torch.cos(progress * math.pi))


def linear(progress: Tensor) -> Tensor:
    """A straight line, down to zero."""
    return 1 - progress


def trapezoid(progress: Tensor) -> Tensor:
    """Level for two thirds of the run, then a straight line down to zero."""
    return (3 * (1 - progress)).clamp(max=1)


def constant(progress: Tensor) -> Tensor:
    return torch.ones_like(progress)


SCHEDULES: dict[str, Callable[[Tensor], Tensor]] = {
    "cosine-7/16": cosine_7_16,
    "cosine": cosine,
    "linear": linear,
    "trapezoid": trapezoid,
    "constant": constant,
}


def build(name: str, warmup: float = 0.0) -> Callable[[Tensor], Tensor]:
    """A schedule that, in the share `warmup` of the run, is reached on a straight line from zero.

    The line is a factor: afterwards the schedule is where it would be without it.
    """
    schedule = SCHEDULES[name]
    if not warmup:
        return schedule
    return lambda progress: schedule(progress) * (progress / warmup).clamp(max=1)
