"""Selection of confident pseudo-labels: by one threshold, or by one threshold for each class.

    fixed     c >= tau                              as in the paper
    adaptive  c >= tau_y,   tau_y by running means  FreeMatch

c = max q is the confidence of a pseudo-label q, and y = argmax q its class.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from comatch import losses
from comatch.memory import RunningMean


class Selected(NamedTuple):
    confident: Tensor  # [muB] bool
    metrics: dict[str, Tensor]  # [] each
    remember: Tensor | None = None  # [1, width] the row of this batch for the running mean


class FixedThreshold(nn.Module):
    """Pseudo-labels with a confidence of at least tau."""

    def __init__(self, classes: int, decay: float) -> None:
        super().__init__()

    def forward(self, q: Tensor, confidence: Tensor, label: Tensor, tau: float) -> Selected:
        return Selected(confidence >= tau, {})


class AdaptiveThreshold(RunningMean):
    """A threshold for each class: the mean confidence so far, at most tau, lower in rare classes.

    The running means of the confidence and of q include the current batch.
    """

    def __init__(self, classes: int, decay: float) -> None:
        # The mean confidence, then the mean probability of each class.
        super().__init__(torch.full((1 + classes,), 1 / classes), decay)

    def forward(self, q: Tensor, confidence: Tensor, label: Tensor, tau: float) -> Selected:
        row = torch.cat([confidence.mean()[None], q.mean(0)])
        mean = self.mean_with(row)  # [1 + C]
        thresholds = losses.class_thresholds(torch.clamp(mean[0], max=tau), mean[1:])
        confident = confidence >= thresholds.index_select(0, label)
        return Selected(confident, {"mean_confidence": mean[0]}, row[None])


THRESHOLDS = {"fixed": FixedThreshold, "adaptive": AdaptiveThreshold}
