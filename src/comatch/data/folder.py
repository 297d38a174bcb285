"""A folder of pictures, as people have them, becomes a data set.

Labels come from a `labels.csv` (rows of path,label) or from sub-folders named after the classes;
whatever has no label is unlabelled. A sub-folder `test` of the same form is the test part.
Nothing is ever written into the folder.
"""

import csv
import difflib
import hashlib
import io
import os
import posixpath
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing.pool import ThreadPool
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from rich.console import Console
from rich.progress import track

from comatch.errors import UserError
from comatch.types import UNLABELLED, Dataset, Pictures

EXTENSIONS = frozenset([".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"])
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")  # others have no business behind these
FORMATS_TEXT = "JPEG, PNG, WebP, BMP, GIF or TIFF"
UNLABELLED_NAMES = ("unlabeled", "unlabelled")
LABELS_CSV = "labels.csv"
HEADERS = ("path", "file", "filename", "image", "name", "index"), ("label", "class")


def folder(
    path: Path, image_size: int | None, labels_file: Path | None = None, progress: bool = True
) -> Dataset:
    """The pictures below `path`, squared to `image_size`, with the labels that they have.

    With a `labels_file` its rows are the only labels, also where there are class sub-folders.
    """
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise UserError(f"{path} {what}: give a folder of pictures")
    if image_size is None:
        raise UserError(f"the pictures in {path} have no size of their own: give an image size")

    test_dir = next((d for d in _subfolders(path) if d.name.lower() == "test"), None)
    names = _names(path, without=test_dir)
    if not names:
        raise UserError(f"{path} has no pictures: put some in it ({FORMATS_TEXT})")
    labels_file = labels_file or _labels_csv(path)
    labels = _labels_from(labels_file, path, names) if labels_file else _labels_by_folder(names)
    if not labels_file:
        _check_class_folders(path, set(labels.values()))
    classes = sorted(set(labels.values()), key=_natural)
    if len(classes) == 1:
        raise UserError(
            f"all labels in {labels_file or path} are '{classes[0]}': give two classes or more"
        )
    twins = _twins(path, labels)
    names = [name for name in names if name not in twins]
    # All that can be wrong with files and labels is told before the long work of decoding.
    test_names, test_labels = _test_part(path, test_dir, classes) if test_dir else ([], {})
    train, skipped = _load(path, names, labels, classes, image_size, progress)
    skipped += [f"{name}: {why}" for name, why in twins.items()]
    for number, name in enumerate(classes):
        if not (train.labels == number).any():
            example = min(n for n, label in labels.items() if label == name)
            raise UserError(
                f"no labelled picture of class '{name}' in {path} can be used, {example} for one: "
                "mend it or remove the class"
            )

    test = None
    if test_dir and (unlabelled := len(test_names) - len(test_labels)):
        skipped.append(f"{test_dir.name}: {unlabelled} pictures without a label")
    if test_labels:
        rows = sorted(test_labels)
        test, more = _load(path, rows, test_labels, classes, image_size, progress)
        skipped += more
    return Dataset(path.resolve().name, classes, train, test, skipped=skipped)


def _test_part(path: Path, test_dir: Path, classes: list[str]) -> tuple[list[str], dict[str, str]]:
    """Names and labels of the test part, both below `path`."""
    names = _names(test_dir, without=path)
    labels_file = _labels_csv(test_dir)
    labels = _labels_from(labels_file, test_dir, names) if labels_file else _labels_by_folder(names)
    for name in _twins(test_dir, labels):
        del labels[name]
    if strangers := sorted(set(labels.values()) - set(classes), key=_natural):
        raise UserError(
            f"{test_dir} has the class '{strangers[0]}', of which {path} has no labelled picture: "
            "label some or remove it"
        )
    prefix = test_dir.name
    return [f"{prefix}/{n}" for n in names], {f"{prefix}/{n}": c for n, c in labels.items()}


def find_pictures(paths: Iterable[Path]) -> list[Path]:
    """Files as they are given, and every picture below folders: sorted, each path once."""
    found: set[Path] = set()
    paths = list(paths)
    for path in paths:
        if path.is_dir():
            found.update(_below(path))
        elif path.exists():
            found.add(path)
        else:
            raise UserError(f"{path} does not exist: give pictures or folders of pictures")
    if not found:
        raise UserError(f"no pictures ({FORMATS_TEXT}) in {', '.join(map(str, paths))}")
    return sorted(found)


# ------------------------------------------------------------------------------ one picture


