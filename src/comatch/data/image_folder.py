"""A data set from a folder of images.

Labels come from a `labels.csv` (`data.labels_file`) or from sub-folders named after the classes.
All other images are unlabelled, and so are images with two labels. A sub-folder `test` of the same
form is the test part. ImageNet's layout works too: class folders in `train`, and those of the test
part in `val`. Nothing is written into the folder.

If the images fit into memory, they are decoded before training; else they are read during training
(`data.streaming`).
"""

import difflib
import hashlib
import posixpath
import re
import stat
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from comatch.data.image_files import (
    FORMATS_TEXT,
    LABELS_CSV,
    TEST_NAMES,
    Layout,
    below,
    finder,
    image_names,
    labels_csv,
    layout_of,
    subfolders,
)
from comatch.data.images import ImageError, original_size, read_image
from comatch.data.labels_file import UNLABELLED_NAMES, read_labels, read_list
from comatch.data.names import check_images
from comatch.data.reader import Reader
from comatch.errors import UserError, printable, shortened
from comatch.types import UNLABELLED, Dataset, Files, Images, Part

MOST_BYTES = 8 * 10**9  # of pixels in memory with stream=auto
FEW = 500  # images that are decoded faster than worker processes start
MOST_COMPARED = 50_000  # labelled files that are compared where images stay on disk
MOST_NEAR = 10_000  # names among which one is suggested
MEASURED = 200  # files whose size in pixels is read


def folder(
    path: Path,
    image_size: int | None,
    labels_file: Path | None = None,
    progress: bool = True,
    stream: str = "auto",
    strict: bool = False,
    labels_needed: bool = True,
) -> Dataset:
    """The images below `path`, resized and cropped to `image_size`, with their labels.

    With a `labels_file`, its rows are the only labels, even if there are class sub-folders. With
    `stream` "yes", or "auto" and more pixels than `MOST_BYTES`, the images stay on disk. Images
    with two labels stay unlabelled; with `strict`, they are an error. Unless `labels_needed`, there
    may be no label at all.
    """
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise UserError(f"{path} {what}: give a folder of images")
    if image_size is None:
        raise UserError(f"the images in {path} have no size of their own: give an image size")

    layout = layout_of(path)
    names = image_names(path, without=layout.others)
    if not names:
        raise UserError(f"{path} has no images: put some in it ({FORMATS_TEXT})")
    labels_file = labels_file or labels_csv(path) or labels_csv(layout.home)
    labels = _labels_of(layout, names, labels_file, labels_needed)
    found = labels.classes if labels_needed else set(labels.known.values())
    classes = sorted(found, key=natural_order)
    if len(classes) == 1 and labels_needed:
        raise UserError(
            f"all labels in {labels_file or layout.home} are '{classes[0]}': "
            "give two classes or more"
        )
    # Errors in files and labels are found before decoding, which takes long.
    test_names, test_labels = _test_part(path, layout.test if classes else None, classes)
    listing = Listing(path, names, labels, test_labels, classes)
    dataset = read_files(listing, image_size, progress, stream, strict, labels_needed)
    labelled = len(test_labels.known) + len(test_labels.conflicts)
    if layout.test and classes and (unlabelled := len(test_names) - labelled):
        dataset.skipped.append(f"{layout.test.name}: {unlabelled} images without a label")
    return dataset


class Conflict(NamedTuple):
    """Why the label of an image is not used."""

    labels: list[str]  # of this image
    why: str


@dataclass
class Labels:
    """The labels of one part, and its images with two labels, which are not used."""

    known: dict[str, str]  # the class by the name of the image
    conflicts: dict[str, Conflict]
    classes: set[str]  # all that are named

    def describe_conflicts(self) -> list[str]:
        return [f"{name}: {conflict.why}" for name, conflict in self.conflicts.items()]


class Listing(NamedTuple):
    """Image files and their labels, before the files are read."""

    root: Path
    names: list[str]  # of the training images: paths below the root
    labels: Labels
    test: Labels  # the names of the test images are below the root too
    classes: list[str]


