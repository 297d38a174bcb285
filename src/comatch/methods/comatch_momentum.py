"""CoMatch at the scale of ImageNet: an EMA model teaches, a queue joins the graph (section 3.3).

With a thousand classes a batch holds too few images of each to make a graph. So the graph joins
the batch with the last K unlabelled images, whose embeddings and pseudo-labels wait in a queue;
they come from a slowly moving copy of the network, so that old ones still fit to new ones. That
copy also makes the pseudo-labels.

    L = L_x + lambda_cls L_u^cls + min(epoch + 1, lambda_ctr) L_u^ctr

Gradient flows only through the network's own views: labelled images and one strong view.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comatch import distributed, losses
from comatch.config import MethodConfig, setting
from comatch.memory import RingBuffer, Window
from comatch.methods.method import Method, Remembered, Step
from comatch.nets.network import Network
from comatch.types import UNLABELLED, Batch, Task


class CoMatchMomentum(Method):
    """CoMatch with an EMA teacher and a momentum queue, for data with many classes."""

    views = ("weak", "contrast", "contrast")
    evaluated_weights = "the network's own weights"

    @dataclass(frozen=True)
    class Config(MethodConfig):
        method = "comatch_momentum"
        ema_decay: float = setting(
            0.996, "m: share of itself that the EMA model keeps at a step", least=0, most=1
        )
        first_decay: float = setting(
            0.99, "the same in the first epoch, which has more to forget", least=0, most=1
        )
        alpha: float = setting(
            0.9, "weight of the EMA model's own prediction in a pseudo-label", least=0, most=1
        )
        bank_size: int = setting(30_000, "K: images in the memory bank, and in the queue", least=1)
        temperature: float = setting(
            0.1, "t: temperature of affinities and embedding graph", above=0
        )
        threshold: float = setting(
            0.6, "tau: least confidence of a pseudo-label that is learned", least=0, most=1
        )
        edge_threshold: float = setting(
            0.3,
            "T: least similarity of two pseudo-labels that are joined in the graph",
            least=0,
            most=1,
        )
        lambda_cls: float = setting(10.0, "weight of the pseudo-label loss", least=0)
        lambda_ctr: float = setting(
            10.0, "largest weight of the contrastive loss, from 1 on", least=0
        )
        embedding_dim: int = setting(128, "width of an embedding", least=1)
        alignment_window: int = setting(
            128, "batches whose mean prediction alignment looks at", least=1
        )

    def __init__(self, encoder: nn.Module, task: Task, config: Config) -> None:
        super().__init__(encoder, task, config, config.embedding_dim)
        self.bank_p = RingBuffer(config.bank_size, task.classes)
        self.bank_z = RingBuffer(config.bank_size, config.embedding_dim)
        self.queue_q = RingBuffer(config.bank_size, task.classes)
        self.queue_z = RingBuffer(config.bank_size, config.embedding_dim)
        self.recent_p = Window(config.alignment_window, task.classes)

    @property
    def evaluated(self) -> Network:
        """The network itself: so the paper compares, not its EMA copy."""
        return self.net

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
            # In the first epoch, embeddings do not yet say who is whose neighbour.
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
            # The bank keeps p before smoothing, and the truth for labelled images.
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
