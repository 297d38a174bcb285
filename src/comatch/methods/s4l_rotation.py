"""S4L: an additional loss, the prediction of rotations of every image (Zhai et al., 2019).

    L = 1/(4 B) sum_b sum_r H(y_b, p(y | x_b rotated by r quarter turns))
        + lambda_u 1/(4 (B + muB)) sum_b sum_r H(r, p_rot(rotation | image_b rotated by r))

Rotation prediction needs no labels and no pseudo-labels. Its loss is the mean over all images of
the batch, labelled or not, each in all four rotations. The labelled images are classified in all
four too, which regularises the classifier.
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
        images = torch.cat([batch.x, *batch.u])  # [B + muB, 3, H, W]
        rotated = torch.cat([images.rot90(r, (2, 3)) for r in range(QUARTERS)])
        which = torch.arange(QUARTERS, device=images.device).repeat_interleave(len(images))
        out = self.net(rotated)
        labelled = out.logits.unflatten(0, (QUARTERS, -1))[:, : len(batch.x)].flatten(0, 1)
        rotations = self.rotation(out.features)  # [4 (B + muB), 4]

        loss_x = F.cross_entropy(labelled, batch.y.repeat(QUARTERS))
        loss_u = F.cross_entropy(rotations, which)
        right = (rotations.detach().argmax(1) == which).to(loss_u.dtype).mean()
        metrics = {"loss_x": loss_x.detach(), "loss_u": loss_u.detach(), "rotation_accuracy": right}
        return Step(loss_x + self.config.lambda_u * loss_u, metrics, {})
