"""A data set from a folder of images.

Labels come from a `labels.csv` (rows of path,label) or from sub-folders named after the classes.
All other images are unlabelled. A sub-folder `test` of the same form is the test part. ImageNet's
layout works too: class folders in `train`, and those of the test part in `val`. Nothing is written
into the folder.

If the images fit into memory, they are decoded before training; else they are read during training
(`data.streaming`).
"""

import csv
import difflib
import hashlib
import io
import os
import posixpath
import re
import unicodedata
import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from comatch.data.images import ImageError, read_image
from comatch.data.names import check_images
from comatch.data.reader import Reader
from comatch.errors import UserError, shortened
from comatch.types import UNLABELLED, Dataset, Files, Images, Part

EXTENSIONS = frozenset([".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"])
FORMATS_TEXT = "JPEG, PNG, WebP, BMP, GIF or TIFF"
UNLABELLED_NAMES = ("unlabeled", "unlabelled")
TEST_NAMES = ("test", "val", "valid", "validation")  # the first that has labels is the test part
LABELS_CSV = "labels.csv"
MOST_BYTES = 8 * 10**9  # of pixels in memory with stream=auto
FEW = 500  # images that are decoded faster than worker processes start
HEADERS = ("path", "file", "filename", "image", "name", "index"), ("label", "class")


def folder(
    path: Path,
    image_size: int | None,
    labels_file: Path | None = None,
    progress: bool = True,
    stream: str = "auto",
) -> Dataset:
    """The images below `path`, resized and cropped to `image_size`, with their labels.

    With a `labels_file`, its rows are the only labels, even if there are class sub-folders. With
    `stream` "yes", or "auto" and more pixels than `MOST_BYTES`, the images stay on disk.
    """
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise UserError(f"{path} {what}: give a folder of images")
    if image_size is None:
        raise UserError(f"the images in {path} have no size of their own: give an image size")

    layout = _layout(path)
    names = _names(path, without=layout.others)
    if not names:
        raise UserError(f"{path} has no images: put some in it ({FORMATS_TEXT})")
    labels_file = labels_file or _labels_csv(path) or _labels_csv(layout.home)
    labels = _labels_of(layout, names, labels_file)
    classes = sorted(set(labels.values()), key=_natural)
    if len(classes) == 1:
        raise UserError(
            f"all labels in {labels_file or layout.home} are '{classes[0]}': "
            "give two classes or more"
        )
    on_disk = stream == "yes" or (stream == "auto" and 3 * image_size**2 * len(names) > MOST_BYTES)
    # A set that stays on disk is too large to compare all files of the same size.
    conflicts = {} if on_disk else _conflicts(path, labels)
    names = [name for name in names if name not in conflicts]
    # Errors in files and labels are found before decoding, which takes long.
    test_dir = layout.test
    test_names, test_labels = _test_part(path, test_dir, classes) if test_dir else ([], {})
    for name in {} if on_disk else _conflicts(path, test_labels):
        del test_labels[name]

    def load(names: Sequence[str], labels: dict[str, str]) -> tuple[Part, list[str]]:
        if on_disk:
            return Files(path, _numbers(names, labels, classes), list(names)), []
        return _load(path, names, labels, classes, image_size, progress)

    train, skipped = load(names, labels)
    skipped += [f"{name}: {why}" for name, why in conflicts.items()]
    for number, name in enumerate(classes):
        if not (train.labels == number).any():
            example = min(n for n, label in labels.items() if label == name)
            raise UserError(
                f"no labelled image of class '{name}' in {path} can be used, {example} for one: "
                "mend it or remove the class"
            )

    test = None
    if test_dir and (unlabelled := len(test_names) - len(test_labels)):
        skipped.append(f"{test_dir.name}: {unlabelled} images without a label")
    if test_labels:
        test, more = load(sorted(test_labels), test_labels)
        skipped += more
    return Dataset(path.resolve().name, classes, train, test, skipped=skipped)


class Layout(NamedTuple):
    """Where the parts of a folder are."""

    path: Path
    home: Path  # the parent of the class folders
    test: Path | None
    others: list[Path]  # folders without training images

    @property
    def prefix(self) -> str:
        """The prefix of the names of images in `home`."""
        return "" if self.home == self.path else f"{self.home.name}/"


def _layout(path: Path) -> Layout:
    """Class folders beside `test`; or in `train`, if all folders are named like parts."""
    parts = {folder.name.lower(): folder for folder in _subfolders(path)}
    if "train" not in parts or not set(parts) <= {"train", *TEST_NAMES, *UNLABELLED_NAMES}:
        test = parts.get("test")
        return Layout(path, path, test, [test] if test else [])
    others = [parts[name] for name in TEST_NAMES if name in parts]
    labelled = [part for part in others if _subfolders(part) or _labels_csv(part)]
    test = next(iter(labelled or others), None)
    if unused := [part.name for part in labelled if part != test]:
        warnings.warn(f"{path / unused[0]} is not used: the test part is {test}", stacklevel=2)
    return Layout(path, parts["train"], test, others)


