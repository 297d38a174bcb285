"""How well an image fits the classes: its distance to the labelled images in feature space.

A network gives an image of something else, an out-of-distribution image, one of its classes too,
and often with a high probability. Its features are far from those of the labelled images:

    d(x) = mean over the K nearest labelled images of 1 - cos(f(x), f(image))
    fit(x) = (1 + number of held-out images with a distance of at least d(x)) / (1 + their number)

So of images like the held-out ones, a share of r has a fit of at most r (a conformal p-value).
Unlabelled images are not compared with: some of them may be out-of-distribution.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

NEIGHBOURS = 5
MOST = 4096  # images that are stored: 2 MB with 256 features
LEAST = 50  # held-out images; with fewer, each labelled image is held out in turn
CHUNK = 1024


def sampled(images: int) -> slice:
    """At most `MOST` of so many images, evenly over their order."""
    return slice(None, None, -(-images // MOST))


class KnownImages:
    """Features of training images, and the distances of held-out ones."""

    def __init__(self, features: Tensor, distances: Tensor) -> None:
        self.features = F.normalize(features.float(), dim=1)  # [M, width]
        self.distances = distances.sort().values  # [n]

    @classmethod
    def learn(cls, labelled: Tensor, held_out: Tensor) -> "KnownImages":
        """From the features [N, width] of labelled images and [M, width] of held-out ones."""
        known = labelled[sampled(len(labelled))].half()
        if len(held_out) < LEAST:
            return cls(known, distance(known, known, itself=True))
        return cls(known, distance(held_out[sampled(len(held_out))], known))

    @classmethod
    def of(cls, stored: Mapping[str, Tensor]) -> "KnownImages":
        return cls(stored["features"], stored["distances"])

    def to_store(self) -> dict[str, Tensor]:
        return {"features": self.features.half(), "distances": self.distances}

    def distance(self, features: Tensor) -> Tensor:  # [N, width] -> [N]
        return distance(features, self.features)

    def fit(self, features: Tensor) -> Tensor:  # [N, width] -> [N]
        """The share of held-out images of the classes that are at least as far."""
        nearer = torch.searchsorted(self.distances, self.distance(features))
        return (1 + len(self.distances) - nearer) * self.least

    @property
    def least(self) -> float:
        """The smallest value of a fit."""
        return 1 / (1 + len(self.distances))


def distance(features: Tensor, known: Tensor, itself: bool = False) -> Tensor:  # [N]
    """The mean distance to the nearest known images; `itself` leaves out the same row."""
    known = F.normalize(known.float(), dim=1)
    nearest = max(1, min(NEIGHBOURS, len(known) - itself))
    found = []
    for rows in torch.arange(len(features)).split(CHUNK):
        near = F.normalize(features[rows].float(), dim=1) @ known.T
        if itself:
            near[torch.arange(len(rows)), rows] = -torch.inf
        found.append(1 - near.topk(nearest, dim=1).values.mean(1))
    return torch.cat(found)