class PictureError(Exception):
    """A file that gives no picture; the text says why in a few words."""


def read_picture(path: Path, size: int) -> np.ndarray:  # [3, size, size] uint8
    """Decode and square one picture, or raise `PictureError`."""
    try:
        if path.exists() and not path.is_file():  # opening a pipe would wait for ever
            raise PictureError("not a file")
        with Image.open(path, formats=FORMATS) as image:
            image.draft(None, (2 * size, 2 * size))  # a big JPEG is decoded at a fraction
            return square(image, size)
    except Exception as error:  # decoders raise whatever a damaged file leads them to
        raise PictureError(_why(error, path)) from error


def _why(error: Exception, path: Path) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not a picture" if path.stat().st_size else "an empty file"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return " ".join(str(error).split()) or type(error).__name__


def square(image: Image.Image, size: int) -> np.ndarray:  # [3, size, size] uint8
    """Upright, RGB, the shorter side scaled to `size`, the middle of the longer one."""
    image = ImageOps.exif_transpose(image)
    image = ImageOps.fit(_rgb(image), (size, size), Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.array(image).transpose(2, 0, 1))


def _rgb(image: Image.Image) -> Image.Image:
    """Pillow clips deep greys and shows what lies under transparency; we scale and see white."""
    if image.mode.startswith(("I", "F")):
        return _eight_bits(image).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def _eight_bits(image: Image.Image) -> Image.Image:
    """A grey picture of 16 bits, 32 bits or floats, in 8 bits.

    White is the first usual full scale that holds all values, so that pictures of one kind stay
    comparable; where none does, the picture's own range is stretched.
    """
    values = np.nan_to_num(np.asarray(image, dtype=np.float64))  # [H, W]
    low, high = values.min(), values.max()
    scales = (1, 255, 65535) if image.mode == "F" else (65535,)
    full = next((scale for scale in scales if low >= 0 and high <= scale), None)
    if full is None:
        values, full = values - low, (high - low) or 1
    return Image.fromarray(np.round(values * (255 / full)).astype(np.uint8))


# ------------------------------------------------------------------------------ many pictures


def _load(
    path: Path,
    names: Sequence[str],
    labels: dict[str, str],
    classes: list[str],
    size: int,
    progress: bool,
) -> tuple[Pictures, list[str]]:
    """Decode in threads, straight into one array; also say which pictures were left out and why."""
    images = np.empty((len(names), 3, size, size), dtype=np.uint8)

    def decode(row: int) -> str:
        try:
            images[row] = read_picture(path / names[row], size)
        except PictureError as error:
            return f"{names[row]}: {error}"
        return ""

    # Pillow decodes and resizes without the lock; each thread may hold one big picture.
    with ThreadPool(min(32, os.cpu_count() or 1)) as pool:
        faults = list(
            track(
                pool.imap(decode, range(len(names)), chunksize=16),
                f"Reading {path.name}",
                total=len(names),
                console=Console(stderr=True),
                transient=True,
                disable=not progress or len(names) < 1000,
            )
        )
    kept = [row for row, fault in enumerate(faults) if not fault]
    skipped = [fault for fault in faults if fault]
    if not kept:
        raise UserError(f"none of the {len(names)} pictures in {path} can be read ({skipped[0]})")
    if skipped:
        for target, row in enumerate(kept):  # close the gaps in place: there may be no room for two
            images[target] = images[row]
    numbers = {name: number for number, name in enumerate(classes)}
    return Pictures(
        torch.from_numpy(images[: len(kept)]),
        torch.tensor([numbers.get(labels.get(names[row], ""), UNLABELLED) for row in kept]),
        [names[row] for row in kept],
    ), skipped


def _twins(path: Path, labels: dict[str, str]) -> dict[str, str]:
    """Files that are byte for byte the same under two labels, and what each is the same as.

    Among few labels that is a slip of the hand which must be mended. Large collections have such
    pairs too, and there one in a thousand is left out. Only files of one length are read.
    """
    by_size: dict[int, list[str]] = defaultdict(list)
    for name in sorted(labels):
        with suppress(OSError):  # what cannot be read is told when it is decoded
            by_size[(path / name).stat().st_size].append(name)
    twins: dict[str, str] = {}
    for size, names in by_size.items():
        if size == 0 or len({labels[name] for name in names}) == 1:
            continue
        first: dict[str, str] = {}
        for name in names:
            with suppress(OSError), (path / name).open("rb") as file:
                twin = first.setdefault(hashlib.file_digest(file, "sha256").hexdigest(), name)
                if labels[twin] != labels[name]:
                    twins[name] = f"the same picture as {twin} of class '{labels[twin]}'"
                    twins[twin] = f"the same picture as {name} of class '{labels[name]}'"
    if len(twins) * 1000 > len(labels):
        name, why = min(twins.items())
        more = f" (and {len(twins) - 2} more such files)" if len(twins) > 2 else ""
        raise UserError(f"{path / name} is {why}{more}: remove one of the two")
    return twins


