"""CoMatch: class probabilities and embeddings that regularise each other (sections 3.1 and 3.2).

Each image has class probabilities p from the classification head and an embedding z from the
projection head. Pseudo-labels are smoothed with those of neighbours in a memory bank, found by
their embeddings. A graph of similar pseudo-labels is the target of the contrastive loss of the
embeddings.

    L = L_x + lambda_cls L_u^cls + lambda_ctr L_u^ctr

Not in the paper: `teachers` multiplies each pseudo-label by the answers of fixed teachers.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comatch import distributed, losses
from comatch.config import MethodConfig, setting
from comatch.memory import RingBuffer, Window
from comatch.methods import teachers
from comatch.methods.method import Method, Remembered, Step
from comatch.methods.selection import THRESHOLDS
from comatch.propagation import shares
from comatch.types import UNLABELLED, AllImages, Batch, Task


class CoMatch(Method):
    """Memory-smoothed pseudo-labels and graph-based contrastive learning, for few classes."""

    views = ("weak", "strong", "contrast")
    taught: Tensor  # [U, C] what the teachers say of each unlabelled image

    @dataclass(frozen=True)
    class Config(MethodConfig):
        method = "comatch"
        alpha: float = setting(
            0.9, "weight of the model's own prediction in a pseudo-label", least=0, most=1
        )
        bank_size: int = setting(2560, "K: images in the memory bank", least=1)
        temperature: float = setting(
            0.2, "t: temperature of affinities and embedding graph", above=0
        )
        threshold: float = setting(
            0.95, "tau: minimum confidence of a pseudo-label", least=0, most=1
        )
        edge_threshold: float = setting(
            0.8,
            "T: minimum similarity of two pseudo-labels that the graph connects",
            least=0,
            most=1,
        )
        lambda_cls: float = setting(1.0, "weight of the pseudo-label loss", least=0)
        lambda_ctr: float = setting(1.0, "weight of the contrastive loss", least=0)
        embedding_dim: int = setting(64, "dimensions of an embedding", least=1)
        alignment_window: int = setting(
            32, "batches over which alignment averages predictions", least=1
        )
        hard_labels: bool = setting(False, "one-hot pseudo-labels, as in FixMatch")
        graph: str = setting(
            "authors",
            "embedding graph: authors (z.z' everywhere) or paper",
            choices=("authors", "paper"),
        )
        selection: str = setting(
            "fixed",
            "threshold of pseudo-labels: fixed (tau) or adaptive (FreeMatch)",
            choices=tuple(THRESHOLDS),
        )
        selection_decay: float = setting(
            0.999, "adaptive: decay of the running means", least=0, below=1
        )
        teachers: float = setting(
            0.0,
            "exponent of the answers of label spreading and self-training in a pseudo-label",
            least=0,
        )

    def __init__(self, encoder: nn.Module, task: Task, config: Config) -> None:
        super().__init__(encoder, task, config, config.embedding_dim)
        self.bank_p = RingBuffer(config.bank_size, task.classes)
        self.bank_z = RingBuffer(config.bank_size, config.embedding_dim)
        self.recent_p = Window(config.alignment_window, task.classes)
        rows = task.unlabelled if config.teachers else 0
        self.register_buffer("taught", torch.ones(rows, task.classes))
        self.selection = THRESHOLDS[config.selection](task.classes, config.selection_decay)

    def needs_all_images(self) -> bool:
        return bool(self.config.teachers)

    @torch.no_grad()
    def before_step(self, step: int, everything: AllImages) -> None:
        if step > 0:
            return
        x, u = self.features(everything.x), self.features(everything.u)
        views = torch.cat([*everything.views] or [x[:, None]])
        taught = teachers.answer(x, everything.y, u, views, self.classes)
        self.taught.copy_(distributed.from_first_rank(taught**self.config.teachers))

    def forward(self, batch: Batch) -> Step:
        c = self.config
        weak, strong, contrast = batch.u
        # One forward over all views: with separate batch norm statistics accuracy is lower.
        sizes = [len(batch.x), len(strong), len(contrast), len(weak)]
        _, logits, z = self.net(torch.cat([batch.x, strong, contrast, weak]))
        logits_x, logits_strong, _, logits_weak = logits.split(sizes)
        z_x, z_strong, z_contrast, z_weak = z.split(sizes)

        with torch.no_grad():
            p = F.softmax(logits_weak, dim=1)  # [muB, C]
            mean_p = p.mean(0)
            p = losses.align(p, self.recent_p.mean_with(mean_p))
            q = losses.memory_smooth(
                p, z_weak, self.bank_p.rows, self.bank_z.rows, c.alpha, c.temperature
            )
            q = torch.where(self.bank_p.full, q, p)  # no smoothing until the bank is full
            if c.teachers:
                q = shares(q * self.taught.index_select(0, batch.rows))
            confidence, label = q.max(1)
            selected = self.selection(q, confidence, label, c.threshold)
            target = F.one_hot(label, self.classes).to(q.dtype) if c.hard_labels else q

        loss_x = F.cross_entropy(logits_x, batch.y)
        loss_cls = losses.masked_cross_entropy(logits_strong, target, selected.confident)
        # The graph has the images of all ranks, and every rank computes all of it.
        every_q, every_z, every_other = map(distributed.gather, (q, z_strong, z_contrast))
        loss_ctr = losses.graph_cross_entropy(
            losses.label_graph(every_q, c.edge_threshold),
            losses.embedding_graph(every_z, every_other, c.temperature, c.graph),
        )
        loss = loss_x + c.lambda_cls * loss_cls + c.lambda_ctr * loss_ctr

        metrics = {"loss_x": loss_x, "loss_cls": loss_cls, "loss_ctr": loss_ctr}
        metrics.update(selected.metrics)
        # The bank stores p before smoothing, and the labels of labelled images.
        remember: dict[str, Remembered] = {
            "bank_p": (F.one_hot(batch.y, self.classes).to(p.dtype), p),
            "bank_z": (z_x.detach(), z_weak.detach()),
            "recent_p": mean_p[None],
        }
        if selected.remember is not None:
            remember["selection"] = selected.remember
        return Step(
            loss,
            {name: value.detach() for name, value in metrics.items()},
            remember,
            label.masked_fill(~selected.confident, UNLABELLED),
        )
