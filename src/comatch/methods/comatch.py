"""CoMatch: class probabilities and embeddings that teach each other (paper, sections 3.1 and 3.2).

Each image has two compact descriptions: class probabilities p from the classification head and
an embedding z from the projection head. The embeddings find neighbours in a memory bank and smooth
the pseudo-labels with them; the pseudo-labels say which images belong together and so shape the
embeddings through a graph-contrastive loss.

    L = L_x + lambda_cls L_u^cls + lambda_ctr L_u^ctr
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comatch import distributed, losses
from comatch.config import MethodConfig, check_name, require, setting
from comatch.memory import RingBuffer, Window
from comatch.methods.method import Method, Remembered, Step
from comatch.methods.selection import SELECTIONS
from comatch.types import UNLABELLED, Batch, Task


class CoMatch(Method):
    """Memory-smoothed pseudo-labels and graph-based contrast, for data with few classes."""

    views = ("weak", "strong", "contrast")

    @dataclass(frozen=True)
    class Config(MethodConfig):
        method = "comatch"
        alpha: float = setting(0.9, "weight of the model's own prediction in a pseudo-label")
        bank_size: int = setting(2560, "K: images in the memory bank")
        temperature: float = setting(0.2, "t: temperature of affinities and embedding graph")
        threshold: float = setting(0.95, "tau: least confidence of a pseudo-label that is learned")
        edge_threshold: float = setting(
            0.8, "T: least similarity of two pseudo-labels that are joined in the graph"
        )
        lambda_cls: float = setting(1.0, "weight of the pseudo-label loss")
        lambda_ctr: float = setting(1.0, "weight of the contrastive loss")
        embedding_dim: int = setting(64, "width of an embedding")
        alignment_window: int = setting(32, "batches whose mean prediction alignment looks at")
        hard_labels: bool = setting(False, "pseudo-labels are learned as one class, as in FixMatch")
        hard_from: float = setting(0.0, "with hard_labels: share of the run before they are hard")
        graph: str = setting("authors", "embedding graph: authors (z.z' everywhere) or paper")
        selection: str = setting(
            "fixed",
            "what is learned: fixed (by tau), adaptive or classwise (FreeMatch), soft (SoftMatch)",
        )
        selection_decay: float = setting(0.999, "share that usual confidences keep at each step")

        def __post_init__(self) -> None:
            check_name(self.graph, ("authors", "paper"), "graph")
            check_name(self.selection, SELECTIONS, "selection")
            decay = self.selection_decay
            require(0 <= decay < 1, f"selection_decay={decay}: must be in [0, 1)")
            require(0 <= self.hard_from <= 1, f"hard_from={self.hard_from}: must be in [0, 1]")
            require(0 <= self.alpha <= 1, f"alpha={self.alpha}: must be in [0, 1]")
            require(self.temperature > 0, f"temperature={self.temperature}: must be above 0")
            for name in ("bank_size", "embedding_dim", "alignment_window"):
                require(getattr(self, name) >= 1, f"{name}: must be at least 1")

    def __init__(self, encoder: nn.Module, task: Task, config: Config) -> None:
        super().__init__(encoder, task, config, config.embedding_dim)
        self.bank_p = RingBuffer(config.bank_size, task.classes)
        self.bank_z = RingBuffer(config.bank_size, config.embedding_dim)
        self.recent_p = Window(config.alignment_window, task.classes)
        self.selection = SELECTIONS[config.selection](task.classes, config.selection_decay)

    def forward(self, batch: Batch) -> Step:
        c = self.config
        weak, strong, contrast = batch.u
        # One forward over all views: batch norm must see them together, or accuracy suffers.
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
            q = torch.where(self.bank_p.full, q, p)  # an unfilled bank says nothing yet
            confidence, label = q.max(1)
            selected = self.selection(q, confidence, label, mean_p, c.threshold)
            target = self.harden(q, label) if c.hard_labels else q

        loss_x = F.cross_entropy(logits_x, batch.y)
        loss_cls = losses.masked_cross_entropy(logits_strong, target, selected.weight)
        # The graph joins the images of all ranks; each of them computes the whole of it.
        every_q, every_z, every_other = map(distributed.gather, (q, z_strong, z_contrast))
        loss_ctr = losses.graph_cross_entropy(
            losses.label_graph(every_q, c.edge_threshold),
            losses.embedding_graph(every_z, every_other, c.temperature, c.graph),
        )
        loss = loss_x + c.lambda_cls * loss_cls + c.lambda_ctr * loss_ctr

        metrics = {"loss_x": loss_x, "loss_cls": loss_cls, "loss_ctr": loss_ctr}
        metrics |= selected.metrics
        # The bank keeps p before smoothing, and the truth for labelled images.
        remember: dict[str, Remembered] = {
            "bank_p": (F.one_hot(batch.y, self.classes).to(p.dtype), p),
            "bank_z": (z_x.detach(), z_weak.detach()),
            "recent_p": mean_p[None],
        }
        if selected.now is not None:
            remember["selection"] = selected.now
        return Step(
            loss,
            {name: value.detach() for name, value in metrics.items()},
            remember,
            label.masked_fill(~selected.confident, UNLABELLED),
        )

    def harden(self, q: Tensor, label: Tensor) -> Tensor:  # [muB, C]
        """One class instead of its probabilities, once the time for it has come."""
        hard = F.one_hot(label, self.classes).to(q.dtype)
        return torch.where(self.progress >= self.config.hard_from, hard, q)
