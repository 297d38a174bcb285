"""Pseudo-Label: training on the network's own predictions, with rising weight (Lee, 2013).

    L = L_x + w(t) 1/muB sum_b 1(max p_b >= tau) H(argmax p_b, p_b)

Pseudo-label and loss use the same weak view. w(t) is zero at first and rises linearly, because
early predictions are often wrong.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from comatch import losses
from comatch.config import MethodConfig, require, setting
from comatch.methods.method import Method, Step
from comatch.types import UNLABELLED, Batch


class PseudoLabel(Method):
    """The predicted class as the label."""

    views = ("weak",)

    @dataclass(frozen=True)
    class Config(MethodConfig):
        method = "pseudo_label"
        threshold: float = setting(
            0.0, "minimum confidence of a pseudo-label; 0: all count", least=0, most=1
        )
        lambda_u: float = setting(3.0, "final weight of the pseudo-label loss", least=0)
        ramp_begin: float = setting(
            0.1, "share of the run after which that weight rises from zero", least=0
        )
        ramp_end: float = setting(0.6, "share of the run after which it is reached", above=0)

        def __post_init__(self) -> None:
            super().__post_init__()
            require(self.ramp_begin < self.ramp_end, "ramp_end must come after ramp_begin")

    def forward(self, batch: Batch) -> Step:
        c = self.config
        (weak,) = batch.u
        logits_x, logits_u = self.logits(batch.x, weak)
        with torch.no_grad():
            confidence, label = F.softmax(logits_u, dim=1).max(1)
            confident = confidence >= c.threshold
            target = F.one_hot(label, self.classes).to(logits_u.dtype)
            ramp = (self.progress - c.ramp_begin) / (c.ramp_end - c.ramp_begin)
            weight = c.lambda_u * ramp.clamp(0, 1)

        loss_x = F.cross_entropy(logits_x, batch.y)
        loss_u = losses.masked_cross_entropy(logits_u, target, confident)
        return Step(
            loss_x + weight * loss_u,
            {"loss_x": loss_x.detach(), "loss_u": loss_u.detach(), "weight": weight},
            {},
            label.masked_fill(~confident, UNLABELLED),
        )
