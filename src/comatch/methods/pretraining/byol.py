"""BYOL: predict the other view's embedding by a slow network (Grill et al., 2020).

    p   = h(g(f(one view))),   z' = g'(f'(the other view)),   both of length one
    L   = 1/B sum_b |p_b - z'_b|^2 = 1/B sum_b (2 - 2 p_b . z'_b),   for both orders of the views

There are no negatives. f' and g' are moving averages of f and g, whose decay grows to 1:

    m   = 1 - (1 - m_0) (cos(pi step / steps) + 1) / 2

The two views are augmented differently: see the settings of the view `other`.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comatch.config import setting
from comatch.memory import Ema
from comatch.methods.method import Step
from comatch.methods.pretraining.pretraining import Pretraining, PretrainingConfig
from comatch.nets.heads import Mlp
from comatch.nets.network import width_of
from comatch.types import Batch, Task


class Byol(Pretraining):
    """One view predicts the embedding that a slowly moving network has of the other."""

    views = ("contrast", "other")

    @dataclass(frozen=True)
    class Config(PretrainingConfig):
        method = "byol"
        embedding_dim: int = setting(256, "dimensions of an embedding", least=1)
        hidden_dim: int = setting(4096, "hidden width of head and predictor", least=1)
        key_momentum: float = setting(
            0.996, "m_0: initial decay of the slow network", least=0, most=1
        )

    def __init__(self, encoder: nn.Module, task: Task, config: Config) -> None:
        hidden, dim = config.hidden_dim, config.embedding_dim
        head = Mlp([width_of(encoder), hidden, dim], norm=True)
        super().__init__(encoder, head, task, config)
        self.predictor = Mlp([dim, hidden, dim], norm=True)
        self.ema = Ema(self.net)

    @property
    def decay(self) -> Tensor:  # []
        left = (torch.cos(math.pi * self.progress) + 1) / 2
        return 1 - (1 - self.config.key_momentum) * left

    def forward(self, batch: Batch) -> Step:
        # Each view is a forward of its own: its batch norm has the statistics of one view.
        predictions = [self.predict(view) for view in batch.u]
        with torch.no_grad():
            slow = self.ema.net
            targets = [F.normalize(slow(view), dim=1) for view in batch.u]
        one, other = predictions
        loss = distance(one, targets[1]) + distance(other, targets[0])
        return Step(loss, {"loss_prediction": loss.detach()}, {})

    def predict(self, view: Tensor) -> Tensor:
        z = self.net(view)
        with torch.autocast(z.device.type, enabled=False):
            return F.normalize(self.predictor(z), dim=1)


def distance(p: Tensor, z: Tensor) -> Tensor:  # []
    """The mean squared distance of rows of length one."""
    return (2 - 2 * (p * z).sum(1)).mean()
