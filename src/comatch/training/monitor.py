"""How well the features of a run without labels separate the classes, where these are known."""

import torch
from torch import Tensor

from comatch.evaluation import representation
from comatch.training.build import Built
from comatch.types import Part


def monitor(run: Built, train: Part, parts: dict[str, Part | None], last: bool) -> dict[str, float]:
    """Accuracy of nearest neighbours on each part, and after the last step of a linear classifier.

    Both are fitted to the labels of the training images, which the run itself never sees.
    """
    net, device = run.method.evaluated, run.mean.device

    @torch.no_grad()
    def encode(inputs: Tensor) -> Tensor:
        with net.eval_mode():
            return net.encode(inputs)

    scores: dict[str, float] = {}
    seen: representation.Labelled | None = None
    for prefix, part in parts.items():
        if part is None or not representation.can_monitor(train, part):
            continue
        seen = seen or representation.encode(train, run.feed.inputs, encode)
        held_out = representation.encode(part, run.feed.inputs, encode)
        scores[f"{prefix}knn_top1"] = representation.nearest_neighbours(seen, held_out, device)
        if last:
            scores[f"{prefix}linear_top1"] = representation.linear(seen, held_out)
    return scores
