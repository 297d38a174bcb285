"""The projection of an encoder's features to those that the heads see.

    x = (f / |f| - mean) P / s

P has the first principal components, and one number s scales all of them alike, so that the mean
square of a component is one. Features of all encoders then have the same size, so one learning rate
fits all. Scaling each direction by its own deviation would enlarge noise.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Projection(nn.Module):
    """Principal components of features of length one."""

    mean: Tensor  # [width]
    matrix: Tensor  # [width, components] P / s

    def __init__(self, width: int, components: int) -> None:
        super().__init__()
        self.width, self.components = width, components
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("matrix", torch.zeros(width, components))

    @torch.no_grad()
    def fit(self, plain: Tensor, flipped: Tensor) -> None:  # [n, width] each
        """Fit the mean to the features of plain views, the components to those of both."""
        plain, flipped = (F.normalize(f.float(), dim=1) for f in (plain, flipped))
        mean = plain.mean(0)
        both = torch.cat([plain, flipped]) - mean
        values, vectors = torch.linalg.eigh((both.T @ both).double() / len(both))
        values, vectors = values.flip(0)[: self.components], vectors.flip(1)[:, : self.components]
        # The sign of an eigenvector is arbitrary: its largest entry becomes positive.
        largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
        scale = values.clamp(min=0).mean().sqrt().clamp(min=1e-6)
        self.mean.copy_(mean)
        self.matrix.copy_(vectors * largest.sign() / scale)

    def forward(self, features: Tensor) -> Tensor:  # [n, width] -> [n, components]
        unit = F.normalize(features.to(self.matrix.dtype), dim=1)
        return (unit - self.mean) @ self.matrix
