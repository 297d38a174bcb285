"""The types of data that modules pass to each other."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

UNLABELLED = -1


@dataclass(frozen=True)
class Images:
    """Images of one size, each with its name and its class where it is known."""

    images: Tensor  # [N, 3, H, W] uint8
    labels: Tensor  # [N] int64, UNLABELLED where the class is unknown
    names: list[str]  # a path below the data folder, or an index: unique and stable

    def __len__(self) -> int:
        return len(self.names)

    def subset(self, rows: Tensor) -> "Images":
        return Images(self.images[rows], self.labels[rows], [self.names[i] for i in rows.tolist()])


@dataclass(frozen=True)
class Files:
    """Image files of any size, for data that does not fit into memory."""

    root: Path
    labels: Tensor  # [N] int64, UNLABELLED where the class is unknown
    names: list[str]  # paths below the root

    def __len__(self) -> int:
        return len(self.names)

    def subset(self, rows: Tensor) -> "Files":
        return Files(self.root, self.labels[rows], [self.names[i] for i in rows.tolist()])


Part = Images | Files  # of a data set


@dataclass(frozen=True)
class Dataset:
    """A data set with the true classes, as far as they are known.

    `data.splits` decides which of them are used as labels.
    """

    name: str
    classes: list[str]
    train: Part
    test: Part | None = None
    folds: list[list[int]] = field(default_factory=list)  # predefined labelled rows of `train`
    skipped: list[str] = field(default_factory=list)  # "path: reason", for images left out
    conflicts: list[str] = field(default_factory=list)  # the same, for images with two labels
    original_size: tuple[int, int] | None = None  # median width and height of a folder's files


class Task(NamedTuple):
    """What a method is built for: the sizes of the data and of the run."""

    classes: int
    steps: int = 1  # of the whole run
    unlabelled: int = 1  # images without a label
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)  # of the channels, on a scale of 0 to 1
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    epoch: int = 1  # steps in which every unlabelled image is seen once


class Batch(NamedTuple):
    """What a method sees in one step. The true classes of unlabelled images are not in it.

    For a method that uses no label, x and y are empty.
    """

    x: Tensor  # [B, 3, H, W]   labelled, weak view, normalised
    y: Tensor  # [B]
    u: tuple[Tensor, ...]  # one [muB, 3, H, W] per view that the method declares
    rows: Tensor  # [muB] which of the unlabelled images these are


class AllImages(NamedTuple):
    """All training images without augmentation, as chunks of inputs for the network.

    A method may use them between two steps. Each part may be iterated over once.
    """

    x: Iterable[Tensor]  # [n, 3, H, W], or cached features [n, width]: labelled, X in all
    y: Tensor  # [X]
    u: Iterable[Tensor]  # the same for the U unlabelled images
    views: Iterable[Tensor] = ()  # [n, V, width] all views of the labelled ones, if they are cached


class Examples(NamedTuple):
    """The features that an estimator is fitted to."""

    x: Tensor  # [X, V, width] all views of the labelled images, the plain one first
    y: Tensor  # [X]
    u: Tensor  # [U, width] the plain view of the unlabelled images
