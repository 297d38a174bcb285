"""Which labels the learner may see: drawn class by class, by seed, and written down by name.

Each class is shuffled once. Labelled images are taken from the front of a class and validation
images from its back, so holding a validation part out does not change which images are
labelled. A fold is a part of the labelled images themselves: where forty labels are all there is,
each can be asked once of a learner that does not know it. The test part is a data set of its own
and is not known here.
"""

import zlib
from contextlib import suppress
from dataclasses import dataclass
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
    """Rows of the training images, by what they are used for."""

    labelled: Tensor  # [n]
    unlabelled: Tensor  # [m]
    validation: Tensor  # [v]
    origin: str  # how the labelled rows were chosen, for people
    seed: int | None = None  # that the validation rows follow from, if they do


def to_json(split: Split, dataset: Dataset) -> dict[str, Any]:
    """What `restore` needs to make the same split again and to notice that the data changed.

    Labelled images are listed by name. So are the labels held out of a fold; validation images may
    be thousands, so only their number, seed and digest are written, from which they follow.
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

    fold = _fold(dataset, seed, config.labels)
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
        validation = _left_out(dataset, labelled, config.fold, random)
        asked = set(validation)
        labelled = [row for row in labelled if row not in asked]
        origin += f", without part {config.fold} of them"
    drawn = seed if config.validation else None
    return _finish(dataset, labelled, validation, origin, drawn)


def restore(dataset: Dataset, config: DataConfig, written: dict[str, Any]) -> Split:
    """The split that `to_json` wrote; the data must still be the same.

    Older versions listed validation images by name, too.
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
    """The validation images as the seed that they follow from, and a digest of their rows."""
    rows = ",".join(map(str, split.validation.tolist())).encode()
    digest = f"{zlib.crc32(rows):08x}"
    return {"images": len(split.validation), "seed": split.seed, "digest": digest}


def fingerprint(images: Part) -> str:
    """A short number that changes with any name, label or pixel.

    Of images that stay files, the lengths of some stand for the pixels of all.
    """
    crc = zlib.crc32("\n".join(images.names).encode())
    crc = zlib.crc32(images.labels.numpy().tobytes(), crc)
    if isinstance(images, Files):
        for name in images.names[:: max(1, len(images) // 10_000)]:
            with suppress(OSError):  # what cannot be read is counted when it is met
                crc = zlib.crc32(b"%d" % (images.root / name).stat().st_size, crc)
        return f"{crc:08x}"
    for chunk in images.images.split(4096):  # in pieces: a big set is not copied whole
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


def _fold(dataset: Dataset, seed: int, labels: float | None) -> list[int] | None:
    """Data sets with folds of their own use them where the number of labels agrees."""
    if seed < len(dataset.folds) and len(dataset.folds[seed]) == labels:
        return dataset.folds[seed]
    return None


def _left_out(
    dataset: Dataset, labelled: list[int], fold: str, random: np.random.Generator
) -> list[int]:
    """One of several parts of the labelled rows: they are dealt out like cards, class by class.

    So parts have about as many of each class, and none has a class to itself.
    """
    part, parts = parse_fold(fold)
    if parts > len(labelled):
        raise UserError(f"{len(labelled)} labels are too few for {parts} parts: use fewer folds")
    every, labels = np.array(labelled), dataset.train.labels.numpy()[labelled]
    cards: list[int] = []
    for c, name in enumerate(dataset.classes):
        rows = every[labels == c]
        if len(rows) < 2:
            raise UserError(
                f"class '{name}' has one labelled image, which cannot be left out: label two"
            )
        cards += random.permutation(rows).tolist()
    return cards[part - 1 :: parts]


def _validation_rows(validation: float, rows: int, classes: int) -> int:
    return round(rows * validation) if validation < 1 else round(validation / classes)


def _multiples(wanted: int, classes: int) -> tuple[int, int]:
    few = wanted // classes * classes
    return few, few + classes


def _too_few(name: str, there: int, each: int | None, classes: int) -> str:
    if there == 0:
        return f"class '{name}' has no labelled image: label at least one, or remove the class"
    return f"class '{name}' has {there} labelled images, not {each}: use --labels {there * classes}"
