"""Splits: which images are labelled, unlabelled or held out, drawn class by class from a seed.

Each class is shuffled once. Labelled images are the first of a class and validation images the
last, so holding out images does not change which ones are labelled. A fold holds out a part of the
labelled images themselves, for cross-validation on few labels. The test part is not split here.
"""

import zlib
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from comatch.data.config import DataConfig, parse_fold
from comatch.errors import UserError
from comatch.types import Dataset, Files, Part


@dataclass(frozen=True)
class Split:
    """Rows of the training images, by their use."""

    labelled: Tensor  # [n]
    unlabelled: Tensor  # [m]
    validation: Tensor  # [v]
    origin: str  # how the labelled rows were chosen, in words
    seed: int | None = None  # of the validation rows, if they were drawn by seed


def to_json(split: Split, dataset: Dataset) -> dict[str, Any]:
    """What `restore` needs to restore the split and to detect that the data changed.

    Labelled images are listed by name, and so are those held out by a fold. Validation images can
    be thousands, so only their number, seed and digest are recorded.
    """
    images, classes = dataset.train, dataset.classes

    def named(rows: Tensor) -> dict[str, str]:
        return {images.names[i]: classes[int(images.labels[i])] for i in rows.tolist()}

    return {
        "origin": split.origin,
        "images": len(images),
        "fingerprint": fingerprint(images),
        "classes": classes,
        "labelled": named(split.labelled),
        "validation": named(split.validation) if split.seed is None else _from_seed(split),
        "unlabelled": len(split.unlabelled),
        "skipped": dataset.skipped,
        "two_labels": dataset.conflicts,
    }


def make(dataset: Dataset, config: DataConfig, seed: int) -> Split:
    """A new split, or the predefined fold of that number."""
    labels = dataset.train.labels.numpy()
    wanted, how = config.labels, ""
    if wanted is not None and wanted < 1:
        known = int((labels >= 0).sum())
        how = f" ({wanted:.4g} of {known:,} labelled images in {len(dataset.classes)} classes)"
        wanted = max(1, round(wanted * known / len(dataset.classes))) * len(dataset.classes)
    if wanted is not None and wanted % len(dataset.classes):
        few, many = _multiples(int(wanted), len(dataset.classes))
        raise UserError(
            f"{wanted} labels cannot be shared evenly by {len(dataset.classes)} classes: "
            f"use --labels {few or many}" + (f" or {many}" if few else "")
        )
    random = np.random.default_rng(seed)
    by_class = [
        random.permutation(np.flatnonzero(labels == c)) for c in range(len(dataset.classes))
    ]

    validation: list[int] = []
    for c, rows in enumerate(by_class):
        share = _validation_rows(config.validation, len(rows), len(by_class))
        if share >= len(rows) > 0:
            raise UserError(
                f"validation={config.validation:g} leaves no labelled image of class "
                f"'{dataset.classes[c]}', which has {len(rows)}: hold out fewer"
            )
        validation += rows[len(rows) - share :].tolist()
        by_class[c] = rows[: len(rows) - share]

    fold = _predefined_fold(dataset, seed, config.labels)
    if fold is not None:
        labelled, origin = sorted(set(fold) - set(validation)), f"predefined fold {seed}"
    else:
        each = None if wanted is None else int(wanted) // len(by_class)
        for c, rows in enumerate(by_class):
            if len(rows) < (each or 1):
                raise UserError(_too_few(dataset.classes[c], len(rows), each, len(by_class)))
        labelled = [row for rows in by_class for row in sorted(rows[:each].tolist())]
        listed = f" of {Path(config.labels_file).name}" if config.labels_file else ""
        origin = f"{each} a class{how}{listed}, by seed"
        if each is None:
            origin = f"all {len(labelled)} labels{listed}"
    if config.fold is not None:
        validation = _fold_rows(dataset, labelled, config.fold, random)
        held_out = set(validation)
        labelled = [row for row in labelled if row not in held_out]
        origin += f", without part {config.fold} of them"
    drawn = seed if config.validation else None
    return _finish(dataset, labelled, validation, origin, drawn)


def without_labels(split: Split) -> Split:
    """The same images, none of them labelled: all that are not held out are unlabelled."""
    free = torch.cat([split.labelled, split.unlabelled]).sort().values
    return replace(split, labelled=free[:0], unlabelled=free, origin="no label is used")


