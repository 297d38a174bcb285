"""Small heads on top of an encoder."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "leaky_relu": lambda: nn.LeakyReLU(0.1),
    "relu": nn.ReLU,
}
PER_LAYER = 3  # modules of a hidden layer of a head with norms: linear, norm, activation


class ProjectionHead(nn.Module):
    """g: a two-layer perceptron from features to an embedding (paper, section 4.1)."""

    def __init__(self, width: int, embedding_dim: int, activation: str = "leaky_relu") -> None:
        super().__init__()
        self.width = embedding_dim
        self.layers = nn.Sequential(
            nn.Linear(width, width), ACTIVATIONS[activation](), nn.Linear(width, embedding_dim)
        )

    def set_activation(self, name: str) -> None:
        self.layers[1] = ACTIVATIONS[name]()

    def forward(self, features: Tensor) -> Tensor:
        return self.layers(features)


class Mlp(nn.Module):
    """Linear layers with ReLU between them, as the heads of methods that learn without labels.

    With `norm`, batch norm follows each layer but the last; with `last_norm`, that one too.
    """

    def __init__(self, widths: Sequence[int], norm: bool = False, last_norm: bool = False) -> None:
        super().__init__()
        self.layers = nn.Sequential()
        last = len(widths) - 2
        for i, (width, out) in enumerate(pairwise(widths)):
            normed = norm if i < last else last_norm
            self.layers.append(nn.Linear(width, out, bias=not normed))  # a norm has its own
            if normed:
                self.layers.append(nn.BatchNorm1d(out))
            if i < last:
                self.layers.append(nn.ReLU())

    def forward(self, features: Tensor) -> Tensor:
        return self.layers(features)


class WithHead(nn.Module):
    """An encoder that goes on with the first layers of its pre-training head (SimCLR v2).

    Features behind a part of the head need fewer labels for fine-tuning than those before it.
    """

    def __init__(self, body: nn.Module, width: int, layers: int) -> None:
        super().__init__()
        self.body = body
        self.head = Mlp([width] * (layers + 2), norm=True).layers[: PER_LAYER * layers]
        self.num_features = width

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.head(self.body(images))
        return features


def with_head(weights: Mapping[str, Tensor], layers: int) -> dict[str, Tensor]:
    """The weights of encoder and head under the names of a network with such an encoder."""
    renamed = {}
    for name, value in weights.items():
        part, _, rest = name.partition(".")
        place = rest.removeprefix("layers.")
        number = place.partition(".")[0]
        if part == "encoder":
            renamed[f"encoder.body.{rest}"] = value
        elif part == "projector" and number.isdecimal() and int(number) < PER_LAYER * layers:
            renamed[f"encoder.head.{place}"] = value
    return renamed


def classify_and_project(
    features: Tensor, classifier: nn.Linear, projector: ProjectionHead
) -> tuple[Tensor, Tensor]:
    """Both heads, which begin with one product: that of the classifier alone is very thin."""
    first = projector.layers[0]
    assert isinstance(first, nn.Linear)
    weight = torch.cat([classifier.weight, first.weight])
    both = F.linear(features, weight, torch.cat([classifier.bias, first.bias]))
    logits, hidden = both.split([classifier.out_features, first.out_features], dim=1)
    return logits, projector.layers[1:](hidden)
