"""An encoder that keeps its weights: only heads on its projected features learn."""

from torch import Tensor, nn, ones, zeros

from comatch.nets.network import Network, width_of
from comatch.projection import Projection


class FrozenEncoder(nn.Module):
    """From images to projected features."""

    def __init__(self, encoder: nn.Module, projection: nn.Module, width: int) -> None:
        super().__init__()
        self.net = encoder.requires_grad_(False)
        self.projection = projection
        self.num_features = width

    def train(self, mode: bool = True) -> "FrozenEncoder":
        super().train(mode)
        self.net.eval()  # batch norm statistics are frozen too
        return self

    def forward(self, images: Tensor) -> Tensor:
        projected: Tensor = self.projection(self.net(images))
        return projected


class GivenFeatures(nn.Module):
    """The encoder of a network whose inputs are projected features already."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.num_features = width

    def forward(self, features: Tensor) -> Tensor:
        return features


class Scaling(nn.Module):
    """The projection of runs that version 0.1.0 made."""

    centre: Tensor  # [width]
    scale: Tensor  # [width]

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("centre", zeros(width))
        self.register_buffer("scale", ones(width))

    def forward(self, features: Tensor) -> Tensor:
        return (features - self.centre) * self.scale


def build_frozen(
    encoder: nn.Module, components: int, classes: int, embedding_dim: int, head_activation: str
) -> Network:
    """A network with a frozen encoder; its projection and heads have no values yet."""
    projection = Projection(width_of(encoder), components)
    whole = FrozenEncoder(encoder, projection, components)
    return Network(whole, classes, embedding_dim, head_activation)


def build_frozen_0_1(
    encoder: nn.Module, weights: dict[str, Tensor], classes: int, embedding_dim: int
) -> tuple[Network, dict[str, Tensor]]:
    """The same for a run of version 0.1.0, with its weights under the present names."""
    width = width_of(encoder)
    net = Network(FrozenEncoder(encoder, Scaling(width), width), classes, embedding_dim)
    names = {"encoder.": "encoder.net.", "scaling.": "encoder.projection."}

    def renamed(name: str) -> str:
        for before, now in names.items():
            if name.startswith(before):
                return now + name.removeprefix(before)
        return name

    return net, {renamed(name): value for name, value in weights.items()}
