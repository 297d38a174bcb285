"""PCL: embeddings approach the prototypes of their clusters (Li et al., 2021).

    L   = InfoNCE + 1/M sum_m -log exp(q . c_s / phi_s) / sum_j exp(q . c_j / phi_j)

Each epoch, k-means clusters the embeddings that the key encoder has of all images, M times with
other numbers of clusters. c_s is the centroid of the image's cluster; c_j are r others. phi is the
concentration of a cluster, from the distances of its Z images:

    phi = sum_z |k_z - c| / (Z log(Z + alpha)),   scaled to a mean of t

InfoNCE is MoCo's. The prototypes begin after a share of the run. As in the published code, phi is
kept between its tenth and ninetieth percentile, and a cluster of one image has the largest.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comatch import distributed, losses
from comatch.clustering import Clusters, kmeans
from comatch.config import setting
from comatch.errors import UserError
from comatch.methods.method import Step
from comatch.methods.pretraining.moco_v2 import MoCoV2
from comatch.nets.heads import Mlp
from comatch.types import AllImages, Batch, Task


class Pcl(MoCoV2):
    """Views attract the prototype of their cluster, at several numbers of clusters."""

    clustered: Tensor  # [] 1 once there are prototypes

    @dataclass(frozen=True)
    class Config(MoCoV2.Config):
        method = "pcl"
        temperature: float = setting(0.1, "t: temperature, and mean concentration", above=0)
        queue_size: int = setting(16_000, "keys in the queue", least=1)
        clusters: int = setting(25_000, "of the coarsest clustering", least=2)
        clusterings: int = setting(3, "M: each has twice the clusters of the one before", least=1)
        negatives: int = setting(16_000, "r: other prototypes in a loss", least=1)
        smoothing: float = setting(10.0, "alpha of the concentration", above=0)
        instance_share: float = setting(
            0.1, "share of the run that has no prototypes yet", least=0, most=1
        )

    def __init__(self, encoder: nn.Module, task: Task, config: Config) -> None:
        super().__init__(encoder, task, config)
        self.sizes = [config.clusters * 2**m for m in range(config.clusterings)]
        for m, k in enumerate(self.sizes):
            self.register_buffer(f"centroids{m}", torch.zeros(k, config.embedding_dim))
            self.register_buffer(f"concentration{m}", torch.ones(k))
            self.register_buffer(f"cluster_of{m}", torch.zeros(task.unlabelled, dtype=torch.long))
        self.register_buffer("clustered", torch.zeros(()))
        self.first = round(config.instance_share * task.steps)  # step that needs prototypes

    @staticmethod
    def head(width: int, config: MoCoV2.Config) -> nn.Module:
        return Mlp([width, config.embedding_dim])

    def check_images(self, images: int, batch: int) -> None:
        super().check_images(images, batch)
        if images < self.sizes[-1]:
            most = images // 2 ** (self.config.clusterings - 1)
            raise UserError(
                f"clusters={self.sizes[0]:,} becomes {self.sizes[-1]:,} in the last clustering, "
                f"and there are {images:,} images: --set clusters={most} or less"
            )

    @torch.no_grad()
    def before_step(self, step: int, everything: AllImages) -> None:
        if step < self.first or (step - self.first) % self.task.epoch:
            return
        key_net = self.ema.net
        with key_net.eval_mode():
            keys = torch.cat([F.normalize(key_net(x), dim=1) for x in everything.u])
        for m, k in enumerate(self.sizes):
            found = kmeans(keys, k)
            phi = concentration(keys, found, self.config.smoothing, self.config.temperature)
            for name, value in (
                (f"centroids{m}", F.normalize(found.centroids, dim=1)),
                (f"concentration{m}", phi),
                (f"cluster_of{m}", found.assignment),
            ):
                getattr(self, name).copy_(distributed.from_first_rank(value))
        self.clustered.fill_(1)

    def forward(self, batch: Batch) -> Step:
        q, k = self.embed(batch)
        loss_instance = losses.info_nce(q, k, self.queue.rows, self.config.temperature)
        parts = [self.contrast_prototypes(q, batch.rows, m) for m in range(len(self.sizes))]
        loss_prototype = self.clustered * torch.stack(parts).mean()
        return Step(
            loss_instance + loss_prototype,
            {"loss_contrast": loss_instance.detach(), "loss_prototype": loss_prototype.detach()},
            {"queue": k},
        )

    def contrast_prototypes(self, q: Tensor, rows: Tensor, m: int) -> Tensor:
        centroids, phi = getattr(self, f"centroids{m}"), getattr(self, f"concentration{m}")
        own = getattr(self, f"cluster_of{m}").index_select(0, rows)  # [B]
        drawn = torch.rand(len(centroids), device=q.device).argsort()[: self.config.negatives]
        scaled = (centroids / phi[:, None]).to(q.dtype)
        positive = (q * scaled.index_select(0, own)).sum(1, keepdim=True)
        others = (q @ scaled.index_select(0, drawn).T).masked_fill(
            own[:, None] == drawn, -torch.inf
        )
        return -F.log_softmax(torch.cat([positive, others], 1), dim=1)[:, 0].mean()


def concentration(keys: Tensor, found: Clusters, alpha: float, t: float) -> Tensor:  # [k]
    """phi of each cluster, with a mean of t."""
    k = len(found.centroids)
    distance = (keys - found.centroids[found.assignment]).norm(dim=1)
    total = torch.zeros(k, dtype=keys.dtype, device=keys.device)
    total.index_add_(0, found.assignment, distance)
    size = found.assignment.bincount(minlength=k).to(keys.dtype)
    phi = total / (size * (size + alpha).log()).clamp(min=1)
    phi = torch.where(size > 1, phi, phi.amax())
    low, high = phi.quantile(0.1), phi.quantile(0.9)
    phi = phi.clamp(low, high)
    return t * phi / phi.mean()
