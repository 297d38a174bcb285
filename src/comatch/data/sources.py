"""Sources of images: one function for each, which returns a `Dataset`.

A new source is a function `(data_dir, image_size, progress) -> Dataset` and its line in `SOURCES`.
"""

import pickle
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from comatch.data.downloads import fetch_and_unpack
from comatch.data.image_folder import folder, refuse_conflicts, two_labels
from comatch.data.labels_file import read_labels, read_list
from comatch.data.names import check_data
from comatch.errors import UserError
from comatch.types import UNLABELLED, Dataset, Images


def load(
    data: str,
    data_dir: Path,
    image_size: int | None = None,
    progress: bool = True,
    labels_file: Path | None = None,
    stream: str = "auto",
    strict: bool = False,
    labels_needed: bool = True,
) -> Dataset:
    """The data set called `data`: a name in `SOURCES`, or the path of a folder of images.

    `image_size` None keeps a named source's own size. With a `labels_file`, its rows of path,label
    or its list of images are the only labels. With `stream`, a folder's images can stay on disk.
    Images with two labels stay unlabelled; with `strict`, they are an error. A folder may have no
    label unless `labels_needed`.
    """
    if image_size is not None and image_size < 1:
        raise UserError(f"an image size of {image_size} is no size: give a number of pixels")
    if data in SOURCES:
        if stream == "yes":
            raise UserError(f"{data} is read whole: leave stream=yes out, or give a folder")
        dataset = SOURCES[data](data_dir, image_size, progress)
        dataset = relabel(dataset, labels_file) if labels_file else dataset
        if strict:
            refuse_conflicts(data, dataset.conflicts)
        return dataset
    check_data(data)
    return folder(
        Path(data).expanduser(), image_size, labels_file, progress, stream, strict, labels_needed
    )


def relabel(dataset: Dataset, labels_file: Path) -> Dataset:
    """The same images; only those in the file are labelled, by name or by row of `train`.

    The classes are those of the data set. Its predefined folds are dropped with its labels. Images
    with two labels stay unlabelled.
    """
    rows = {str(i): i for i in range(len(dataset.train))}
    rows |= {name: i for i, name in enumerate(dataset.train.names)}
    numbers = {name: i for i, name in enumerate(dataset.classes)}
    labels = torch.full_like(dataset.train.labels, UNLABELLED)

    def class_of(name: str) -> str:  # of an image in a plain list
        number = int(dataset.train.labels[rows[name]]) if name in rows else UNLABELLED
        return "none" if number == UNLABELLED else dataset.classes[number]

    listed = [(name, class_of(name)) for name in read_list(labels_file)]
    found: dict[int, list[str]] = defaultdict(list)
    for name, label in listed or read_labels(labels_file):
        if name not in rows:
            known = f"{dataset.train.names[0]} to {dataset.train.names[-1]}"
            raise UserError(f"{labels_file} labels {name!r}: {dataset.name} has names {known}")
        if label not in numbers:
            known = ", ".join(dataset.classes)
            raise UserError(f"{labels_file} has the label {label!r}: {dataset.name} has {known}")
        if label not in found[rows[name]]:
            found[rows[name]].append(label)
    conflicts = []
    for row, several in found.items():
        if len(several) == 1:
            labels[row] = numbers[several[0]]
        else:
            conflicts.append(f"{dataset.train.names[row]}: {two_labels(several)}")
    train = replace(dataset.train, labels=labels)
    return replace(dataset, train=train, folds=[], conflicts=conflicts)


# ---------------------------------------------------------------------------------- digits


def digits(data_dir: Path, image_size: int | None = None, progress: bool = True) -> Dataset:
    """scikit-learn's 1,797 handwritten digits of 8 x 8, which need no download.

    They have no test part; every fifth image (index % 5 == 4) is used as one.
    """
    from sklearn.datasets import load_digits  # slow to import

    bunch = load_digits()
    grey = np.round(bunch.images * (255 / 16)).astype(np.uint8)  # [1797, 8, 8]; were 0 to 16
    images = stack([np.repeat(grey[:, None], 3, axis=1)], image_size or 8)
    labels = torch.from_numpy(bunch.target.astype(np.int64))
    everything = Images(images, labels, [str(i) for i in range(len(labels))])
    held_out = torch.arange(len(labels)) % 5 == 4
    return Dataset(
        "digits",
        [str(name) for name in bunch.target_names],
        train=everything.subset((~held_out).nonzero()[:, 0]),
        test=everything.subset(held_out.nonzero()[:, 0]),
    )


