"""Label propagation over a nearest-neighbour graph of the features (Iscen et al., 2019).

    W   = nearest-neighbour graph of the features of all images, normalised
    Z   = (I - alpha W)^-1 Y,   label_i = argmax Z_i,   certainty_i = 1 - H(Z_i / sum Z_i) / log C
    L   = 1/B sum_b class_weight(y_b) H(y_b, p_b)
          + 1/muB sum_b certainty_b class_weight(label_b) H(label_b, p_b)

First the network is trained on the labels alone. Then labels are propagated over the graph to all
images, and the network is trained on these pseudo-labels; this is repeated with new features. The
weight of a class is one over its number of images, so no class dominates.

The steps of propagation are known in advance, and the result is stored in buffers. Before the first
propagation every certainty is zero, so one captured step serves both phases.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comatch import distributed, propagation
from comatch.config import MethodConfig, setting
from comatch.methods.method import Method, Step
from comatch.types import UNLABELLED, AllImages, Batch, Task


class LabelPropagation(Method):
    """Pseudo-labels propagated over a graph of neighbours, weighted by their certainty."""

    views = ("weak",)
    label: Tensor  # [U] pseudo-label of each unlabelled image, or UNLABELLED
    certainty: Tensor  # [U]
    class_weight: Tensor  # [C]

    @dataclass(frozen=True)
    class Config(MethodConfig):
        method = "label_propagation"
        warm_up: float = setting(0.1, "share of the run on the labels alone", least=0, below=1)
        refreshes: int = setting(50, "number of propagations in the rest of the run", least=1)
        neighbours: int = setting(50, "k: neighbours of each image in the graph", least=1)
        gamma: float = setting(
            3.0, "exponent of similarities; large values leave only the nearest", above=0
        )
        alpha: float = setting(
            0.99, "how far labels spread; near 1: through the whole graph", least=0, below=1
        )
        iterations: int = setting(20, "steps of conjugate gradients in a propagation", least=1)

    def __init__(self, encoder: nn.Module, task: Task, config: Config) -> None:
        super().__init__(encoder, task, config)
        self.register_buffer("label", torch.full((task.unlabelled,), UNLABELLED))
        self.register_buffer("certainty", torch.zeros(task.unlabelled))
        self.register_buffer("class_weight", torch.ones(task.classes))

    def before_step(self, step: int, everything: AllImages) -> None:
        if self.due(step):
            self.refresh(everything)

    def due(self, step: int) -> bool:
        """Whether labels are propagated before this step: at even intervals after the warm-up.

        It depends on the step alone, so a resumed run propagates at the same steps.
        """
        first = int(self.config.warm_up * self.task.steps)
        rest = self.task.steps - first
        done, due = ((s - first) * self.config.refreshes // rest for s in (step - 1, step))
        return step >= first and due > done

    @torch.no_grad()
    def refresh(self, everything: AllImages) -> None:
        c, y = self.config, everything.y
        v = torch.cat([self.features(everything.x), self.features(everything.u)])  # [X + U, D]
        graph = propagation.neighbour_graph(v, c.neighbours, c.gamma)
        known = F.one_hot(y, self.classes).to(v.dtype)
        known = torch.cat([known, known.new_zeros(len(v) - len(y), self.classes)])
        z = propagation.propagate(graph, known, c.alpha, c.iterations)[len(y) :]  # [U, C]

        certainty = propagation.certainty(z)
        label = z.argmax(1).masked_fill(certainty == 0, UNLABELLED)
        weight = propagation.class_weights(torch.cat([y, label[label >= 0]]), self.classes)
        for mine, new in (
            (self.label, label),
            (self.certainty, certainty),
            (self.class_weight, weight),
        ):  # those of the first rank, because another GPU may round differently
            mine.copy_(distributed.from_first_rank(new))

    def features(self, inputs: Iterable[Tensor]) -> Tensor:
        """f(x) [N, D] of length one."""
        return F.normalize(super().features(inputs), dim=1)

    def forward(self, batch: Batch) -> Step:
        (weak,) = batch.u
        logits_x, logits_u = self.logits(batch.x, weak)
        label = self.label.index_select(0, batch.rows)  # [muB]
        certainty = self.certainty.index_select(0, batch.rows)

        loss_x = self.weighted(logits_x, batch.y).mean()
        loss_u = (certainty * self.weighted(logits_u, label)).mean()
        metrics = {"loss_x": loss_x, "loss_u": loss_u, "certainty": certainty.mean()}
        return Step(
            loss_x + loss_u,
            {name: value.detach() for name, value in metrics.items()},
            {},
            label,
        )

    def weighted(self, logits: Tensor, label: Tensor) -> Tensor:
        """Cross-entropy of each image times the weight of its class; zero without a label."""
        return F.cross_entropy(
            logits, label, self.class_weight, ignore_index=UNLABELLED, reduction="none"
        )
