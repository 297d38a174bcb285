"""Features of images, computed once and stored in a file."""

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from comatch import evaluation
from comatch.commands.transfer.encoders import Encoder
from comatch.data.streaming import in_pieces
from comatch.files import write_file
from comatch.nets.engine import Engine
from comatch.training.signals import stoppable
from comatch.types import Images, Part

SAVE_AFTER = 10_000  # images: the most that a kill loses, unless the file is large
GROWTH = 4  # a save rewrites the whole file, so it waits until a quarter more has been computed
AT_ONCE = 512  # images


class Store:
    """Features of some rows of a part, in a file for one encoder and one benchmark (`key`).

    A row that was encoded and has no features is an image that cannot be read.
    """

    def __init__(self, path: Path, key: str) -> None:
        self.path, self.key = path, key
        self.encoded = torch.empty(0, dtype=torch.long)  # [A]
        self.rows = torch.empty(0, dtype=torch.long)  # [R]
        self.features: Tensor | None = None  # [R, D]
        try:
            with safe_open(path, "pt") as file:
                if (file.metadata() or {}).get("key") == key:
                    self.encoded, self.rows = file.get_tensor("asked"), file.get_tensor("rows")
                    self.features = file.get_tensor("features")
        except (OSError, SafetensorError):
            pass  # missing or damaged: the features are computed again

    def missing(self, rows: Tensor) -> Tensor:
        return rows[~torch.isin(rows, self.encoded)]

    def add(self, encoded: Tensor, rows: list[Tensor], features: list[Tensor]) -> None:
        before = [] if self.features is None else [self.features]
        self.encoded = torch.cat([self.encoded, encoded])
        self.rows = torch.cat([self.rows, *rows])
        self.features = torch.cat([*before, *features])
        tensors = {"asked": self.encoded, "rows": self.rows, "features": self.features}
        write_file(self.path, lambda file: file.write(save(tensors, {"key": self.key})))

    def get(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Those of these rows that have features, and their features [n, D] of length one."""
        assert self.features is not None
        place = torch.full((int(self.encoded.max()) + 1,), -1)
        place[self.rows] = torch.arange(len(self.rows))
        rows = rows[place[rows] >= 0]
        return rows, torch.nn.functional.normalize(self.features[place[rows]].double(), dim=1)


def encode(store: Store, encoder: Encoder, part: Part, rows: Tensor, progress: bool) -> None:
    """Add the features of these rows that the store does not have yet.

    Ctrl-C stops it after the current piece, and what was computed is saved.
    """
    missing = store.missing(rows)
    if not len(missing):
        return
    bar = Progress(console=Console(stderr=True), transient=True, disable=not progress)
    with bar, stoppable() as stop:
        task = bar.add_task(f"encoding, {encoder.short_name}", total=len(missing))
        found: list[Tensor] = []
        features: list[Tensor] = []
        begin = 0
        compute = feature_function(encoder)
        for images, labels in pieces(part.subset(missing), encoder, some=store.features is None):
            features.append(compute(images))
            found.append(labels)
            bar.advance(task, len(labels))
            enough = max(SAVE_AFTER, len(store.rows) // GROWTH)
            if stop.asked or sum(map(len, found)) >= enough:
                # Pieces come in order: every row up to the last of these was encoded.
                end = int((missing == found[-1][-1]).nonzero()) + 1
                store.add(missing[begin:end], found, features)
                found, features, begin = [], [], end
            if stop.asked:
                raise KeyboardInterrupt
        if begin < len(missing):
            store.add(missing[begin:], found, features)


def feature_function(encoder: Encoder) -> Callable[[Tensor], Tensor]:
    """From uint8 images to features in float32: on a CPU with the engine that is fastest there."""
    net, mean, std = encoder.net, encoder.mean, encoder.std
    if mean.device.type == "cpu":
        return Engine(net.encoder, mean, std, encoder.image_size, mean.device)
    return lambda images: evaluation.features(net, images, mean, std)


def pieces(part: Part, encoder: Encoder, some: bool) -> Iterator[tuple[Tensor, Tensor]]:
    if isinstance(part, Images):
        yield from zip(part.images.split(AT_ONCE), part.labels.split(AT_ONCE), strict=True)
    else:
        device = encoder.mean.device
        yield from in_pieces(part, encoder.image_size, device, side=encoder.resize, some=some)
