"""How well features separate classes: nearest neighbours and a linear classifier on top of them.

Pre-training uses no label; these scores are for people who follow it on data with known labels.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from comatch import distributed
from comatch.types import Part

MOST = 100_000  # labelled images whose features are compared
NEIGHBOURS = 20
TEMPERATURE = 0.07
CHUNK = 1024


class Labelled(NamedTuple):
    x: Tensor  # [N, width] features
    y: Tensor  # [N]


def encode(
    part: Part, pieces: Callable[[Part], Iterable[tuple[Tensor, Tensor]]], f: Callable[..., Tensor]
) -> Labelled:
    """Features of the labelled images of a part, of at most `MOST` of them, evenly spaced.

    Each rank encodes its share, and all return the same. Half precision is exact enough.
    """
    known = (part.labels >= 0).nonzero().flatten()
    known = known[:: max(1, -(-len(known) // MOST))]
    mine = part.subset(known[distributed.rank() :: distributed.world()])
    found = [(f(inputs).half().cpu(), y) for inputs, y in pieces(mine)] if len(mine) else []
    every = [piece for several in distributed.collect(found) for piece in several]
    return Labelled(torch.cat([x for x, _ in every]), torch.cat([y for _, y in every]))


def nearest_neighbours(train: Labelled, test: Labelled, device: torch.device) -> float:
    """Accuracy of weighted nearest neighbours (Wu et al., 2018).

    The weight of a neighbour is exp(cosine / t), with k = 20 neighbours and t = 0.07.
    """
    rows, right = F.normalize(train.x.to(device).float(), dim=1), 0
    classes, y = int(train.y.max()) + 1, train.y.to(device)
    for x, truth in zip(test.x.split(CHUNK), test.y.split(CHUNK), strict=True):
        cosines = F.normalize(x.to(device).float(), dim=1) @ rows.T
        near, which = cosines.topk(min(NEIGHBOURS, len(rows)), dim=1)
        votes = torch.zeros(len(x), classes, device=device)
        votes.scatter_add_(1, y[which], (near / TEMPERATURE).exp())
        right += int((votes.argmax(1).cpu() == truth).sum())
    return right / len(test.y)


def linear(train: Labelled, test: Labelled) -> float:
    """Accuracy of a logistic regression on standardised features. The first rank computes it."""
    accuracy = 0.0
    if distributed.rank() == 0:
        from sklearn.linear_model import LogisticRegression  # slow to import
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=300))
        model.fit(train.x.float().numpy(), train.y.numpy())
        accuracy = float(model.score(test.x.float().numpy(), test.y.numpy()))
    first: float = distributed.collect(accuracy)[0]
    return first


def can_monitor(train: Part, test: Part) -> bool:
    """Whether there are labels for these scores: of two classes, and of some test images."""
    classes = train.labels[train.labels >= 0].unique()
    return len(classes) > 1 and bool((test.labels >= 0).any())
