"""The part of the contract that is special to methods without labels."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from comatch.config import NamedConfig, setting
from comatch.errors import UserError
from comatch.methods.method import Method
from comatch.nets.network import Embedder
from comatch.types import Task


@dataclass(frozen=True)
class PretrainingConfig(NamedConfig):
    """Settings that every method without labels has."""

    embedding_dim: int = setting(128, "dimensions of an embedding", least=1)


class Pretraining(Method):
    """An encoder with a projection head that learn from images alone.

    The batches have no labelled image: x and y are empty. What is saved is the encoder and its
    head, for `comatch train --init`.
    """

    uses_labels = False
    Config: ClassVar[type[NamedConfig]] = PretrainingConfig
    net: Embedder  # type: ignore[assignment]

    def __init__(
        self, encoder: nn.Module, projector: nn.Module, task: Task, config: PretrainingConfig
    ) -> None:
        nn.Module.__init__(self)
        self.task, self.classes, self.config = task, 0, config
        self.net = Embedder(encoder, projector)
        self.ema = None
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    @property
    def evaluated(self) -> Embedder:  # type: ignore[override]
        return self.net

    @property
    def evaluated_weights(self) -> str:
        return "the network's own weights"

    @property
    def decay(self) -> float | Tensor:
        """The momentum of the second encoder, of methods that have one, at this step."""
        decay: float = self.config.key_momentum
        return decay

    def check_images(self, images: int, batch: int) -> None:
        """Raise an error if the method cannot learn from so many images with these settings."""


def require_images(images: int, needed: int, setting: str, what: str) -> None:
    """Raise an error if there are fewer images than a setting needs."""
    if images < needed:
        raise UserError(
            f"{setting}={needed:,} {what}, and there are {images:,} images: "
            f"--set {setting}={images} or less"
        )