# ----------------------------------------------------------------------- which files there are


def _below(top: Path, without: Path | None = None) -> list[Path]:
    """Every picture below `top`, links followed.

    A folder is entered once, however many links lead to it, so loops end; and links come last, so
    that it is entered by its own name.
    """
    found, seen = [], {_identity(without)} if without else set()
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


def _names(top: Path, without: Path | None) -> list[str]:
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
    """The labels in a csv file of path,label; a row with an empty label is as good as none.

    A header, spaces, a byte-order mark, `;` or tabs are welcome: spreadsheets make them.
    """
    labels: dict[str, str] = {}
    for path, label in _rows(csv_path):
        if label.lower() in UNLABELLED_NAMES:
            raise UserError(f"{csv_path} labels {path} '{label}': leave the label empty instead")
        if label and labels.setdefault(path, label) != label:
            raise _two_labels(csv_path, path, labels[path], label)
    if not labels:
        raise UserError(f"{csv_path} has no labels: write a row path,label for some pictures")
    return labels


def _rows(csv_path: Path) -> list[list[str]]:
    """The rows without their header, split at whichever separator makes most of them pairs."""
    try:
        raw = csv_path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {csv_path} ({error.strerror}): give a csv file") from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = raw.decode("latin-1")
    if "\0" in text:  # UTF-16, or no text at all
        raise UserError(f"{csv_path} is not plain text: save it as CSV in UTF-8")

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


def _labels_by_folder(names: list[str]) -> dict[str, str]:
    """Each picture below a sub-folder has its name for a label."""
    top = {name: name.split("/")[0] for name in names if "/" in name}
    return {name: label for name, label in top.items() if label.lower() not in UNLABELLED_NAMES}


def _labels_from(csv_path: Path, path: Path, names: list[str]) -> dict[str, str]:
    """The labels of a csv file by the pictures' names, however the file spells them."""
    find = _finder(path, names)
    labels: dict[str, str] = {}
    strangers = []
    for written, label in read_labels(csv_path).items():
        name = find(written)
        if name is None:
            strangers.append(written)
        elif labels.setdefault(name, label) != label:
            raise _two_labels(csv_path, name, labels[name], label)
    if strangers:
        near = difflib.get_close_matches(strangers[0], names, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        few = ", ".join(strangers[:3]) + (", ..." if len(strangers) > 3 else "")
        raise UserError(
            f"{csv_path} labels {len(strangers)} of {len(labels) + len(strangers)} files which "
            f"are no pictures of {path}: {few}{hint}; mend the paths or remove the rows"
        )
    return labels


def _finder(path: Path, names: list[str]) -> Callable[[str], str | None]:
    """From a path as somebody wrote it to the name of the picture.

    Either slash, `./`, accents in one letter or two, and, by asking the file system, absolute
    paths and links.
    """

    def plain(text: str) -> str:
        return unicodedata.normalize("NFC", posixpath.normpath(text.replace("\\", "/")))

    by_name = {plain(name): name for name in names}
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
    """Without a csv file the sub-folders are the classes: there are some, and none is empty."""
    if not classes:
        raise UserError(
            f"{path} has no labels: put a {LABELS_CSV} in it with rows of path,label, "
            "or sort some pictures into sub-folders named after the classes"
        )
    if classes <= {"train", "val", "valid", "validation"}:
        raise UserError(
            f"the sub-folders of {path} ({', '.join(sorted(classes))}) are parts, not classes: "
            "give the folder that holds the class folders, with the test part in it as `test`"
        )
    for sub in _subfolders(path):
        if sub.name not in classes and sub.name.lower() not in ("test", *UNLABELLED_NAMES):
            raise UserError(f"class '{sub.name}' has no picture: put some in {sub} or remove it")


def _natural(name: str) -> tuple[list[str | int], str]:
    """A sorting key under which 9 comes before 10; the name itself tells 1 from 01."""
    return [int(s) if s.isdecimal() else s for s in re.split(r"(\d+)", name)], name