def _test_part(path: Path, test_dir: Path, classes: list[str]) -> tuple[list[str], dict[str, str]]:
    """Names of the images of the test part, relative to `path`, and their labels."""
    names = _names(test_dir, without=[path])
    labels_file = _labels_csv(test_dir)
    labels = _labels_from(labels_file, test_dir, names) if labels_file else _labels_by_folder(names)
    if unknown := sorted(set(labels.values()) - set(classes), key=_natural):
        raise UserError(
            f"{test_dir} has the class '{unknown[0]}', of which {path} has no labelled image: "
            "label some or remove it"
        )
    missing = sorted(set(classes) - set(labels.values()), key=_natural)
    if labels and missing:
        these = shortened([f"'{name}'" for name in missing], 1)
        warnings.warn(
            f"{test_dir} has no image of class {these}: accuracy is over the rest",
            stacklevel=3,
        )
    prefix = test_dir.name
    return [f"{prefix}/{n}" for n in names], {f"{prefix}/{n}": c for n, c in labels.items()}


def find_images(paths: Iterable[Path]) -> list[Path]:
    """The given files and every image below the given folders: sorted, each path once."""
    found: set[Path] = set()
    paths = list(paths)
    check_images(paths)
    for path in paths:
        if path.is_dir():
            found.update(_below(path))
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


def _conflicts(path: Path, labels: dict[str, str]) -> dict[str, str]:
    """Identical files with different labels, and for each the file that it equals.

    Up to one in a thousand labelled files is left out, because large collections have such pairs.
    More are an error. Only files of the same size are read.
    """
    by_size: dict[int, list[str]] = defaultdict(list)
    for name in sorted(labels):
        with suppress(OSError):  # unreadable files are reported when they are decoded
            by_size[(path / name).stat().st_size].append(name)
    conflicts: dict[str, str] = {}
    for size, names in by_size.items():
        if size == 0 or len({labels[name] for name in names}) == 1:
            continue
        first: dict[str, str] = {}
        for name in names:
            with suppress(OSError), (path / name).open("rb") as file:
                other = first.setdefault(hashlib.file_digest(file, "sha256").hexdigest(), name)
                if labels[other] != labels[name]:
                    conflicts[name] = f"the same image as {other} of class '{labels[other]}'"
                    conflicts[other] = f"the same image as {name} of class '{labels[name]}'"
    if len(conflicts) * 1000 > len(labels):
        name, why = min(conflicts.items())
        more = f" (and {len(conflicts) - 2} more such files)" if len(conflicts) > 2 else ""
        raise UserError(f"{path / name} is {why}{more}: remove one of the two")
    return conflicts


# ------------------------------------------------------------------------------ finding files


def _below(top: Path, without: Collection[Path] = ()) -> list[Path]:
    """Every image below `top`, following links.

    A folder is entered once, even if several links lead to it, so loops end. Links are followed
    last, so that a folder is entered under its own name.
    """
    found, seen = [], {_identity(folder) for folder in without}
    folders, links = [top], list[Path]()
    while folders or links:
        here = (folders or links).pop()
        try:
            if (identity := _identity(here)) in seen:
                continue
            seen.add(identity)
            for entry in os.scandir(here):
                if _ignored(entry.name):
                    continue
                if entry.is_symlink() and os.path.isdir(entry.path):
                    links.append(Path(entry.path))
                elif entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
                elif os.path.splitext(entry.name)[1].lower() in EXTENSIONS:
                    found.append(Path(entry.path))
        except OSError as error:
            raise UserError(
                f"{here} cannot be read ({error.strerror}): allow it or move it away"
            ) from error
    return found


def _names(top: Path, without: Collection[Path]) -> list[str]:
    return sorted(path.relative_to(top).as_posix() for path in _below(top, without))


def _subfolders(path: Path) -> list[Path]:
    return sorted(entry for entry in path.iterdir() if entry.is_dir() and not _ignored(entry.name))


def _ignored(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


# ------------------------------------------------------------------------------------ labels


def read_labels(csv_path: Path) -> dict[str, str]:
    """The labels in a csv file of path,label; rows with an empty label are ignored.

    A header, spaces, a byte-order mark, and `;` or tabs as separators are accepted, because
    spreadsheets write them.
    """
    labels: dict[str, str] = {}
    for path, label in _rows(csv_path):
        if label.lower() in UNLABELLED_NAMES:
            raise UserError(f"{csv_path} labels {path} '{label}': leave the label empty instead")
        if label and labels.setdefault(path, label) != label:
            raise _two_labels(csv_path, path, labels[path], label)
    if not labels:
        raise UserError(f"{csv_path} has no labels: write a row path,label for some images")
    return labels


def read_list(path: Path) -> list[str]:
    """The lines of a plain list, one image a line; none if the file is a csv file."""
    lines = [line.strip() for line in _text(path).splitlines()]
    lines = list(dict.fromkeys(line for line in lines if line))
    return [] if any(separator in line for line in lines for separator in ",;\t") else lines


def _text(path: Path) -> str:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}): give a csv file") from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = raw.decode("latin-1")
    if "\0" in text:  # UTF-16, or not text
        raise UserError(f"{path} is not plain text: save it as CSV in UTF-8")
    return text