# --------------------------------------------------------------------------------- archives


class Archive(NamedTuple):
    """A published archive, and how to recognise the folder in it."""

    folder: str
    marker: str  # a file that only this folder has
    url: str
    md5: str

    def path(self, data_dir: Path) -> Path:
        """The path of the archive itself, whether or not it exists."""
        return data_dir / self.url.rpartition("/")[2]


def obtain(data_dir: Path, *archives: Archive, progress: bool = True) -> tuple[Path, Archive]:
    """The folder of one of these archives: existing, else unpacked, else the first downloaded."""
    for archive in archives:
        if data_dir.name == archive.folder or (data_dir / archive.marker).is_file():
            return data_dir, archive
        if (data_dir / archive.folder).is_dir():
            return data_dir / archive.folder, archive
    archive = next((a for a in archives if a.path(data_dir).is_file()), archives[0])
    fetch_and_unpack(archive.url, archive.path(data_dir), archive.md5, data_dir, progress)
    return data_dir / archive.folder, archive


# --------------------------------------------------------------------------------- CIFAR-10


CIFAR10_PICKLED = Archive(
    "cifar-10-batches-py",
    "batches.meta",
    "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    "c58f30108f718f92721af3b95e74349a",
)
CIFAR10_BINARY = Archive(
    "cifar-10-batches-bin",
    "batches.meta.txt",
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "c32a1d4ab5d03f1284b67883e8d87530",
)
Records = tuple[np.ndarray, np.ndarray]  # images [N, 3, 32, 32] and labels [N]
CIFAR10_BATCHES = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]


def cifar10(data_dir: Path, image_size: int | None = None, progress: bool = True) -> Dataset:
    """CIFAR-10: 50,000 + 10,000 images of 32 x 32 in ten classes, pickled or binary."""
    where, archive = obtain(data_dir, CIFAR10_PICKLED, CIFAR10_BINARY, progress=progress)
    if archive.folder == CIFAR10_BINARY.folder:
        classes, read, suffix = _lines(where / archive.marker), _binary_batch, ".bin"
    else:
        classes, read, suffix = _pickled_classes(where / archive.marker), _pickled_batch, ""

    batches: list[Records] = []
    for name in CIFAR10_BATCHES:
        images, labels = read(where / f"{name}{suffix}")
        _check(where / f"{name}{suffix}", images, labels, classes)
        if batches and len(labels) != len(batches[0][1]):  # truncated between two images
            why = f"{len(labels)} images, other batches have {len(batches[0][1])}"
            raise _damaged(where / f"{name}{suffix}", why)
        batches.append((images, labels))

    def part(name: str, batches: Sequence[Records]) -> Images:
        images = stack([images for images, _ in batches], image_size or 32)
        labels = np.concatenate([labels for _, labels in batches]).astype(np.int64)
        return Images(images, torch.from_numpy(labels), _numbered(name, len(labels)))

    return Dataset("cifar10", classes, part("train", batches[:5]), part("test", batches[5:]))


def _binary_batch(path: Path) -> Records:
    """Records of one label byte and 3,072 bytes: red, green, blue, each row by row."""
    records = _memory_map(path, 1 + 3072)  # [N, 3073]
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]


def _pickled_batch(path: Path) -> Records:
    """A dictionary with `data` [N, 3072] and `labels`, written by Python 2."""
    content = _unpickle(path)
    try:
        images = content["data"].reshape(-1, 3, 32, 32).astype(np.uint8, casting="no", copy=False)
        return images, np.array(content["labels"], dtype=np.uint8)
    except (KeyError, AttributeError, ValueError, TypeError, OverflowError) as error:
        raise _damaged(path, "no images and labels in it") from error


def _pickled_classes(path: Path) -> list[str]:
    try:
        return [n.decode() if isinstance(n, bytes) else n for n in _unpickle(path)["label_names"]]
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, "no class names in it") from error


