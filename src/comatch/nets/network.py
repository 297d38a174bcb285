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


def width_of(encoder: nn.Module) -> int:
    """The width of an encoder's features."""
    # Some timm models widen their features once more before the classifier.
    width: int = getattr(encoder, "head_hidden_size", None) or encoder.num_features  # type: ignore
    return width


class EncoderNet(nn.Module):
    """An encoder f that runs in `compute_dtype` if one is set.

    Its features have the precision of the parameters. So a method does not deal with precision.
    """

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.compute_dtype: torch.dtype | None = None

    @contextmanager
    def eval_mode(self) -> Iterator[None]:
        """Running batch norm statistics and full precision, until the end of the `with` block."""
        was_training, dtype = self.training, self.compute_dtype
        self.eval()
        self.compute_dtype = None
        try:
            yield
        finally:
            self.train(was_training)
            self.compute_dtype = dtype

    def encode(self, images: Tensor, precise: bool = False) -> Tensor:  # [N, width]
        """f(x). With `precise`, the encoder computes in the precision of its parameters."""
        kind, low = images.device.type, None if precise else self.compute_dtype
        with torch.autocast(kind, dtype=low or torch.bfloat16, enabled=low is not None):
            features = self.encoder(images)
        return features.to(self.precision)

    @property
    def precision(self) -> torch.dtype:
        """The precision of the heads, and so of the output."""
        raise NotImplementedError


class Embedder(EncoderNet):
    """z(x) = g(f(x)), not normalised: what pre-training without labels learns."""

    def __init__(self, encoder: nn.Module, projector: nn.Module) -> None:
        super().__init__(encoder)
        self.projector = projector

    @property
    def precision(self) -> torch.dtype:
        return next(self.projector.parameters()).dtype

    def project(self, features: Tensor) -> Tensor:
        with torch.autocast(features.device.type, enabled=False):  # as the heads of `Network`
            embedding: Tensor = self.projector(features)
        return embedding

    def forward(self, images: Tensor) -> Tensor:
        return self.project(self.encode(images))


class Network(EncoderNet):
    """p(y|x) = h(f(x)) and z(x) = g(f(x))."""

    def __init__(
        self,
        encoder: nn.Module,
        classes: int,
        embedding_dim: int = 0,
        head_activation: str = "leaky_relu",
    ) -> None:
        super().__init__(encoder)
        width = width_of(encoder)
        self.classifier = nn.Linear(width, classes)
        self.projector = (
            ProjectionHead(width, embedding_dim, head_activation) if embedding_dim else None
        )
        nn.init.xavier_normal_(self.classifier.weight)
        nn.init.zeros_(self.classifier.bias)

    @property
    def precision(self) -> torch.dtype:
        return self.classifier.weight.dtype

    def untracked(self, images: Tensor, precise: bool = False) -> Output:
        """The output with the batch norm statistics of these images, which update no average."""
        copies = {name: value.clone() for name, value in self.named_buffers()}
        output: Output = torch.func.functional_call(self, copies, images, {"precise": precise})
        return output

    def forward(self, images: Tensor, precise: bool = False) -> Output:
        """With `precise`, the encoder computes in the precision of its parameters."""
        features = self.encode(images, precise)
        # Losses ask for more precise heads than bf16 gives; they cost next to nothing.
        with torch.autocast(images.device.type, enabled=False):
            if self.projector is None:
                return Output(features, self.classifier(features), features[:, :0])
            logits, z = classify_and_project(features, self.classifier, self.projector)
            return Output(features, logits, F.normalize(z, dim=1))
