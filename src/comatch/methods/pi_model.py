"""The Pi-model: consistent predictions on two views of an image (Laine and Aila, 2017).

    L = L_x + w(t) 1/muB sum_b 1/C || p(y | view of u_b) - p(y | another view of u_b) ||^2

w(t) = lambda_u exp(-5 (1 - t / ramp)^2) rises from almost zero over the first part of the run. The
u_b are drawn from all images, labelled or not, as in its paper. This is the CoMatch paper's
equation 1, the simplest form of consistency regularisation.

Its paper divides both terms by the size of the whole batch, and w(t) rises to 100 M / N with M of N
images labelled. Divided by M / N that is a mean over the labelled images, and lambda_u = 100.
"""

from dataclasses import dataclass

import torch.nn.functional as F

from comatch import losses
from comatch.config import MethodConfig, setting
from comatch.methods.method import Method, Step
from comatch.types import Batch


class PiModel(Method):
    """Consistent predictions on two weak views."""

    views = ("weak", "weak")
    labelled_too = True

    @dataclass(frozen=True)
    class Config(MethodConfig):
        method = "pi_model"
        lambda_u: float = setting(100.0, "final weight of the consistency loss", least=0)
        ramp: float = setting(0.27, "share of the run over which that weight rises", above=0)

    def forward(self, batch: Batch) -> Step:
        c = self.config
        one, other = batch.u
        logits_x, logits_one, logits_other = self.logits(batch.x, one, other)
        weight = c.lambda_u * losses.ramp_up(self.progress / c.ramp)

        loss_x = F.cross_entropy(logits_x, batch.y)
        loss_u = F.mse_loss(F.softmax(logits_one, dim=1), F.softmax(logits_other, dim=1))
        metrics = {"loss_x": loss_x.detach(), "loss_u": loss_u.detach(), "weight": weight}
        return Step(loss_x + weight * loss_u, metrics, {})