class _ArraysOnly(pickle.Unpickler):
    """Loads numpy arrays only. An ordinary unpickler calls any function that the file names."""

    allowed = frozenset(
        [
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy._core.numeric", "_frombuffer"),
            ("_codecs", "encode"),  # bytes that Python 3 wrote for Python 2
        ]
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.allowed:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no array needs")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def _unpickle(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = _ArraysOnly(file, encoding="bytes").load()
        return {k.decode() if isinstance(k, bytes) else k: v for k, v in content.items()}
    except Exception as error:  # a damaged pickle can cause any exception
        raise _damaged(path, error) from error


# ----------------------------------------------------------------------------------- STL-10


STL10 = Archive(
    "stl10_binary",
    "fold_indices.txt",
    "http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
    "91f7769df0f17e558f3565bffb0c7dfb",
)


def stl10(data_dir: Path, image_size: int | None = None, progress: bool = True) -> Dataset:
    """STL-10: 5,000 labelled, 100,000 unlabelled, 8,000 test images of 96 x 96, and ten folds.

    The labelled images come first. A fold is 1,000 of them; the paper uses the first five folds.
    """
    where, _ = obtain(data_dir, STL10, progress=progress)
    size = image_size or 96
    classes = _lines(where / "class_names.txt")
    train, test, unlabelled = (
        # These files store images column by column.
        _memory_map(where / f"{part}_X.bin", 3, 96, 96).transpose(0, 1, 3, 2)
        for part in ("train", "test", "unlabeled")
    )
    train_y, test_y = (
        _memory_map(where / f"{part}_y.bin").astype(np.int64) - 1 for part in ("train", "test")
    )
    _check(where / "train_y.bin", train, train_y, classes)
    _check(where / "test_y.bin", test, test_y, classes)
    labels = np.concatenate([train_y, np.full(len(unlabelled), UNLABELLED)])
    names = _numbered("train", len(train)) + _numbered("unlabeled", len(unlabelled))
    return Dataset(
        "stl10",
        classes,
        train=Images(stack([train, unlabelled], size), torch.from_numpy(labels), names),
        test=Images(stack([test], size), torch.from_numpy(test_y), _numbered("test", len(test))),
        folds=_folds(where / STL10.marker, len(train)),
    )


def _folds(path: Path, images: int) -> list[list[int]]:
    """The indices of each fold: one line each, counted from zero."""
    try:
        folds = [[int(row) for row in line.split()] for line in _lines(path)]
    except ValueError as error:
        raise _damaged(path, error) from error
    if any(not 0 <= row < images for fold in folds for row in fold):
        raise _damaged(path, "it names images that are not there")
    return folds


SOURCES: dict[str, Callable[[Path, int | None, bool], Dataset]] = {
    "digits": digits,
    "cifar10": cifar10,
    "stl10": stl10,
}


# ------------------------------------------------------------------------------- helpers


def stack(parts: Sequence[np.ndarray], size: int) -> Tensor:  # [N, 3, H, W] each -> [N, 3, S, S]
    """All images in one tensor, resized if necessary as by Pillow's bilinear filter.

    It is filled in chunks, so that memory-mapped data is not in memory twice.
    """
    images = torch.empty(sum(map(len, parts)), 3, size, size, dtype=torch.uint8)
    start = 0
    for part in parts:
        for piece in np.array_split(part, len(part) // 1000 + 1):
            pixels = torch.from_numpy(np.array(piece))
            if pixels.shape[2:] != (size, size):
                pixels = F.interpolate(pixels, (size, size), mode="bilinear", antialias=True)
            images[start : start + len(piece)] = pixels
            start += len(piece)
    return images


def _numbered(part: str, count: int) -> list[str]:
    return [f"{part}/{i:05d}" for i in range(count)]


def _memory_map(path: Path, *shape: int) -> np.ndarray:
    """The bytes of a file as [N, *shape], read when they are used."""
    try:
        return np.memmap(path, dtype=np.uint8, mode="r").reshape(-1, *shape)
    except (OSError, ValueError) as error:  # ValueError: empty, or not a whole number of records
        raise _damaged(path, error) from error


def _lines(path: Path) -> list[str]:
    try:
        return [line.strip() for line in path.read_text().splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from error


def _check(path: Path, images: np.ndarray, labels: np.ndarray, classes: list[str]) -> None:
    if not len(images) == len(labels) > 0:
        raise _damaged(path, f"{len(images)} images, {len(labels)} labels")
    if labels.min() < 0 or labels.max() >= len(classes):
        raise _damaged(path, f"it has a label that is none of the {len(classes)} classes")


def _damaged(path: Path, why: object) -> UserError:
    what = "missing" if isinstance(why, FileNotFoundError) else "damaged"
    reason = "" if what == "missing" else f" ({' '.join(str(why).split())})"
    return UserError(
        f"{path} is {what}{reason}: put a good copy there, "
        f"or remove {path.parent} to have it downloaded again"
    )
