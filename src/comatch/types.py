"""The few shapes that data takes on its way through the rooms."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

UNLABELLED = -1


@dataclass(frozen=True)
class Images:
    """Images of one size, each with its name and what is known of its class."""

    images: Tensor  # [N, 3, H, W] uint8
    labels: Tensor  # [N] int64, UNLABELLED where nobody knows
    names: list[str]  # a path below the data folder, or an index: unique, stable, fit for a file

    def __len__(self) -> int:
        return len(self.names)

    def subset(self, rows: Tensor) -> "Images":
        return Images(self.images[rows], self.labels[rows], [self.names[i] for i in rows.tolist()])


@dataclass(frozen=True)
class Files:
    """Images of any size that stay on the disk: those that do not fit into memory."""

    root: Path
    labels: Tensor  # [N] int64, UNLABELLED where nobody knows
    names: list[str]  # paths below the root: unique, stable, fit for a file

    def __len__(self) -> int:
        return len(self.names)

    def subset(self, rows: Tensor) -> "Files":
        return Files(self.root, self.labels[rows], [self.names[i] for i in rows.tolist()])


Part = Images | Files  # of a data set


@dataclass(frozen=True)
class Dataset:
    """What a source gives: every image with the truth as far as it is known.

    What a learner may see of that truth is decided by `data.splits`, not here.
    """

    name: str
    classes: list[str]
    train: Part
    test: Part | None = None
    folds: list[list[int]] = field(default_factory=list)  # predefined labelled rows of `train`
    skipped: list[str] = field(default_factory=list)  # "path: why", for images left out


class Task(NamedTuple):
    """What a method is built for."""

    classes: int
    steps: int = 1  # of the whole run: what weights and thresholds may follow
    unlabelled: int = 1  # images without a label: rows of what is kept of each
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)  # of the channels, on a scale of 0 to 1
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    epoch: int = 1  # steps in which every unlabelled image is seen once


class Batch(NamedTuple):
    """What a method sees of one step: no truth of an unlabelled image is in it."""

    x: Tensor  # [B, 3, H, W]   labelled, weak view, normalised
    y: Tensor  # [B]
    u: tuple[Tensor, ...]  # one [muB, 3, H, W] per view that the method declares
    rows: Tensor  # [muB] which of the unlabelled images these are


class AllImages(NamedTuple):
    """All training images without augmentation, as chunks of inputs for the network.

    A method may look at them between two steps. Each may be iterated over once.
    """

    x: Iterable[Tensor]  # [n, 3, H, W], or cached features [n, width]: labelled, X in all
    y: Tensor  # [X]
    u: Iterable[Tensor]  # the same for the U unlabelled ones
