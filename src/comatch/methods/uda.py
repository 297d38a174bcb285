"""UDA: sharpened predictions on weak views as targets of strong views (Xie et al., 2020).

    q_b = p(y | weak view of u_b)^(1 / T), normalised
    L   = TSA(L_x) + lambda_u 1/muB sum_b 1(max p_b >= tau) H(q_b, p(y | strong view of u_b))

Training signal annealing (TSA) releases the labels slowly, which reduces overfitting to few labels:
a labelled image counts only while p(its class) is below a threshold that rises from 1 / C to 1 over
the run.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from comatch import distributed, losses
from comatch.config import MethodConfig, setting
from comatch.methods.method import Method, Step
from comatch.types import UNLABELLED, Batch


class Uda(Method):
    """Sharpened predictions on weak views as soft labels, and slowly released labels."""

    views = ("weak", "strong")

    @dataclass(frozen=True)
    class Config(MethodConfig):
        method = "uda"
        threshold: float = setting(
            0.8, "tau: minimum confidence of a pseudo-label", least=0, most=1
        )
        temperature: float = setting(0.4, "T: sharpening temperature of pseudo-labels", above=0)
        lambda_u: float = setting(1.0, "weight of the unlabelled loss", least=0)
        tsa: str = setting(
            "linear",
            "schedule of TSA: none, linear, log or exp",
            choices=("none", "linear", "log", "exp"),
        )

    def forward(self, batch: Batch) -> Step:
        c = self.config
        weak, strong = batch.u
        logits_x, logits_strong, logits_weak = self.logits(batch.x, strong, weak)
        with torch.no_grad():
            confidence, label = F.softmax(logits_weak, dim=1).max(1)
            confident = confidence >= c.threshold
            q = F.softmax(logits_weak / c.temperature, dim=1)  # sharpened

        loss_x, released = self.labelled(logits_x, batch.y)
        loss_u = losses.masked_cross_entropy(logits_strong, q, confident)
        return Step(
            loss_x + c.lambda_u * loss_u,
            {"loss_x": loss_x.detach(), "loss_u": loss_u.detach(), "released": released},
            {},
            label.masked_fill(~confident, UNLABELLED),
        )

    def labelled(self, logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Cross-entropy on the released labels, and their share."""
        each = F.cross_entropy(logits, y, reduction="none")  # [B]
        if self.config.tsa == "none":
            return each.mean(), torch.ones_like(each[0])
        release = RELEASED[self.config.tsa](self.progress)
        below = release * (1 - 1 / self.classes) + 1 / self.classes
        counts = (torch.exp(-each.detach()) <= below).to(each.dtype)
        # Ranks release different numbers of labels; the mean is over those of all ranks.
        released = distributed.mean(counts.sum()).clamp(min=1 / distributed.world())
        return (each * counts).sum() / released, counts.mean()


RELEASED = {
    "linear": lambda progress: progress,
    "log": lambda progress: 1 - torch.exp(-5 * progress),
    "exp": lambda progress: torch.exp(5 * (progress - 1)),
}