def read_files(
    listing: Listing,
    image_size: int,
    progress: bool = True,
    stream: str = "auto",
    strict: bool = False,
    labels_needed: bool = True,
) -> Dataset:
    """The listed images, in memory or on disk. Errors are found before decoding."""
    root, names, labels, test_labels, classes = listing
    on_disk = stream == "yes" or (stream == "auto" and 3 * image_size**2 * len(names) > MOST_BYTES)
    for part in (labels, test_labels):
        if not on_disk or len(part.known) <= MOST_COMPARED:
            _compare_files(root, part)
    conflicts = labels.describe_conflicts() + test_labels.describe_conflicts()
    if strict:
        refuse_conflicts(root, conflicts)
    _check_usable(root, classes, set(labels.known.values()), labels)

    def load(names: Sequence[str], labels: Labels) -> tuple[Part, list[str]]:
        if on_disk:
            return Files(root, _numbers(names, labels.known, classes), list(names)), []
        return _load(root, names, labels.known, classes, image_size, progress)

    train, skipped = load(names, labels)
    readable = {classes[number] for number in train.labels.unique().tolist() if number >= 0}
    if labels_needed:
        _check_usable(root, classes, readable, labels)
    test = None
    if test_labels.known:
        test, more = load(sorted(test_labels.known), test_labels)
        skipped += more
    return Dataset(
        root.resolve().name,
        classes,
        train,
        test,
        skipped=skipped,
        conflicts=conflicts,
        original_size=_median_size(root, train.names),
    )


def _check_usable(path: Path, classes: list[str], usable: set[str], labels: Labels) -> None:
    """Raise an error at the first class without a usable label."""
    missing = next((name for name in classes if name not in usable), None)
    if missing is None:
        return
    damaged = [(name, "") for name, label in labels.known.items() if label == missing]
    unclear = [(name, f" ({c.why})") for name, c in labels.conflicts.items() if missing in c.labels]
    example, why = min(damaged or unclear)
    raise UserError(
        f"no labelled image of class '{missing}' in {path} can be used, {example} for one"
        f"{why}: mend it or remove the class"
    )


def refuse_conflicts(data: str | Path, conflicts: Sequence[str]) -> None:
    """Raise an error if there are images with two labels."""
    if conflicts:
        raise UserError(
            f"{len(conflicts)} images in {data} have two labels "
            f"({shortened(conflicts, between='; ')}): give each one, or leave --strict out"
        )


def two_labels(labels: Iterable[str]) -> str:
    """Why the label of an image is unknown, in a few words."""
    return "two labels, " + " and ".join(f"'{label}'" for label in labels)


def _test_part(path: Path, test: Path | None, classes: list[str]) -> tuple[list[str], Labels]:
    """Names of the images of the test part, relative to `path`, and their labels."""
    if test is None:
        return [], Labels({}, {}, set())
    names = image_names(test, without=[path])
    labels = _labels_in(test, names, classes, f"{path} has no labelled image of it: label some")
    labels.known = {f"{test.name}/{name}": label for name, label in labels.known.items()}
    labels.conflicts = {f"{test.name}/{name}": c for name, c in labels.conflicts.items()}
    return [f"{test.name}/{name}" for name in names], labels


def _labels_in(path: Path, names: list[str], classes: Sequence[str], hint: str) -> Labels:
    """The labels of images to evaluate on, which must be of these classes."""
    labels_file = labels_csv(path)
    labels = _labels_from(labels_file, path, names) if labels_file else _labels_by_folder(names)
    if unknown := sorted(labels.classes - set(classes), key=natural_order):
        raise UserError(f"{path} has the class '{unknown[0]}': {hint}, or remove it")
    missing = sorted(set(classes) - labels.classes, key=natural_order)
    if labels.known and missing:
        these = printable(shortened([f"'{name}'" for name in missing], 1))
        warnings.warn(
            f"{path} has no image of class {these}: accuracy is over the rest", stacklevel=4
        )
    return labels


def labelled_files(path: Path, classes: Sequence[str]) -> Files:
    """The labelled images of a folder, for the evaluation of a classifier of these classes.

    Labels come from class folders or from a labels.csv in the folder, as for training.
    """
    if not path.is_dir():
        raise UserError(f"{path} is no folder: give a folder of labelled images")
    names = image_names(path, without=[])
    labels = _labels_in(path, names, classes, f"the run has {shortened(classes)}: rename it")
    if not labels.known:
        raise UserError(f"{path} has no labelled image: sort some into folders of their classes")
    return labelled_part(path, labels, classes)


def labelled_part(root: Path, labels: Labels, classes: Sequence[str]) -> Files:
    """The files that have a label."""
    known = sorted(labels.known)
    return Files(root, _numbers(known, labels.known, list(classes)), known)


