"""SwAV: views of an image predict each other's cluster (Caron et al., 2020).

    s_v = z_v C^T              similarities of view v and K prototypes
    q_v = Sinkhorn(s_v)        soft clusters of the batch: every prototype is used equally
    L   = mean over large views i and other views v of -sum_k q_i[k] log softmax(s_v / t)[k]

There are two large views, which give the clusters, and several small ones, which only predict them
(multi-crop). Prototypes have length one. In the first epoch they do not learn.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comatch import distributed
from comatch.config import setting
from comatch.memory import random_units
from comatch.methods.method import Remembered, Step
from comatch.methods.pretraining.pretraining import Pretraining, PretrainingConfig
from comatch.nets.heads import Mlp
from comatch.nets.network import width_of
from comatch.types import Batch, Task


class SwAV(Pretraining):
    """Views of an image predict each other's cluster, which all images fill equally."""

    views: tuple[str, ...] = ("contrast", "contrast")  # and the small ones

    @dataclass(frozen=True)
    class Config(PretrainingConfig):
        method = "swav"
        temperature: float = setting(0.1, "t: temperature of predictions", above=0)
        prototypes: int = setting(3000, "K: prototypes", least=1)
        epsilon: float = setting(0.05, "regularisation of Sinkhorn's algorithm", above=0)
        iterations: int = setting(3, "of Sinkhorn's algorithm", least=1)
        hidden_dim: int = setting(2048, "hidden width of the projection head", least=1)
        small_views: int = setting(6, "small views of each image", least=0)

    def __init__(self, encoder: nn.Module, task: Task, config: Config) -> None:
        widths = [width_of(encoder), config.hidden_dim, config.embedding_dim]
        super().__init__(encoder, Mlp(widths, norm=True), task, config)
        self.views = (*SwAV.views, *["small"] * config.small_views)
        self.prototypes = nn.Parameter(random_units(config.prototypes, config.embedding_dim))

    def forward(self, batch: Batch) -> Step:
        c, size = self.config, len(batch.rows)
        features = [self.net.encode(torch.cat(batch.u[:2]))]
        if batch.u[2:]:  # views of another size are a forward of their own
            features.append(self.net.encode(torch.cat(batch.u[2:])))
        z = F.normalize(self.net.project(torch.cat(features)), dim=1)
        learns = self.step >= self.task.epoch
        prototypes = torch.where(learns, self.prototypes, self.prototypes.detach())
        scores = (z @ prototypes.T).split(size)  # [B, K] of each view

        with torch.no_grad():
            mine = slice(distributed.rank() * size, (distributed.rank() + 1) * size)
            clusters = [
                sinkhorn(distributed.gather(s), c.epsilon, c.iterations)[mine] for s in scores[:2]
            ]
        predictions = [F.log_softmax(s / c.temperature, dim=1) for s in scores]
        pairs = [
            -(q * predicted).sum(1).mean()
            for i, q in enumerate(clusters)
            for v, predicted in enumerate(predictions)
            if v != i
        ]
        loss = torch.stack(pairs).mean()
        return Step(loss, {"loss_swap": loss.detach()}, {})

    @torch.no_grad()
    def after_step(self, remember: dict[str, Remembered]) -> None:  # type: ignore[override]
        self.prototypes.copy_(F.normalize(self.prototypes, dim=1))
        super().after_step(remember)


def sinkhorn(scores: Tensor, epsilon: float, iterations: int) -> Tensor:
    """Soft clusters [B, K] of similarities: rows sum to one, columns to nearly B / K each."""
    q = ((scores - scores.max()) / epsilon).exp()
    for _ in range(iterations):
        q = q / q.sum(0, keepdim=True).clamp(min=torch.finfo(q.dtype).tiny)
        q = q / q.sum(1, keepdim=True)
    return q
