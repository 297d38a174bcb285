"""What an encoder makes of images, computed once and kept in a file."""

from collections.abc import Iterator
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
from comatch.training.progress import stoppable
from comatch.types import Images, Part

SAVE_AFTER = 10_000  # images: what is lost, at most, if it is killed
GROWTH = 4  # or a quarter of what is kept, if that is more: all of it is written each time
AT_ONCE = 512


class Store:
    """Rows of a part and their features, in a file that is of use for this encoder and part only.

    A row that was asked for and has no features is an image that cannot be read.
    """

    def __init__(self, path: Path, key: str) -> None:
        self.path, self.key = path, key
        self.asked = torch.empty(0, dtype=torch.long)  # [A]
        self.rows = torch.empty(0, dtype=torch.long)  # [R]
        self.features: Tensor | None = None  # [R, D]
        try:
            with safe_open(path, "pt") as file:
                if (file.metadata() or {}).get("key") == key:
                    self.asked, self.rows = file.get_tensor("asked"), file.get_tensor("rows")
                    self.features = file.get_tensor("features")
        except (OSError, SafetensorError):
            pass  # not there, or damaged: it is only kept to save time

    def missing(self, rows: Tensor) -> Tensor:
        return rows[~torch.isin(rows, self.asked)]

    def add(self, asked: Tensor, rows: list[Tensor], features: list[Tensor]) -> None:
        before = [] if self.features is None else [self.features]
        self.asked = torch.cat([self.asked, asked])
        self.rows = torch.cat([self.rows, *rows])
        self.features = torch.cat([*before, *features])
        tensors = {"asked": self.asked, "rows": self.rows, "features": self.features}
        write_file(self.path, lambda file: file.write(save(tensors, {"key": self.key})))

    def pick(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Those of these rows that have features, and these, of length one each [n, D]."""
        assert self.features is not None
        place = torch.full((int(self.asked.max()) + 1,), -1)
        place[self.rows] = torch.arange(len(self.rows))
        rows = rows[place[rows] >= 0]
        return rows, torch.nn.functional.normalize(self.features[place[rows]].double(), dim=1)


def see(store: Store, encoder: Encoder, part: Part, rows: Tensor, progress: bool) -> None:
    """Computes the features of those of these rows that the store does not know yet.

    With Ctrl-C it ends after the piece at hand, and what was computed is kept.
    """
    missing = store.missing(rows)
    if not len(missing):
        return
    bar = Progress(console=Console(stderr=True), transient=True, disable=not progress)
    with bar, stoppable() as stop:
        task = bar.add_task(f"looking, {encoder.short}", total=len(missing))
        found: list[Tensor] = []
        features: list[Tensor] = []
        begin = 0
        for images, labels in pieces(part.subset(missing), encoder, some=store.features is None):
            features.append(evaluation.features(encoder.net, images, encoder.mean, encoder.std))
            found.append(labels)
            bar.advance(task, len(labels))
            enough = max(SAVE_AFTER, len(store.rows) // GROWTH)
            if stop.asked or sum(map(len, found)) >= enough:
                # Images come in order: all up to the last of these were looked at.
                end = int((missing == found[-1][-1]).nonzero()) + 1
                store.add(missing[begin:end], found, features)
                found, features, begin = [], [], end
            if stop.asked:
                raise KeyboardInterrupt
        if begin < len(missing):
            store.add(missing[begin:], found, features)


def pieces(part: Part, encoder: Encoder, some: bool) -> Iterator[tuple[Tensor, Tensor]]:
    if isinstance(part, Images):
        yield from zip(part.images.split(AT_ONCE), part.labels.split(AT_ONCE), strict=True)
    else:
        device = encoder.mean.device
        yield from in_pieces(part, encoder.image_size, device, side=encoder.side, some=some)