def find_images(paths: Iterable[Path]) -> list[Path]:
    """The given files and every image below the given folders: sorted, each path once."""
    found: set[Path] = set()
    paths = list(paths)
    check_images(paths)
    for path in paths:
        if path.is_dir():
            found.update(below(path))
        else:
            found.add(path)
    if not found:
        raise UserError(f"no images ({FORMATS_TEXT}) in {', '.join(map(str, paths))}")
    return sorted(found)


# ------------------------------------------------------------------------------ many images


def _load(
    path: Path,
    names: Sequence[str],
    labels: dict[str, str],
    classes: list[str],
    size: int,
    progress: bool,
) -> tuple[Images, list[str]]:
    """All readable images in one array, and why each of the others is unreadable."""
    images = np.empty((len(names), 3, size, size), dtype=np.uint8)
    decode = _decode_here if len(names) < FEW else _decode_in_workers
    faults = [
        fault and f"{name}: {fault}"
        for name, fault in zip(
            names,
            track(
                decode(path, names, images),
                f"reading {len(names):,} images",
                total=len(names),
                console=Console(stderr=True),
                transient=True,
                disable=not progress or len(names) < 1000,
            ),
            strict=True,
        )
    ]
    kept = [row for row, fault in enumerate(faults) if not fault]
    skipped = [fault for fault in faults if fault]
    if not kept:
        raise UserError(f"none of the {len(names)} images in {path} can be read ({skipped[0]})")
    if skipped:
        for target, row in enumerate(kept):  # in place: there may be no memory for a copy
            images[target] = images[row]
    readable = [names[row] for row in kept]
    pixels = torch.from_numpy(images[: len(kept)])
    return Images(pixels, _numbers(readable, labels, classes), readable), skipped


def _decode_here(path: Path, names: Sequence[str], images: np.ndarray) -> Iterator[str]:
    """Decode images into the array; yield for each why it is unreadable, or nothing."""
    for row, name in enumerate(names):
        try:
            images[row] = read_image(path / name, images.shape[-1])
            yield ""
        except ImageError as error:
            yield str(error)


def _decode_in_workers(path: Path, names: Sequence[str], images: np.ndarray) -> Iterator[str]:
    """The same in worker processes, which take a moment to start."""
    files = Files(path, torch.full((len(names),), UNLABELLED), list(names))
    with Reader(images.shape[-1], torch.device("cpu")) as reader:
        for chunk in reader.read_all(files):
            images[chunk.rows] = chunk.images.numpy()
            yield from (chunk.bad.get(row, "") for row in sorted([*chunk.rows, *chunk.bad]))


def _numbers(names: Sequence[str], labels: dict[str, str], classes: list[str]) -> Tensor:  # [N]
    numbers = {name: number for number, name in enumerate(classes)}
    return torch.tensor([numbers.get(labels.get(name, ""), UNLABELLED) for name in names])


def _compare_files(path: Path, labels: Labels) -> None:
    """Move identical files with different labels to the conflicts.

    Only files of the same size are read.
    """
    by_size: dict[int, list[str]] = defaultdict(list)
    for name in sorted(labels.known):
        with suppress(OSError):  # unreadable files are reported when they are decoded
            status = (path / name).stat()
            if stat.S_ISREG(status.st_mode) and status.st_size:  # opening a pipe would block
                by_size[status.st_size].append(name)
    for names in by_size.values():
        if len({labels.known[name] for name in names}) == 1:
            continue
        first: dict[str, str] = {}
        known = {name: labels.known[name] for name in names}
        for name in names:
            with suppress(OSError), (path / name).open("rb") as file:
                other = first.setdefault(hashlib.file_digest(file, "sha256").hexdigest(), name)
                if known[other] != known[name]:
                    for one, same in ((name, other), (other, name)):
                        labels.known.pop(one, None)
                        why = f"the same image as {same} of class '{known[same]}'"
                        labels.conflicts.setdefault(one, Conflict([known[one]], why))


