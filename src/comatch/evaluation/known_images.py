"""How well an image fits the classes: its distance to the training images in feature space.

A network gives an image of something else, an out-of-distribution image, one of its classes too,
and often with a high probability. Its features are far from those of the training images:

    d(x) = mean over the K nearest training images of 1 - cos(f(x), f(image))
    fit(x) = (1 + number of held-out images with a distance of at least d(x)) / (1 + their number)

So of images of the classes, a share of r has a fit below r (a conformal p-value). Each labelled
image is held out in turn: it is compared with the other ones.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

NEIGHBOURS = 5
MOST = 4096  # images that are stored: 2 MB with 256 features
CHUNK = 1024


class KnownImages:
    """Features of training images, and the distances of held-out ones."""

    def __init__(self, features: Tensor, distances: Tensor) -> None:
        self.features = F.normalize(features.float(), dim=1)  # [M, width]
        self.distances = distances.sort().values  # [n]

    @classmethod
    def learn(cls, features: Tensor) -> "KnownImages":  # [N, width]
        """Of the labelled images: at most `MOST` of them, evenly over the classes' order."""
        some = features[:: -(-len(features) // MOST)].half()
        return cls(some, distance(some, some, itself=True))

    @classmethod
    def of(cls, stored: Mapping[str, Tensor]) -> "KnownImages":
        return cls(stored["features"], stored["distances"])

    def to_store(self) -> dict[str, Tensor]:
        return {"features": self.features.half(), "distances": self.distances}

    def fit(self, features: Tensor) -> Tensor:  # [N, width] -> [N]
        """The share of held-out images of the classes that are at least as far."""
        nearer = torch.searchsorted(self.distances, distance(features, self.features))
        held_out = len(self.distances)
        return (1 + held_out - nearer) / (1 + held_out)


def distance(features: Tensor, known: Tensor, itself: bool = False) -> Tensor:  # [N]
    """The mean distance to the nearest known images; `itself` leaves out the same row."""
    known = F.normalize(known.float(), dim=1)
    others = len(known) - itself
    found = []
    for rows in torch.arange(len(features)).split(CHUNK):
        near = F.normalize(features[rows].float(), dim=1) @ known.T
        if itself:
            near[torch.arange(len(rows)), rows] = -torch.inf
        found.append(1 - near.topk(min(NEIGHBOURS, others), dim=1).values.mean(1))
    return torch.cat(found)
