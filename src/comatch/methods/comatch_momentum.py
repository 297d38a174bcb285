"""CoMatch for ImageNet: an EMA teacher and a momentum queue (section 3.3).

With 1,000 classes a batch has too few images of each class for a graph. So the graph connects the
batch with the last K unlabelled images, whose embeddings and pseudo-labels are in a queue. They are
computed by the EMA model, which changes slowly, so old and new ones are comparable. The EMA model
also computes the pseudo-labels.

    L = L_x + lambda_cls L_u^cls + min(epoch + 1, lambda_ctr) L_u^ctr

Gradients flow only through the network's own views: labelled images and one strong view.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comatch import distributed, losses
from comatch.config import MethodConfig, setting
from comatch.memory import RingBuffer, Window
from comatch.methods.method import Method, Remembered, Step
from comatch.types import UNLABELLED, Batch, Task


class CoMatchMomentum(Method):
    """CoMatch with an EMA teacher and a momentum queue, for many classes."""

    views = ("weak", "contrast", "contrast")

    @dataclass(frozen=True)
    class Config(MethodConfig):
        method = "comatch_momentum"
        ema_decay: float = setting(0.996, "m: decay of the EMA model", least=0, most=1)
        evaluate: str = setting(
            "raw",
            "weights that are evaluated and saved: ema (averaged) or raw (the network's own)",
            choices=("ema", "raw"),
        )
        first_decay: float = setting(
            0.99, "decay of the EMA model in the first epoch", least=0, most=1
        )
        alpha: float = setting(
            0.9, "weight of the EMA model's prediction in a pseudo-label", least=0, most=1
        )
        bank_size: int = setting(30_000, "K: images in the memory bank, and in the queue", least=1)
        temperature: float = setting(
            0.1, "t: temperature of affinities and embedding graph", above=0
        )
        threshold: float = setting(
            0.6, "tau: minimum confidence of a pseudo-label", least=0, most=1
        )
        edge_threshold: float = setting(
            0.3,
            "T: minimum similarity of two pseudo-labels that the graph connects",
            least=0,
            most=1,
        )
        lambda_cls: float = setting(10.0, "weight of the pseudo-label loss", least=0)
        lambda_ctr: float = setting(
            10.0,
            "final weight of the contrastive loss, which starts at 1 and grows by 1 an epoch",
            least=0,
        )
        embedding_dim: int = setting(128, "dimensions of an embedding", least=1)
        alignment_window: int = setting(
            128, "batches over which alignment averages predictions", least=1
        )

    def __init__(self, encoder: nn.Module, task: Task, config: Config) -> None:
        super().__init__(encoder, task, config, config.embedding_dim)
        self.bank_p = RingBuffer(config.bank_size, task.classes)
        self.bank_z = RingBuffer(config.bank_size, config.embedding_dim)
        self.queue_q = RingBuffer(config.bank_size, task.classes)
        self.queue_z = RingBuffer(config.bank_size, config.embedding_dim)
        self.recent_p = Window(config.alignment_window, task.classes)

    def forward(self, batch: Batch) -> Step:
        c = self.config
        weak, strong, other = batch.u
        _, logits, z = self.net(torch.cat([batch.x, strong]))
        sizes = [len(batch.x), len(strong)]
        (logits_x, logits_strong), (_, z_strong) = logits.split(sizes), z.split(sizes)

        with torch.no_grad():
            _, logits, z = self.ema.net(torch.cat([batch.x, weak, other]))
            sizes = [len(batch.x), len(weak), len(other)]
            z_x, z_weak, z_other = z.split(sizes)
            p = F.softmax(logits.split(sizes)[1], dim=1)  # [muB, C]
            mean_p = p.mean(0)
            p = losses.align(p, self.recent_p.mean_with(mean_p))
            q = losses.memory_smooth(
                p, z_weak, self.bank_p.rows, self.bank_z.rows, c.alpha, c.temperature
            )
            # In the first epoch the embeddings are not good enough for smoothing.
            q = torch.where(self.bank_p.full & (self.epoch >= 1), q, p)
            confidence, label = q.max(1)
            confident = confidence >= c.threshold
            every_q, every_z = distributed.gather(q), distributed.gather(z_other)

        loss_x = F.cross_entropy(logits_x, batch.y)
        loss_cls = losses.masked_cross_entropy(logits_strong, q, confident)
        loss_ctr = losses.queue_contrast(
            z_strong,
            q,
            torch.cat([every_z, self.queue_z.rows.to(z.dtype)]),
            torch.cat([every_q, self.queue_q.rows.to(q.dtype)]),
            torch.cat([confident.new_ones(len(every_q)), self.queue_q.kept_by(len(every_q))]),
            c.edge_threshold,
            c.temperature,
            first=distributed.rank() * len(q),
        )
        weight = (self.epoch + 1).clamp(max=c.lambda_ctr)
        loss = loss_x + c.lambda_cls * loss_cls + weight * loss_ctr

        metrics = {"loss_x": loss_x, "loss_cls": loss_cls, "loss_ctr": loss_ctr, "weight": weight}
        remember: dict[str, Remembered] = {
            # The bank stores p before smoothing, and the labels of labelled images.
            "bank_p": (F.one_hot(batch.y, self.classes).to(p.dtype), p),
            "bank_z": (z_x, z_weak),
            "queue_q": q,
            "queue_z": z_other,
            "recent_p": mean_p[None],
        }
        return Step(
            loss,
            {name: value.detach() for name, value in metrics.items()},
            remember,
            label.masked_fill(~confident, UNLABELLED),
        )

    @property
    def epoch(self) -> Tensor:  # [] whole number
        return self.step // self.task.epoch

    @property
    def decay(self) -> Tensor:  # []
        first = (self.epoch == 0).to(torch.float32)
        return first * self.config.first_decay + (1 - first) * self.config.ema_decay
