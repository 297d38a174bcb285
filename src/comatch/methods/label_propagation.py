"""Label propagation: labels flow to neighbours among the features, again and again (Iscen, 2019).

    W   = nearest-neighbour graph of the features of all images, normalised
    Z   = (I - alpha W)^-1 Y,   label_i = argmax Z_i,   certainty_i = 1 - H(Z_i / sum Z_i) / log C
    L   = 1/B sum_b class_weight(y_b) H(y_b, p_b)
          + 1/muB sum_b certainty_b class_weight(label_b) H(label_b, p_b)

First the network learns the labels alone. Then its features make a graph, in which the labels
spread to every image, and it learns those; better features make a better graph, and so on. A
class weighs one over the images that have it, so that a class which spreads far does not win.

The labels are spread at steps that are known beforehand, and are kept as buffers. Until then every
certainty is zero, so one graph of the step serves both phases.
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
    """Labels spread over a graph of neighbours, and are learned as far as they are certain."""

    views = ("weak",)
    label: Tensor  # [U] what was propagated to each unlabelled image, or UNLABELLED
    certainty: Tensor  # [U]
    class_weight: Tensor  # [C]

    @dataclass(frozen=True)
    class Config(MethodConfig):
        method = "label_propagation"
        warm_up: float = setting(
            0.1, "share of the run in which the labels alone are learned", least=0, below=1
        )
        refreshes: int = setting(
            50, "times that labels are propagated in the rest of the run", least=1
        )
        neighbours: int = setting(50, "k: images that each is joined with in the graph", least=1)
        gamma: float = setting(
            3.0, "power of a similarity: large ones leave only the nearest", above=0
        )
        alpha: float = setting(
            0.99, "how far labels spread: near 1, through the whole graph", least=0, below=1
        )
        iterations: int = setting(20, "steps of conjugate gradients that spread them", least=1)

    def __init__(self, encoder: nn.Module, task: Task, config: Config) -> None:
        super().__init__(encoder, task, config)
        self.register_buffer("label", torch.full((task.unlabelled,), UNLABELLED))
        self.register_buffer("certainty", torch.zeros(task.unlabelled))
        self.register_buffer("class_weight", torch.ones(task.classes))

    def before_step(self, step: int, everything: AllImages) -> None:
        if self.due(step):
            self.refresh(everything)

    def due(self, step: int) -> bool:
        """Whether labels are propagated before this step: evenly, from the end of the warm-up.

        It depends on nothing but the step's number, so a run that goes on does as one that never
        stopped.
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
        ):  # the first rank's, because another GPU may round differently
            mine.copy_(distributed.from_first_rank(new))

    def features(self, inputs: Iterable[Tensor]) -> Tensor:
        """f(x) [N, D] at length one, of inputs in chunks."""
        with self.net.eval_mode():
            return torch.cat([F.normalize(self.net(x).features, dim=1) for x in inputs])

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
