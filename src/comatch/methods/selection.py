"""Which pseudo-labels are learned, and how much: by a threshold, by several, or by weights.

    fixed     w = 1(c >= tau)                                                   as in the paper
    adaptive  w = 1(c >= tau_y),    tau_y follows what the network has learned      (FreeMatch)
    classwise the same, by what it predicts before alignment makes classes even
    soft      w falls as a Gaussian below the usual confidence                      (SoftMatch)

c = max q is the confidence of a pseudo-label q, y = argmax q its class; mean_p [C] is what the
network predicted in the mean of the batch, before alignment. What is usual is a mean over past
batches, the current one included.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from comatch import distributed, losses
from comatch.memory import RunningMean


class Selected(NamedTuple):
    weight: Tensor  # [muB] of each pseudo-label in the loss, or whether it is learned
    confident: Tensor  # [muB] bool: those that are scored
    metrics: dict[str, Tensor]  # [] each
    now: Tensor | None = None  # [1, width] what the selection remembers of this batch


class Fixed(nn.Module):
    """AllImages from the threshold on."""

    def __init__(self, classes: int, decay: float) -> None:
        super().__init__()

    def forward(
        self, q: Tensor, confidence: Tensor, label: Tensor, mean_p: Tensor, tau: float
    ) -> Selected:
        confident = confidence >= tau
        return Selected(confident, confident, {})


class Adaptive(RunningMean):
    """What is as confident as usual or as tau, whichever is less, and less so in rare classes."""

    def __init__(self, classes: int, decay: float) -> None:
        # Mean confidence, then the mean probability of each class.
        super().__init__(torch.full((1 + classes,), 1 / classes), decay)

    def forward(
        self, q: Tensor, confidence: Tensor, label: Tensor, mean_p: Tensor, tau: float
    ) -> Selected:
        now = torch.cat([confidence.mean()[None], self.shares(q, mean_p)])
        usual = self.mean_with(now)  # [1 + C]
        overall = torch.clamp(usual[0], max=tau)
        thresholds = losses.class_thresholds(overall, usual[1:])
        confident = confidence >= thresholds.index_select(0, label)
        return Selected(confident, confident, {"usual_confidence": usual[0]}, now[None])

    def shares(self, q: Tensor, mean_p: Tensor) -> Tensor:  # [C]
        return q.mean(0)


class Classwise(Adaptive):
    """The same, but alignment does not hide which classes are rare."""

    def shares(self, q: Tensor, mean_p: Tensor) -> Tensor:  # [C]
        return mean_p


class Soft(RunningMean):
    """AllImages, but less and less of what is less confident than usual; tau is not asked."""

    def __init__(self, classes: int, decay: float) -> None:
        # Mean and variance of confidence: at first so wide that all count.
        super().__init__(torch.tensor([1 / classes, 1.0]), decay)

    def forward(
        self, q: Tensor, confidence: Tensor, label: Tensor, mean_p: Tensor, tau: float
    ) -> Selected:
        every = distributed.gather(confidence)  # a variance is no mean of the ranks' variances
        now = torch.stack([every.mean(), every.var(correction=min(1, len(every) - 1))])
        mean, variance = self.mean_with(now).unbind()
        weight = losses.truncated_gaussian(confidence, mean, variance)
        # Every image weighs something; scored are those that are learned more than left out.
        metrics = {"usual_confidence": mean, "mean_weight": weight.mean()}
        return Selected(weight, weight >= 0.5, metrics, now[None])


SELECTIONS = {"fixed": Fixed, "adaptive": Adaptive, "classwise": Classwise, "soft": Soft}
