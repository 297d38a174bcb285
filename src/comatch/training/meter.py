"""Metrics of the steps, summed on the device."""

import math
from typing import Any

import torch
from torch import Tensor

from comatch import distributed


class Meter:
    """Sums of metrics on the device, which the host reads only when it logs."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.sums = torch.zeros(0, dtype=torch.float64)

    @torch.no_grad()
    def add(self, metrics: dict[str, Tensor]) -> None:
        values = torch.stack([value.to(sum_type(value.device)) for value in metrics.values()])
        if not self.names:
            self.names, self.sums = list(metrics), torch.zeros_like(values)
        self.sums.add_(values)

    def read(self) -> dict[str, float]:
        """The sums since the last call, as means over ranks. This waits for the device."""
        values = distributed.mean(self.sums).tolist()
        self.sums.zero_()  # in place: a captured step writes to this address
        return dict(zip(self.names, values, strict=True))

    def bad_steps(self) -> int:
        """Steps since the last `read` whose loss or gradient was not finite, on any rank."""
        if not self.names:
            return 0
        steps, finite = (self.names.index(name) for name in ("steps", "finite_steps"))
        return math.ceil(distributed.mean(self.sums[steps] - self.sums[finite]).item())

    def state_dict(self) -> dict[str, Any]:
        return {"names": self.names, "sums": self.sums.cpu()}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        self.names = list(state["names"])
        self.sums = state["sums"].to(device, sum_type(device), copy=True)


def sum_type(device: torch.device) -> torch.dtype:
    """float64, which Apple's GPUs do not have."""
    return torch.float32 if device.type == "mps" else torch.float64


@torch.no_grad()
def score(pseudo_labels: Tensor | None, truth: Tensor) -> dict[str, Tensor]:
    """Share of confident pseudo-labels; how many of those have a known class, and are right."""
    if pseudo_labels is None:
        return {}
    confident = pseudo_labels >= 0
    known = confident & (truth >= 0)
    return {
        "confident": confident.float().mean(),
        "judged": known.float().sum(),
        "right": (known & (pseudo_labels == truth)).float().sum(),
    }


def averages(sums: dict[str, float]) -> dict[str, float]:
    """Sums over an interval as means, with the accuracy of confident pseudo-labels."""
    sums = dict(sums)
    steps = sums.pop("steps")
    sums.pop("finite_steps")
    judged, right = sums.pop("judged", 0.0), sums.pop("right", 0.0)
    means = {name: value / steps for name, value in sums.items()}
    if judged:
        means["pseudo_accuracy"] = right / judged
    return means