def _rows(csv_path: Path) -> list[list[str]]:
    """The rows without a header, split at the separator that gives the most pairs."""
    text = _text(csv_path)

    def split(separator: str) -> list[list[str]]:
        lines = io.StringIO(text, newline=None)
        cells = csv.reader(lines, delimiter=separator, skipinitialspace=True)
        rows = [[cell.strip() for cell in row] for row in cells]
        return [row for row in rows if any(row)]

    try:
        rows = max(map(split, ",;\t"), key=lambda rows: sum(len(row) == 2 for row in rows))
    except csv.Error as error:
        raise UserError(f"{csv_path} is no csv file ({error}): save it as CSV in UTF-8") from error
    for row in rows:
        if len(row) != 2 or not row[0]:
            raise UserError(
                f"{csv_path} must have two columns, path and label: mend the row {','.join(row)!r}"
            )
    if rows and any(cell.lower() in heads for cell, heads in zip(rows[0], HEADERS, strict=True)):
        return rows[1:]
    return rows


def _labels_csv(path: Path) -> Path | None:
    return path / LABELS_CSV if (path / LABELS_CSV).is_file() else None


def _labels_of(layout: Layout, names: list[str], labels_file: Path | None) -> dict[str, str]:
    """The labels of the training images: from a csv file, a list, or their folders."""
    by_folder = _labels_by_folder(names, layout.prefix)
    if labels_file is None:
        _check_class_folders(layout.home, set(by_folder.values()))
        return by_folder
    if listed := read_list(labels_file):
        return _labels_listed(labels_file, listed, names, by_folder)
    return _labels_from(labels_file, layout.path, names, layout.prefix)


def _labels_by_folder(names: list[str], prefix: str = "") -> dict[str, str]:
    """The label of an image below a sub-folder is the folder's name."""
    inner = {name: name.removeprefix(prefix) for name in names if name.startswith(prefix)}
    top = {name: below.split("/")[0] for name, below in inner.items() if "/" in below}
    return {name: label for name, label in top.items() if label.lower() not in UNLABELLED_NAMES}


def _labels_listed(
    path: Path, listed: list[str], names: list[str], by_folder: dict[str, str]
) -> dict[str, str]:
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
    return labels


def _labels_from(csv_path: Path, path: Path, names: list[str], prefix: str = "") -> dict[str, str]:
    """The labels of a csv file by the images' names, in any spelling."""
    find = _finder(path, names, prefix)
    labels: dict[str, str] = {}
    unknown = []
    for written, label in read_labels(csv_path).items():
        name = find(written)
        if name is None:
            unknown.append(written)
        elif labels.setdefault(name, label) != label:
            raise _two_labels(csv_path, name, labels[name], label)
    if unknown:
        near = difflib.get_close_matches(unknown[0], names, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        few = ", ".join(unknown[:3]) + (", ..." if len(unknown) > 3 else "")
        raise UserError(
            f"{csv_path} labels {len(unknown)} of {len(labels) + len(unknown)} files which "
            f"are no images of {path}: {few}{hint}; mend the paths or remove the rows"
        )
    return labels


def _finder(path: Path, names: list[str], prefix: str) -> Callable[[str], str | None]:
    """A function from a path as written in a file to the name of the image.

    It accepts either slash, `./`, accents in one or two characters, paths with or without the
    prefix, absolute paths and links.
    """

    def plain(text: str) -> str:
        return unicodedata.normalize("NFC", posixpath.normpath(text.replace("\\", "/")))

    by_name = {plain(name.removeprefix(prefix)): name for name in names}
    by_name |= {plain(name): name for name in names}
    by_file: dict[str, str] = {}

    def find(written: str) -> str | None:
        if name := by_name.get(plain(written)):
            return name
        if not by_file:
            by_file.update((os.path.realpath(path / name), name) for name in names)
        return by_file.get(os.path.realpath(path / written.replace("\\", "/")))

    return find


def _two_labels(csv_path: Path, path: str, one: str, other: str) -> UserError:
    return UserError(f"{csv_path} gives {path} two labels, '{one}' and '{other}': keep one")


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
    for sub in _subfolders(path):
        if sub.name not in classes and sub.name.lower() not in ("test", *UNLABELLED_NAMES):
            raise UserError(f"class '{sub.name}' has no image: put some in {sub} or remove it")


def _natural(name: str) -> tuple[list[str | int], str]:
    """A sorting key that puts 9 before 10; the name itself distinguishes 1 from 01."""
    return [int(s) if s.isdecimal() else s for s in re.split(r"(\d+)", name)], name
