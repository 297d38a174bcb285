"""Temporal ensembling: an image is predicted as it was on earlier visits (Laine and Aila, 2017).

    Z_b <- alpha Z_b + (1 - alpha) p(y | view of u_b)      once for each visit, after the step
    L   = L_x + w(t) 1/muB sum_b 1/C || p(y | view of u_b) - Z_b / (1 - alpha^visits_b) ||^2

One forward instead of the Pi-model's two, and a target with less noise: it is an average over
earlier networks and earlier views. On its first visit an image has no target and gives no loss.
w(t) rises as in the Pi-model.

A run visits each of U unlabelled images steps muB / U times. In a short run that is only a few
times: many targets are then one or two predictions of a much younger network.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import nn

from comatch import losses
from comatch.config import MethodConfig, setting
from comatch.memory import Averages
from comatch.methods.method import Method, Step
from comatch.types import Batch, Task


class TemporalEnsembling(Method):
    """Predictions that agree with the average of all earlier ones of the same image."""

    views = ("weak",)

    @dataclass(frozen=True)
    class Config(MethodConfig):
        method = "temporal_ensembling"
        alpha: float = setting(
            0.6, "share of itself that an image's average keeps at each visit", least=0, below=1
        )
        lambda_u: float = setting(
            2.4, "largest weight of consistency: 30 M / N for 4,000 labels", least=0
        )
        ramp: float = setting(0.27, "share of the run over which that weight is reached", above=0)

    def __init__(self, encoder: nn.Module, task: Task, config: Config) -> None:
        super().__init__(encoder, task, config)
        self.ensemble = Averages(task.unlabelled, task.classes, config.alpha)

    def forward(self, batch: Batch) -> Step:
        c = self.config
        (weak,) = batch.u
        logits_x, logits_u = self.logits(batch.x, weak)
        p = F.softmax(logits_u, dim=1)  # [muB, C]
        target, seen = self.ensemble.read(batch.rows)
        weight = c.lambda_u * losses.ramp_up(self.progress / c.ramp)

        loss_x = F.cross_entropy(logits_x, batch.y)
        loss_u = ((p - target).square().mean(1) * seen).mean()
        metrics = {
            "loss_x": loss_x.detach(),
            "loss_u": loss_u.detach(),
            "weight": weight,
            "seen": seen.to(p.dtype).mean(),
        }
        remember = {"ensemble": (batch.rows, p.detach())}
        return Step(loss_x + weight * loss_u, metrics, remember)
