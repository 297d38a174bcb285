"""Cached features of a frozen encoder instead of images.

A frozen encoder's features of a view never change. So some views of each image are encoded once,
before training, and every step draws among them: a step of the heads takes milliseconds.
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from comatch import distributed, files
from comatch.data.feed import Draw, Watch
from comatch.data.resident import CHUNK, Resident
from comatch.errors import UserError
from comatch.types import AllImages, Batch, Images

LARGEST = 8e9  # bytes of features
ENCODE_CHUNK = 128  # images
LABELLED_VIEW = "weak"

Encode = Callable[[str, Tensor], Tensor]  # (kind of view, images) -> features of one such view


class AsDrawn:
    """Cached features are views already: nothing is left to augment."""

    def __call__(self, x: Tensor, y: Tensor, u: Tensor, rows: Tensor) -> Batch:
        return Batch(x, y, u.unbind(1), rows)

    def plain(self, images: Tensor) -> Tensor:
        return images


class CachedFeatures(Resident):
    """Labelled and unlabelled images with cached features of their views, on one device.

    One pass encodes one view of every image. Its features are a file in `folder` until the run is
    finished, so a run that is stopped continues with the pass that was interrupted. Once the cache
    is full, `measure` is called with features to set their scale by.
    """

    features_x: Tensor  # [X, kept, width]            of the labelled view
    features_u: Tensor  # [kinds, U, kept, width]     of each kind of view

    def __init__(
        self,
        labelled: Images,
        unlabelled: Images,
        batch: int,
        mu: int,
        *,
        views: Sequence[str],
        kept: int,
        width: int,
        encode: Encode,
        measure: Callable[[Tensor], object],
        folder: Path,
        seed: int,
    ) -> None:
        super().__init__(labelled, unlabelled, batch, mu, AsDrawn())
        self.views, self.kept, self.width = tuple(views), kept, width
        self.encode, self.measure = encode, measure
        self.folder, self.seed = folder, seed
        self.kinds = sorted(set(views))  # a kind that is declared twice is drawn twice
        shape_x = (len(labelled), kept, width)
        shape_u = (len(self.kinds), len(unlabelled), kept, width)
        size = 2 * (len(self.kinds) * len(unlabelled) + len(labelled)) * kept * width
        if size > LARGEST:
            raise UserError(
                f"the features of {kept} views of {len(unlabelled)} images would take "
                f"{size / 1e9:.0f} GB: --set kept_views={max(1, int(kept * LARGEST / size))}, "
                "or fewer images"
            )
        for name, shape in (("features_x", shape_x), ("features_u", shape_u)):
            empty = torch.zeros(shape, dtype=torch.half)
            self.register_buffer(name, empty, persistent=False)

    def prepare(self, watch: Watch) -> bool:
        """Fill the cache; return False if interrupted."""
        images, passes = torch.cat([self.images_x, self.images_u]), self.passes()
        self.folder.mkdir(exist_ok=True)
        for index, (kind, number) in enumerate(passes):
            path = self.folder / f"{kind}-{number}.safetensors"
            features = cached = load_features(path, len(images), self.width)
            if features is None:
                # The draws of a pass depend on nothing but the seed and its index, and leave the
                # random state of the run as it was.
                device = images.device
                others = [] if device.type == "cpu" else [device]
                backend = "mps" if device.type == "mps" else "cuda"
                with torch.random.fork_rng(others, device_type=backend):
                    torch.manual_seed(self.seed * len(passes) + index)
                    before, total = index * len(images), len(passes) * len(images)
                    features = self.encode_all(kind, images, watch, before, total)
            if distributed.any_rank(watch.stopped()):
                return False
            if cached is None:
                save_features(path, features)
            self.store(kind, number, features.to(images.device))
        self.measure(self.sample().float())
        return True

    def encode_all(
        self, kind: str, images: Tensor, watch: Watch, before: int, total: int
    ) -> Tensor:  # [N, width]
        """Features of one view of each image; of fewer, if it is stopped."""
        chunks = list[Tensor]()
        for part in images.split(ENCODE_CHUNK):
            chunks.append(self.encode(kind, part).half())
            before += len(part)
            watch.progress(before, total)
            if watch.stopped():
                break
        return torch.cat(chunks)

    def passes(self) -> list[tuple[str, int]]:
        """What is encoded of every image: kinds of views, and the number of each."""
        kinds = sorted({LABELLED_VIEW, *self.kinds})
        return [(kind, number) for kind in kinds for number in range(self.kept)]

    def store(self, kind: str, number: int, features: Tensor) -> None:  # [X + U, width]
        x, u = features.split([len(self.labels_x), len(self.labels_u)])
        if kind == LABELLED_VIEW:
            self.features_x[:, number] = x
        if kind in self.kinds:
            self.features_u[self.kinds.index(kind), :, number] = u

    def sample(self) -> Tensor:  # [n, width]
        """Features to measure a scale by: those of labelled views, and some of unlabelled ones."""
        seen = [self.features_x.flatten(0, 1)]
        if LABELLED_VIEW in self.kinds:
            seen.append(self.features_u[self.kinds.index(LABELLED_VIEW), :, 0])
        return torch.cat(seen)

    def draw(self) -> Draw:
        x, u = self.shuffle_x.draw(), self.shuffle_u.draw()
        views = [self._one_of(self.features_u[self.kinds.index(kind)], u) for kind in self.views]
        return Draw(
            self._one_of(self.features_x, x),
            self.labels_x.index_select(0, x),
            torch.stack(views, 1) if views else self.features_x.new_zeros(len(u), 0, 0),
            u,
            self.labels_u.index_select(0, u),
        )

    def everything(self) -> AllImages:
        """Of each image the mean over the cached weak views, or over those there are."""
        kind = self.kinds.index(LABELLED_VIEW) if LABELLED_VIEW in self.kinds else 0
        x, u = (
            (part.float().mean(1) for part in features.split(CHUNK))
            for features in (self.features_x, self.features_u[kind])
        )
        return AllImages(x, self.labels_x, u)

    def finish(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _one_of(self, features: Tensor, rows: Tensor) -> Tensor:  # [n, width]
        """A random one of the cached views of each row."""
        drawn = rows * self.kept + torch.randint(self.kept, (len(rows),), device=rows.device)
        return features.flatten(0, 1).index_select(0, drawn)


def save_features(path: Path, features: Tensor) -> None:
    content = save({"features": features.cpu()})
    files.write_file(path, lambda file: file.write(content))


def load_features(path: Path, images: int, width: int) -> Tensor | None:  # [images, width]
    """What an earlier session computed; None if it is missing, damaged or of another size."""
    try:
        features = load_file(path)["features"]
    except (OSError, SafetensorError, KeyError):
        return None
    return features if features.shape == (images, width) else None
