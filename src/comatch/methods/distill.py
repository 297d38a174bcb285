"""Distillation: learn what a trained network predicts (SimCLR v2: Chen et al., 2020c).

    p_T, p_S   = softmax(logits / t) of teacher and student, of the weak view u_b
    L          = (1 - alpha) L_x - alpha 1/muB sum_b sum_y p_T(y | u_b) log p_S(y | u_b)

The teacher is the network of a finished run on the same classes, and is never changed. Labelled
images are among the u_b. The teacher sees the same pixels, normalised as it was trained.
"""

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comatch.config import MethodConfig, setting
from comatch.methods.method import Method, Step
from comatch.types import Batch, Task


class Teacher(nn.Module):
    """A network that never changes, behind a change of the channels' normalisation."""

    scale: Tensor  # [3, 1, 1]
    shift: Tensor  # [3, 1, 1]

    def __init__(self, net: nn.Module, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.net = net.requires_grad_(False)
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift)
        self.eval()

    def train(self, mode: bool = True) -> "Teacher":
        return super().train(False)  # batch norm has its running statistics

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.net(images * self.scale + self.shift).logits
        return logits


class Distill(Method):
    """The predictions of a finished run are the labels of all images; it needs --teacher."""

    views = ("weak",)
    labelled_too = True
    rotates_images = True  # the teacher needs the images themselves

    @dataclass(frozen=True)
    class Config(MethodConfig):
        method = "distill"
        teacher: str | None = setting(None, "run folder of the teacher")
        temperature: float = setting(1.0, "t: temperature of both predictions", above=0)
        alpha: float = setting(
            1.0, "weight of the teacher; the rest is that of the labels", least=0, most=1
        )

    def __init__(self, encoder: nn.Module, task: Task, config: Config) -> None:
        super().__init__(encoder, task, config)
        same = torch.ones(3, 1, 1), torch.zeros(3, 1, 1)
        self.teacher = Teacher(copy.deepcopy(self.net), *same)  # until `learn_from`

    def learn_from(self, net: nn.Module, mean: Tensor, std: Tensor) -> None:
        """Take a trained network as teacher, and the normalisation of its images [3]."""
        own_mean, own_std = torch.tensor(self.task.mean), torch.tensor(self.task.std)
        scale, shift = own_std / std, (own_mean - mean) / std
        self.teacher = Teacher(net, scale.view(3, 1, 1), shift.view(3, 1, 1))

    def forward(self, batch: Batch) -> Step:
        c, (images,) = self.config, batch.u
        logits_x, logits_u = self.logits(batch.x, images)
        with torch.no_grad():
            taught = F.softmax(self.teacher(images) / c.temperature, dim=1)
        loss_x = F.cross_entropy(logits_x, batch.y)
        loss_teacher = F.cross_entropy(logits_u / c.temperature, taught)
        return Step(
            (1 - c.alpha) * loss_x + c.alpha * loss_teacher,
            {"loss_x": loss_x.detach(), "loss_teacher": loss_teacher.detach()},
            {},
            taught.argmax(1),
        )
