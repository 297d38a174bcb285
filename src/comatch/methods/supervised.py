"""Training on the labelled images alone: the baseline of every other method."""

from dataclasses import dataclass

import torch.nn.functional as F

from comatch.config import MethodConfig
from comatch.methods.method import Method, Step
from comatch.types import Batch


class Supervised(Method):
    """Cross-entropy on the labels; unlabelled images are not used."""

    @dataclass(frozen=True)
    class Config(MethodConfig):
        method = "supervised"

    def forward(self, batch: Batch) -> Step:
        loss = F.cross_entropy(self.net(batch.x).logits, batch.y)
        return Step(loss, {"loss_x": loss.detach()}, {})
