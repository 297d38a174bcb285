"""The contract of a feed: where the batches of a run come from.

A feed owns everything between the data and the batch that a method sees: which rows are drawn,
where they are read from, and their augmentation. There is one for images in device memory
(`Resident`), one for images read from disk (`Streaming`) and one for cached features of a frozen
encoder (`CachedFeatures`).
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from comatch.types import AllImages, Batch, Part


class Draw(NamedTuple):
    """The rows of one step before augmentation."""

    x: Tensor  # [B, 3, H, W] uint8            or [B, width] features
    y: Tensor  # [B]
    u: Tensor  # [muB, 3, H, W] uint8          or [muB, views, width] features
    rows: Tensor  # [muB] which of the unlabelled images these are
    truth: Tensor  # [muB] true class of u where known: for metrics, methods never see it


class Augment(Protocol):
    """Makes the batch of a drawn one, and network inputs of images as they are."""

    def __call__(self, x: Tensor, y: Tensor, u: Tensor, rows: Tensor) -> Batch: ...
    def plain(self, images: Tensor) -> Tensor: ...


class Watch(Protocol):
    """Who follows a long preparation, and may ask to stop it."""

    def progress(self, done: int, total: int) -> None: ...
    def stopped(self) -> bool: ...
    def go_on(self) -> None:
        """What was prepared until the stop is enough: the run goes on."""


class Feed(nn.Module):
    """Gives one batch a step. Its buffers are the part of a checkpoint that restores the order."""

    tiny_batches = False  # so small that several threads of a CPU would only wait for each other

    def __init__(self, augment: Augment) -> None:
        super().__init__()
        self.augment = augment
        self.make_batch: Callable[[Tensor, Tensor, Tensor, Tensor], Batch] = augment.__call__

    def compile(self) -> None:
        """Compile the augmentation."""
        self.make_batch = torch.compile(self.make_batch)

    def prepare(self, watch: Watch) -> bool:
        """Do what must be done before the first step; return False if stopped on the way."""
        return True

    def before_step(self, step: int) -> None:
        """Do the work of a step that needs the host: it is not captured in a CUDA graph."""
        raise NotImplementedError

    def draw(self) -> Draw:
        """Draw the rows of the step on the device, without waiting for it."""
        raise NotImplementedError

    def next(self) -> tuple[Batch, Tensor]:
        """The batch of the step, and the true classes of its unlabelled images."""
        x, y, u, rows, truth = self.draw()
        return self.make_batch(x, y, u, rows), truth

    def everything(self) -> AllImages:
        """All images without augmentation, as inputs of the network."""
        raise NotImplementedError

    def inputs(self, part: Part) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs of the network for any images, without augmentation, and their labels: in pieces.

        Images that cannot be read are left out.
        """
        raise NotImplementedError

    def counts(self) -> dict[str, float]:
        """What the feed counts for the metrics."""
        return {}
