"""Settings of the data: what is learned from, which part of it is labelled, how it is read."""

from dataclasses import dataclass
from typing import NamedTuple

from comatch.config import NUMBER_OR_SHARE, Config, require, setting


@dataclass(frozen=True)
class DataConfig(Config):
    """Which images, and which of their labels."""

    data: str = setting(
        "digits", "digits, cifar10, stl10, the path of a folder, or python:KIND if given in Python"
    )
    labels: int | float | None = setting(
        None, "labels kept, the same number a class: a number, or a share as in 1%; none: all"
    )
    labels_file: str | None = setting(
        None, "labels: CSV of path,label, or a list of file names to keep the labels of"
    )
    validation: float = setting(
        0.0, "images held out to choose settings by: a number, or a share below 1", least=0
    )
    fold: str | None = setting(
        None, "labels held out: 2/4 is the second of four parts; none: no label is held out"
    )
    split_seed: int | None = setting(None, "seed of the split; default: seed", least=0)
    image_size: int = setting(32, "side of the images in pixels", least=1)
    mean: tuple[float, ...] | None = setting(
        None, "mean of each channel, 0 to 1; default: from --init, else measured"
    )
    std: tuple[float, ...] | None = setting(
        None, "standard deviation of each channel, 0 to 1; default: from --init, else measured"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        labels = self.labels
        holds = labels is None or 0 < labels < 1 or (isinstance(labels, int) and labels >= 1)
        require(holds, f"labels={labels}: {NUMBER_OR_SHARE}")
        if self.fold is not None:
            parse_fold(self.fold)
            require(not self.validation, f"fold={self.fold} holds labels out: validation must be 0")


@dataclass(frozen=True)
class StreamConfig(Config):
    """Reading images from disk during training, where they do not fit into memory."""

    stream: str = setting(
        "auto",
        "read images during training: yes, no, auto: a folder above 8 GB of pixels",
        choices=("auto", "yes", "no"),
    )
    workers: int | None = setting(None, "processes that read images; default: one a core", least=1)
    ahead: int = setting(2, "batches that are read in advance", least=1)


class Reading(NamedTuple):
    """How the images of a run are read."""

    dataset: DataConfig
    streaming: StreamConfig
    encoded: bool  # only the features of a frozen encoder are in memory, not the images
    labels_needed: bool = True  # not for pre-training


def parse_fold(fold: str) -> tuple[int, int]:
    """`2/4` as (2, 4): the second of four parts."""
    part, slash, parts = fold.partition("/")
    known = bool(slash) and part.isdecimal() and parts.isdecimal()
    require(
        known and 1 <= int(part) <= int(parts) >= 2,
        f"fold={fold}: write it as 1/4, the first of four parts",
    )
    return int(part), int(parts)
