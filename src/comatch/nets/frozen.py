"""An encoder that keeps its weights, with its features brought to one scale.

Encoders differ in the size of their features, and within one encoder some features are much larger
than others. Without a common scale, the heads would need a learning rate for each encoder.
"""

import torch
from torch import Tensor, nn

from comatch.nets.network import Network

LENGTH = 10.0  # root mean square length of the scaled features


class FrozenEncoder(nn.Module):
    """Scaled features of images, or of features that the same encoder gave before."""

    centre: Tensor  # [width]
    scale: Tensor  # [width]

    def __init__(self, encoder: nn.Module, width: int) -> None:
        super().__init__()
        self.net = encoder.requires_grad_(False)
        self.num_features = width
        self.register_buffer("centre", torch.zeros(width))
        self.register_buffer("scale", torch.ones(width))

    def train(self, mode: bool = True) -> "FrozenEncoder":
        super().train(mode)
        self.net.eval()  # batch norm statistics are frozen too
        return self

    @torch.no_grad()
    def measure(self, features: Tensor) -> None:  # [N, width]
        """Scale to mean zero and equal deviation. Features that hardly vary are not enlarged."""
        std = features.std(0, correction=0)
        std = torch.maximum(std, 0.25 * std.mean()).clamp(min=1e-6)
        self.centre.copy_(features.mean(0))
        self.scale.copy_(LENGTH / len(std) ** 0.5 / std)

    def forward(self, inputs: Tensor) -> Tensor:
        """Images [N, 3, H, W], or cached features [N, width]."""
        features = inputs if inputs.ndim == 2 else self.net(inputs)
        return (features.to(self.scale.dtype) - self.centre) * self.scale


def freeze(net: Network) -> FrozenEncoder:
    """Freeze the encoder of a network: only its heads learn from now on."""
    encoder = FrozenEncoder(net.encoder, net.classifier.in_features)
    net.encoder = encoder
    return encoder


def rename_old_keys(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights of a frozen network under the names of this version (before 0.2: `scaling`)."""
    if "scaling.centre" not in weights:
        return weights
    old = {"encoder.": "encoder.net.", "scaling.": "encoder."}

    def renamed(name: str) -> str:
        for before, now in old.items():
            if name.startswith(before):
                return now + name.removeprefix(before)
        return name

    return {renamed(name): value for name, value in weights.items()}
