"""k-means on the device of the data.

Libraries cluster on the CPU: too slow for a million embeddings and 100,000 clusters each epoch.
"""

from typing import NamedTuple

import torch
from torch import Tensor

CHUNK = 4096  # rows whose distances to all centroids are in memory at once


class Clusters(NamedTuple):
    centroids: Tensor  # [k, D]
    assignment: Tensor  # [N] the cluster of each row


@torch.no_grad()
def kmeans(rows: Tensor, k: int, iterations: int = 20) -> Clusters:
    """Lloyd's algorithm from k random rows [N, D]. An empty cluster starts again at a row."""
    centroids = rows[torch.rand(len(rows), device=rows.device).argsort()[:k]].clone()
    for _ in range(iterations):
        assignment = nearest(rows, centroids)
        sums = torch.zeros_like(centroids).index_add_(0, assignment, rows)
        counts = assignment.bincount(minlength=k)[:, None]
        again = rows[torch.randint(len(rows), (k,), device=rows.device)]
        centroids = torch.where(counts > 0, sums / counts.clamp(min=1), again)
    return Clusters(centroids, nearest(rows, centroids))


def nearest(rows: Tensor, centroids: Tensor) -> Tensor:  # [N]
    """The nearest centroid of each row: |x - c|^2 without the term that is the same for all c."""
    half_squares = centroids.square().sum(1) / 2
    return torch.cat([(some @ centroids.T - half_squares).argmax(1) for some in rows.split(CHUNK)])
