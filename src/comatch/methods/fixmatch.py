"""FixMatch: confident predictions on weak views label the strong views (Sohn et al., 2020).

    q_b = p(y | weak view of u_b)
    L   = L_x + lambda_u 1/muB sum_b 1(max q_b >= tau) H(argmax q_b, p(y | strong view of u_b))

The mean is over all muB images, confident or not.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from comatch import losses
from comatch.config import MethodConfig, setting
from comatch.methods.method import Method, Step
from comatch.types import UNLABELLED, Batch


class FixMatch(Method):
    """Confident predictions on weak views as pseudo-labels of strong views."""

    views = ("weak", "strong")

    @dataclass(frozen=True)
    class Config(MethodConfig):
        method = "fixmatch"
        threshold: float = setting(
            0.95, "tau: minimum confidence of a pseudo-label", least=0, most=1
        )
        lambda_u: float = setting(1.0, "weight of the pseudo-label loss", least=0)

    def forward(self, batch: Batch) -> Step:
        c = self.config
        weak, strong = batch.u
        logits_x, logits_strong, logits_weak = self.logits(batch.x, strong, weak)

        with torch.no_grad():
            q, remember = self.pseudo_labels(F.softmax(logits_weak, dim=1))  # [muB, C]
            confidence, label = q.max(1)
            confident = confidence >= c.threshold
            target = F.one_hot(label, self.classes).to(q.dtype)

        loss_x = F.cross_entropy(logits_x, batch.y)
        loss_u = losses.masked_cross_entropy(logits_strong, target, confident)
        return Step(
            loss_x + c.lambda_u * loss_u,
            {"loss_x": loss_x.detach(), "loss_u": loss_u.detach()},
            remember,
            label.masked_fill(~confident, UNLABELLED),
        )

    def pseudo_labels(self, p: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Pseudo-labels [muB, C] from predictions on weak views, and rows to remember."""
        return p, {}
