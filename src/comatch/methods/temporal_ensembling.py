"""Temporal ensembling: consistency with earlier predictions of an image (Laine and Aila, 2017).

    Z_b <- alpha Z_b + (1 - alpha) p(y | view of u_b)      after each step whose batch has u_b
    L   = L_x + w(t) 1/muB sum_b 1/C || p(y | view of u_b) - Z_b / (1 - alpha^n_b) ||^2

n_b is the number of earlier steps with u_b. One forward is enough instead of the Pi-model's two,
and the target has less noise, because it is an average over earlier weights and views. An image has
no target and no loss the first time. The u_b are drawn from all images, labelled or not. w(t) rises
as in the Pi-model, in its paper to 30 M / N: here lambda_u = 30, as explained there.

In a run, each of the U unlabelled images is in steps muB / U batches. In a short run these are few,
so many targets are averages of one or two predictions of a network that was trained much less.
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
    """Consistency with the average of all earlier predictions of the same image."""

    views = ("weak",)
    labelled_too = True

    @dataclass(frozen=True)
    class Config(MethodConfig):
        method = "temporal_ensembling"
        alpha: float = setting(0.6, "decay of an image's average prediction", least=0, below=1)
        lambda_u: float = setting(30.0, "final weight of the consistency loss", least=0)
        ramp: float = setting(0.27, "share of the run over which that weight rises", above=0)

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
