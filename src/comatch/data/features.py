"""Features of images by view: encoded once, read from the feature cache afterwards."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor

from comatch import distributed
from comatch.data import feature_store, view_reader, views
from comatch.data.feature_store import FeatureStore
from comatch.data.feed import Watch
from comatch.types import Part

SAVE_AFTER = 4096  # features that are written to the disk at once, at least


class Encoder(NamedTuple):
    """A network whose weights stay as they are."""

    name: str  # in the cache: network, size and a digest of the weights
    width: int  # of its features
    size: int  # of its images in pixels
    load: Callable[[], Callable[[np.ndarray], Tensor]]  # loads a function from pixels to features


class Unwatched:
    """Shows nothing and never asks to stop."""

    def progress(self, done: int, total: int) -> None:
        pass

    def stopped(self) -> bool:
        return False

    def go_on(self) -> None:
        pass


class Features:
    """The features of the images of one part."""

    def __init__(self, part: Part, encoder: Encoder, root: Path | None = None) -> None:
        self.part, self.encoder = part, encoder
        root = root or feature_store.default_root()
        self.store = FeatureStore(root, encoder.name, encoder.width)
        self.digests = feature_store.digests(root, part)  # [N, 2]
        self.bad: dict[int, str] = {}  # rows that cannot be read, and why

    def __len__(self) -> int:
        return len(self.part)

    def missing(self, numbers: Sequence[int]) -> list[int]:
        """The rows that lack one of these views."""
        there = np.ones(len(self.part), bool)
        for view in numbers:
            there &= self.store.has(view, self.digests)
        there[list(self.bad)] = True
        return np.flatnonzero(~there).tolist()

    def know_of_others(self) -> None:
        """Wait for the other ranks, and see what they have encoded and could not read."""
        for bad in distributed.collect(self.bad):
            self.bad |= bad
        self.store.refresh()

    def read(self, view: int, rows: slice = slice(None)) -> tuple[np.ndarray, np.ndarray]:
        """Features [n, width] float16 of a view of these rows, and whether [n] each is there."""
        return self.store.read(view, self.digests[rows])

    def encode(
        self, rows: Sequence[int], numbers: Sequence[int], encode: Callable
    ) -> Iterator[int]:
        """Encode these views of the rows; yield the number of images done with each chunk."""
        names = [digest.tobytes() for digest in self.digests]
        size, width = self.encoder.size, self.encoder.width
        kept: list[tuple[list[int], np.ndarray]] = []

        def save() -> None:
            if kept:
                done = self.digests[[row for some, _ in kept for row in some]]
                features = np.concatenate([features for _, features in kept])  # [n, V, width]
                for i, view in enumerate(numbers):
                    self.store.append(view, done, features[:, i])
                kept.clear()

        try:
            for found in view_reader.render(self.part, rows, names, numbers, size):
                self.bad |= found.bad
                if found.rows:
                    features = encode(found.pixels.reshape(-1, 3, size, size))
                    kept.append(
                        (found.rows, features.half().numpy().reshape(-1, len(numbers), width))
                    )
                if sum(map(len, (some for some, _ in kept))) * len(numbers) >= SAVE_AFTER:
                    save()
                yield len(found.rows) + len(found.bad)
        finally:  # also if it is stopped: what was computed is kept
            save()


def groups(number: int) -> list[list[int]]:
    """The views 0 .. number - 1 in the order of encoding: two, two, four, eight, ...

    A group is encoded of all images before the next one, so that all have a few views early.
    Decoding an image takes a while, so later groups are larger.
    """
    found, first, length = [], 0, 2
    while first < number:
        found.append(list(range(first, min(first + length, number))))
        length = max(2, first + len(found[-1]))
        first += len(found[-1])
    return found


def encode_all(
    parts: Sequence[Features],
    number: int,
    seconds: float | None = None,
    watch: Watch | None = None,
    shared: bool = True,
) -> None:
    """Encode what the cache lacks of the first views of all images.

    It stops after some seconds, or when asked to. If the ranks have the same images, each encodes
    its share.
    """
    watch = watch or Unwatched()
    began = time.monotonic()
    todo = [(part, group, part.missing(group)) for group in groups(number) for part in parts]
    if shared:
        rank, world = distributed.rank(), distributed.world()
        todo = [(part, group, rows[rank::world]) for part, group, rows in todo]
    total = sum(len(group) * len(rows) for _, group, rows in todo)
    if total:
        for part in parts:
            part.store.make_room(2 * part.encoder.width * total)
            break
        encode = parts[0].encoder.load()
        done = 0
        for part, group, rows in todo:
            for images in part.encode([row for row in rows if row not in part.bad], group, encode):
                done += images * len(group)
                watch.progress(done, total)
                if watch.stopped() or (seconds and time.monotonic() - began > seconds):
                    break
            else:
                continue
            break
    if shared:
        for part in parts:
            part.know_of_others()


def count_views(features: Features, number: int) -> np.ndarray:  # [N]
    """How many of the first views each image has, without a gap."""
    count = np.zeros(len(features), np.int64)
    for view in range(number):
        count += (count == view) & features.store.has(view, features.digests)
    return count


def views_for(images: int, wanted: int | None, budget: int) -> int:
    """The number of views of each image: what was asked for, or what the budget allows."""
    return wanted or int(np.clip(budget // max(1, images), 4, views.MOST))
