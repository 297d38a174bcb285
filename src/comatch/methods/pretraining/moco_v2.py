"""MoCo v2: contrast with a queue of keys (He et al., 2020; Chen et al., 2020b).

    q   = g(f(one view)),  k = g'(f'(the other view)),  both of length one
    L   = -1/B sum_b log exp(q_b . k_b / t) / (exp(q_b . k_b / t) + sum_j exp(q_b . n_j / t))

f' and g' are moving averages of f and g. The negatives n are the keys of earlier batches, in a
queue: so their number does not depend on the batch. Batch norm sees only a part of the batch, and
the keys are distributed over the parts in another order than the queries (shuffled batch norm),
as on several GPUs: see `comatch.nets.split_batchnorm`.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comatch import distributed, losses
from comatch.config import setting
from comatch.errors import UserError
from comatch.memory import Ema, RingBuffer, random_units
from comatch.methods.method import Step
from comatch.methods.pretraining.pretraining import (
    Pretraining,
    PretrainingConfig,
    require_images,
)
from comatch.nets.heads import Mlp
from comatch.nets.network import width_of
from comatch.nets.split_batchnorm import split_batchnorm
from comatch.types import Batch, Task


class MoCoV2(Pretraining):
    """One view of an image attracts the other, a queue of earlier images repels."""

    views = ("contrast", "contrast")

    @dataclass(frozen=True)
    class Config(PretrainingConfig):
        method = "moco_v2"
        temperature: float = setting(0.2, "t: temperature of similarities", above=0)
        queue_size: int = setting(65_536, "keys in the queue", least=1)
        key_momentum: float = setting(0.999, "decay of the key encoder", least=0, most=1)
        norm_groups: int = setting(
            8, "parts of a batch that batch norm normalises alone; 1: it is not shuffled", least=1
        )

    def __init__(self, encoder: nn.Module, task: Task, config: Config) -> None:
        super().__init__(encoder, self.head(width_of(encoder), config), task, config)
        if config.norm_groups > 1:
            split_batchnorm(self.net, config.norm_groups)
        self.ema = Ema(self.net)
        self.queue = RingBuffer(config.queue_size, config.embedding_dim)
        self.queue.rows.copy_(random_units(config.queue_size, config.embedding_dim))

    @staticmethod
    def head(width: int, config: Config) -> nn.Module:
        return Mlp([width, width, config.embedding_dim])

    def check_images(self, images: int, batch: int) -> None:
        parts, ranks = self.config.norm_groups, distributed.world()
        require_images(images, self.config.queue_size, "queue_size", "is more than an epoch")
        if (batch // ranks) % max(1, parts // ranks):
            raise UserError(
                f"batch={batch} cannot be shared evenly by norm_groups={parts} parts: "
                f"use --set batch={max(1, batch // parts) * parts}"
            )

    def forward(self, batch: Batch) -> Step:
        q, k = self.embed(batch)
        loss = losses.info_nce(q, k, self.queue.rows, self.config.temperature)
        return Step(loss, {"loss_contrast": loss.detach()}, {"queue": k})

    def embed(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Queries, and keys without a gradient: [B, D] each."""
        view, other = batch.u
        q = F.normalize(self.net(view), dim=1)
        with torch.no_grad():
            key_net = self.ema.net
            if self.config.norm_groups == 1:
                return q, F.normalize(key_net(other), dim=1)
            order = torch.rand(len(other), device=other.device).argsort()
            k = key_net(other.index_select(0, order))
            return q, F.normalize(k, dim=1).index_select(0, order.argsort())