def _median_size(path: Path, names: Sequence[str]) -> tuple[int, int] | None:
    """Median width and height of some of the files in pixels."""
    some = names[:: max(1, -(-len(names) // MEASURED))]
    sizes = [size for name in some if (size := original_size(path / name))]
    if not sizes:
        return None
    width, height = np.median(sizes, axis=0).astype(int).tolist()
    return width, height


# ------------------------------------------------------------------------------------ labels


def _labels_of(layout: Layout, names: list[str], labels_file: Path | None, needed: bool) -> Labels:
    """The labels of the training images: from a csv file, a list, or their folders."""
    by_folder = _labels_by_folder(names, layout.prefix)
    if labels_file is None:
        if needed:
            _check_class_folders(layout.home, by_folder.classes)
        return by_folder
    if listed := read_list(labels_file):
        return _labels_listed(labels_file, listed, names, by_folder.known)
    return _labels_from(labels_file, layout.path, names, layout.prefix)


def _labels_by_folder(names: list[str], prefix: str = "") -> Labels:
    """The label of an image below a sub-folder is the folder's name."""
    inner = {name: name.removeprefix(prefix) for name in names if name.startswith(prefix)}
    top = {name: below.split("/")[0] for name, below in inner.items() if "/" in below}
    known = {name: label for name, label in top.items() if label.lower() not in UNLABELLED_NAMES}
    return Labels(known, {}, set(known.values()))


def _labels_listed(
    path: Path, listed: list[str], names: list[str], by_folder: dict[str, str]
) -> Labels:
    """The images of a plain list, found by their file names, with the classes of their folders.

    The class of an image outside class folders is the prefix of its name: n01440764_10026.JPEG.
    """
    known = set(names)
    by_file: dict[str, list[str]] = defaultdict(list)
    for name in names:
        by_file[posixpath.basename(name)].append(name)
    labels: dict[str, str] = {}
    unknown = []
    for written in listed:
        plain = posixpath.normpath(written.replace("\\", "/"))
        found = [plain] if plain in known else by_file[posixpath.basename(plain)]
        found = [n for n in found if f"/{n}".endswith(f"/{plain}")] or found
        if len(found) > 1:
            raise UserError(
                f"{path} lists {written}, which may be {found[0]} or {found[1]}: "
                "write the folder before the name"
            )
        label = found and (by_folder.get(found[0]) or posixpath.basename(plain).rpartition("_")[0])
        if label:
            labels[found[0]] = label
        else:
            unknown.append(written)
    if unknown:
        raise UserError(
            f"{path} lists {len(listed)} images of which {len(unknown)} are not there or in "
            f"no class folder, {unknown[0]} for one: give the folder that the list was made for"
        )
    return Labels(labels, {}, set(labels.values()))


def _labels_from(csv_path: Path, path: Path, names: list[str], prefix: str = "") -> Labels:
    """The labels of a csv file by the images' names, in any spelling."""
    find = finder(path, names, prefix)
    labels: dict[str, list[str]] = defaultdict(list)
    pairs, unknown = read_labels(csv_path), dict[str, None]()
    for written, label in pairs:
        name = find(written)
        if name is None:
            unknown[written] = None
        elif label not in labels[name]:
            labels[name].append(label)
    if unknown:
        first, *_ = missing = list(unknown)
        near = difflib.get_close_matches(first, names[:MOST_NEAR], n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        few = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise UserError(
            f"{csv_path} labels {len(missing)} of {len(labels) + len(missing)} files which "
            f"are no images of {path}: {few}{hint}; mend the paths or remove the rows"
        )
    return Labels(
        {name: several[0] for name, several in labels.items() if len(several) == 1},
        {
            name: Conflict(several, two_labels(several))
            for name, several in labels.items()
            if len(several) > 1
        },
        {label for _, label in pairs},
    )


def _check_class_folders(path: Path, classes: set[str]) -> None:
    """Without a csv file, sub-folders are the classes. There must be some, and none empty."""
    if not classes:
        raise UserError(
            f"{path} has no labels: put a {LABELS_CSV} in it with rows of path,label, "
            "or sort some images into sub-folders named after the classes"
        )
    if classes <= {"train", *TEST_NAMES}:
        raise UserError(
            f"the sub-folders of {path} ({', '.join(sorted(classes))}) are parts, not classes: "
            "put class folders in train, and in val or test those of the test part"
        )
    for sub in subfolders(path):
        if sub.name not in classes and sub.name.lower() not in ("test", *UNLABELLED_NAMES):
            raise UserError(f"class '{sub.name}' has no image: put some in {sub} or remove it")


def natural_order(name: str) -> tuple[list[str | tuple[int, str]], str]:
    """A sorting key that puts 9 before 10; the name itself distinguishes 1 from 01.

    Numbers are compared by their digits, because Python does not convert very long ones.
    """
    parts = re.split(r"(\d+)", name)
    numbers = [(len(digits.lstrip("0")), digits.lstrip("0")) for digits in parts[1::2]]
    key: list[str | tuple[int, str]] = list(parts)
    key[1::2] = numbers
    return key, name
