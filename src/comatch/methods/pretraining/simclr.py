"""SimCLR: two views of an image attract each other (Chen et al., 2020a).

    z   = g(f(x)) / |g(f(x))|
    L   = -1/2N sum_i log exp(z_i . z_j(i) / t) / sum_{k != i} exp(z_i . z_k / t)

j(i) is the other view of the same image. All 2(N - 1) views of other images in the batch of all
ranks are negatives, so a large batch helps. The head g has batch norm after each layer, as in the
published code.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from comatch import distributed, losses
from comatch.config import setting
from comatch.methods.method import Step
from comatch.methods.pretraining.pretraining import Pretraining, PretrainingConfig
from comatch.nets.heads import Mlp
from comatch.nets.network import width_of
from comatch.types import Batch, Task


class SimCLR(Pretraining):
    """Two views of an image attract each other, all other images of the batch repel."""

    views = ("contrast", "contrast")

    @dataclass(frozen=True)
    class Config(PretrainingConfig):
        method = "simclr"
        temperature: float = setting(0.1, "t: temperature of similarities", above=0)
        head_layers: int = setting(2, "layers of the projection head; SimCLR v2: 3", least=1)

    def __init__(self, encoder: nn.Module, task: Task, config: Config) -> None:
        widths = [width_of(encoder)] * config.head_layers + [config.embedding_dim]
        super().__init__(encoder, Mlp(widths, norm=True, last_norm=True), task, config)

    def forward(self, batch: Batch) -> Step:
        sizes = [len(view) for view in batch.u]
        z = F.normalize(self.net(torch.cat(batch.u)), dim=1)
        first, second = map(distributed.gather, z.split(sizes))  # every rank computes all of it
        loss = losses.nt_xent(first, second, self.config.temperature)
        return Step(loss, {"loss_contrast": loss.detach()}, {})