def restore(dataset: Dataset, config: DataConfig, written: dict[str, Any]) -> Split:
    """The split that `to_json` wrote. The data must not have changed.

    Older versions listed validation images by name.
    """
    images = dataset.train
    if written["fingerprint"] != fingerprint(images) or written["classes"] != dataset.classes:
        raise UserError(
            f"the data changed since this run began ({written['images']} training images then, "
            f"{len(images)} now, or other labels or pixels): start a new run"
        )
    row = {name: i for i, name in enumerate(images.names)}
    labelled = [row[name] for name in written["labelled"]]
    held_out = written["validation"]
    if isinstance(held_out.get("images"), int):
        again = make(dataset, config, held_out["seed"])
        if _from_seed(again)["digest"] != held_out["digest"]:
            raise UserError(
                f"this version draws other validation images from seed {held_out['seed']} than "
                "the one that began this run: start a new run"
            )
        return _finish(dataset, labelled, again.validation.tolist(), written["origin"], again.seed)
    validation = [row[name] for name in held_out]
    return _finish(dataset, labelled, validation, written["origin"])


def _from_seed(split: Split) -> dict[str, Any]:
    """The number of validation images, their seed, and a digest of their rows."""
    rows = ",".join(map(str, split.validation.tolist())).encode()
    digest = f"{zlib.crc32(rows):08x}"
    return {"images": len(split.validation), "seed": split.seed, "digest": digest}


def fingerprint(images: Part) -> str:
    """A checksum of all names, labels and pixels.

    For images on disk, it covers the sizes of some files instead of the pixels.
    """
    # Names can have bytes that are no text.
    crc = zlib.crc32("\n".join(images.names).encode(errors="surrogatepass"))
    crc = zlib.crc32(images.labels.numpy().tobytes(), crc)
    if isinstance(images, Files):
        for name in images.names[:: max(1, len(images) // 10_000)]:
            with suppress(OSError):  # unreadable files are counted during training
                crc = zlib.crc32(b"%d" % (images.root / name).stat().st_size, crc)
        return f"{crc:08x}"
    for chunk in images.images.split(4096):  # in chunks, so that the set is not copied as a whole
        crc = zlib.crc32(chunk.contiguous().numpy(), crc)
    return f"{crc:08x}"


def _finish(
    dataset: Dataset,
    labelled: list[int],
    validation: list[int],
    origin: str,
    seed: int | None = None,
) -> Split:
    free = torch.ones(len(dataset.train), dtype=torch.bool)
    free[validation] = False
    free[labelled] = False
    return Split(
        torch.tensor(labelled, dtype=torch.long),
        free.nonzero().flatten(),
        torch.tensor(validation, dtype=torch.long),
        origin,
        seed,
    )


def _predefined_fold(dataset: Dataset, seed: int, labels: float | None) -> list[int] | None:
    """The predefined fold of that number, if it has as many labels as are wanted."""
    if seed < len(dataset.folds) and len(dataset.folds[seed]) == labels:
        return dataset.folds[seed]
    return None


def _fold_rows(
    dataset: Dataset, labelled: list[int], fold: str, random: np.random.Generator
) -> list[int]:
    """One of several parts of the labelled rows, which are dealt out in turns, class by class.

    So all parts have about the same number of images of each class.
    """
    part, parts = parse_fold(fold)
    if parts > len(labelled):
        raise UserError(f"{len(labelled)} labels are too few for {parts} parts: use fewer folds")
    rows, labels = np.array(labelled), dataset.train.labels.numpy()[labelled]
    order: list[int] = []
    for c, name in enumerate(dataset.classes):
        of_class = rows[labels == c]
        if len(of_class) < 2:
            raise UserError(
                f"class '{name}' has one labelled image, which cannot be left out: label two"
            )
        order += random.permutation(of_class).tolist()
    return order[part - 1 :: parts]


def _validation_rows(validation: float, rows: int, classes: int) -> int:
    return round(rows * validation) if validation < 1 else round(validation / classes)


def _multiples(wanted: int, classes: int) -> tuple[int, int]:
    few = wanted // classes * classes
    return few, few + classes


def _too_few(name: str, there: int, each: int | None, classes: int) -> str:
    if there == 0:
        return f"class '{name}' has no labelled image: label at least one, or remove the class"
    return f"class '{name}' has {there} labelled images, not {each}: use --labels {there * classes}"
