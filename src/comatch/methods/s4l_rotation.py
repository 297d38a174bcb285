"""S4L: an additional loss, the prediction of rotations of every image (Zhai et al., 2019).

    L = L_x + lambda_u 1/(4 muB) sum_b sum_r H(r, p_rot(rotation | u_b rotated by r quarter turns))

Rotation prediction needs no labels and no pseudo-labels.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from comatch.config import MethodConfig, setting
from comatch.methods.method import Method, Step
from comatch.types import Batch, Task

QUARTERS = 4


class S4LRotation(Method):
    """Cross-entropy on the labels, and rotation prediction on all images."""

    views = ("weak",)
    rotates_images = True

    @dataclass(frozen=True)
    class Config(MethodConfig):
        method = "s4l_rotation"
        lambda_u: float = setting(1.0, "weight of the rotation loss", least=0)

    def __init__(self, encoder: nn.Module, task: Task, config: Config) -> None:
        super().__init__(encoder, task, config)
        self.rotation = nn.Linear(self.net.classifier.in_features, QUARTERS)

    def forward(self, batch: Batch) -> Step:
        (weak,) = batch.u
        rotated = [weak.rot90(r, (2, 3)) for r in range(QUARTERS)]
        out = self.net(torch.cat([batch.x, *rotated]))
        which = torch.arange(QUARTERS, device=weak.device).repeat_interleave(len(weak))  # [4 muB]
        rotations = self.rotation(out.features[len(batch.x) :])

        loss_x = F.cross_entropy(out.logits[: len(batch.x)], batch.y)
        loss_u = F.cross_entropy(rotations, which)
        right = (rotations.detach().argmax(1) == which).to(loss_u.dtype).mean()
        metrics = {"loss_x": loss_x.detach(), "loss_u": loss_u.detach(), "rotation_accuracy": right}
        return Step(loss_x + self.config.lambda_u * loss_u, metrics, {})
