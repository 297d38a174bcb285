"""The paper's three functions in one module: encoder f, classifier h, projection head g."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comatch.nets.heads import ProjectionHead, classify_and_project


class Output(NamedTuple):
    features: Tensor  # [N, width]         f(x)
    logits: Tensor  # [N, C]             h(f(x)) before the softmax
    embedding: Tensor  # [N, D]             g(f(x)), length one; D = 0 without a projection head


class Network(nn.Module):
    """p(y|x) = h(f(x)) and z(x) = g(f(x)).

    Precision is decided in here, so that a method never thinks of it: the encoder runs in
    `compute_dtype` if one is set, and what comes out is as precise as the parameters.
    """

    def __init__(self, encoder: nn.Module, classes: int, embedding_dim: int = 0) -> None:
        super().__init__()
        # Some timm models widen their features once more before the classifier.
        width: int = getattr(encoder, "head_hidden_size", None) or encoder.num_features  # type: ignore
        self.encoder = encoder
        self.classifier = nn.Linear(width, classes)
        self.projector = ProjectionHead(width, embedding_dim) if embedding_dim else None
        self.scaling: Scaling | None = None  # of a frozen encoder's features
        self.compute_dtype: torch.dtype | None = None
        nn.init.xavier_normal_(self.classifier.weight)
        nn.init.zeros_(self.classifier.bias)

    def freeze(self) -> None:
        """The encoder keeps its weights from here on, and only the heads learn."""
        self.encoder.requires_grad_(False)
        self.scaling = Scaling(self.classifier.in_features)

    def train(self, mode: bool = True) -> "Network":
        super().train(mode)
        if self.scaling is not None:
            self.encoder.eval()  # batch norm's statistics are part of what is kept
        return self

    @contextmanager
    def eval_mode(self) -> Iterator[None]:
        """As it is used, not trained: running statistics, full precision. Put back afterwards."""
        was_training, dtype = self.training, self.compute_dtype
        self.eval()
        self.compute_dtype = None
        try:
            yield
        finally:
            self.train(was_training)
            self.compute_dtype = dtype

    def forward(self, images: Tensor) -> Output:
        """Images [N, 3, H, W], or what the encoder said of them before, [N, width]."""
        kind, low = images.device.type, self.compute_dtype
        with torch.autocast(kind, dtype=low or torch.bfloat16, enabled=low is not None):
            features = images if images.ndim == 2 else self.encoder(images)
        features = features.to(self.classifier.weight.dtype)
        if self.scaling is not None:
            features = self.scaling(features)
        # Losses ask for more precise heads than bf16 gives; they cost next to nothing.
        with torch.autocast(kind, enabled=False):
            if self.projector is None:
                return Output(features, self.classifier(features), features[:, :0])
            logits, z = classify_and_project(features, self.classifier, self.projector)
            return Output(features, logits, F.normalize(z, dim=1))


class Scaling(nn.Module):
    """Features about zero, as wide in every direction, of the same length whatever the encoder.

    Encoders differ in how large their features are, and in each of them some are larger than
    others. Heads that learn from what is given would each need a learning rate of its own.
    """

    LENGTH = 10.0  # of an image's features, in the mean square
    centre: Tensor  # [width]
    scale: Tensor  # [width]

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(width))
        self.register_buffer("scale", torch.ones(width))

    @torch.no_grad()
    def measure(self, features: Tensor) -> None:  # [N, width]
        """A feature that hardly varies here may do so elsewhere, and is not blown up."""
        std = features.std(0, correction=0)
        std = torch.maximum(std, 0.25 * std.mean()).clamp(min=1e-6)
        self.centre.copy_(features.mean(0))
        self.scale.copy_(self.LENGTH / len(std) ** 0.5 / std)

    def forward(self, features: Tensor) -> Tensor:
        return (features - self.centre) * self.scale
