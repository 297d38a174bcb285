"""Mean Teacher: predictions are consistent with those of the EMA model (Tarvainen et al., 2017).

    L = L_x + w(t) 1/muB sum_b 1/C || p(y | view of u_b) - p_ema(y | another view of u_b) ||^2

The EMA model, which every method here has for evaluation, is the teacher. No gradient flows to it.
The u_b are drawn from all images, labelled or not. w(t) rises as in the Pi-model. At step t the
decay of the teacher is min(1 - 1 / (t + 1), m): it is the plain mean of all weights so far until m
is reached, so the random initial weights do not last.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from comatch import losses
from comatch.config import MethodConfig, setting
from comatch.methods.method import Method, Step
from comatch.types import Batch


class MeanTeacher(Method):
    """Consistency with the predictions of the EMA model."""

    views = ("weak", "weak")
    labelled_too = True

    @dataclass(frozen=True)
    class Config(MethodConfig):
        method = "mean_teacher"
        lambda_u: float = setting(100.0, "final weight of the consistency loss", least=0)
        ramp: float = setting(0.27, "share of the run over which that weight rises", above=0)

    def forward(self, batch: Batch) -> Step:
        c = self.config
        student, teacher = batch.u
        logits_x, logits_u = self.logits(batch.x, student)
        with torch.no_grad():
            # With the labelled images, so that batch norm sees the same batch as in the student.
            logits_ema = self.ema.net(torch.cat([batch.x, teacher])).logits
            target = F.softmax(logits_ema[len(batch.x) :], dim=1)
        weight = c.lambda_u * losses.ramp_up(self.progress / c.ramp)

        loss_x = F.cross_entropy(logits_x, batch.y)
        loss_u = F.mse_loss(F.softmax(logits_u, dim=1), target)
        metrics = {"loss_x": loss_x.detach(), "loss_u": loss_u.detach(), "weight": weight}
        return Step(loss_x + weight * loss_u, metrics, {})

    @property
    def decay(self) -> Tensor:  # []
        return (1 - 1 / (self.step + 1)).clamp(max=self.config.ema_decay)
