"""Finding image files in a folder. This module does not import PyTorch: that takes seconds."""

import os
import posixpath
import unicodedata
import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

from comatch.data.labels_file import UNLABELLED_NAMES
from comatch.errors import UserError

EXTENSIONS = frozenset([".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"])
FORMATS_TEXT = "JPEG, PNG, WebP, BMP, GIF or TIFF"
TEST_NAMES = ("test", "val", "valid", "validation")  # the first that has labels is the test part
LABELS_CSV = "labels.csv"


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


def layout_of(path: Path) -> Layout:
    """Class folders beside `test`; or in `train`, if all folders are named like parts."""
    parts = {folder.name.lower(): folder for folder in subfolders(path)}
    if "train" not in parts or not set(parts) <= {"train", *TEST_NAMES, *UNLABELLED_NAMES}:
        test = parts.get("test")
        return Layout(path, path, test, [test] if test else [])
    others = [parts[name] for name in TEST_NAMES if name in parts]
    labelled = [part for part in others if subfolders(part) or labels_csv(part)]
    test = next(iter(labelled or others), None)
    if unused := [part.name for part in labelled if part != test]:
        warnings.warn(f"{path / unused[0]} is not used: the test part is {test}", stacklevel=2)
    return Layout(path, parts["train"], test, others)


def labels_csv(path: Path) -> Path | None:
    return path / LABELS_CSV if (path / LABELS_CSV).is_file() else None


def below(top: Path, without: Collection[Path] = (), inside: bool = False) -> list[Path]:
    """Every image below `top`, following links; with `inside`, not those that lead out of it.

    A folder is entered once, even if several links lead to it, so loops end. Links are followed
    last, so that a folder is entered under its own name.
    """
    home = os.path.realpath(top)
    found, seen = [], {identity(folder) for folder in without}
    folders, links = [top], list[Path]()
    while folders or links:
        here = (folders or links).pop()
        try:
            if (known := identity(here)) in seen:
                continue
            seen.add(known)
            for entry in os.scandir(here):
                if ignored(entry.name):
                    continue
                if inside and entry.is_symlink() and not is_inside(entry.path, home):
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


def is_inside(path: str, home: str) -> bool:
    """Whether a path leads to something below `home`, which has no links, itself."""
    return os.path.realpath(path).startswith(os.path.join(home, ""))


def image_names(top: Path, without: Collection[Path], inside: bool = False) -> list[str]:
    return sorted(path.relative_to(top).as_posix() for path in below(top, without, inside))


def subfolders(path: Path) -> list[Path]:
    return sorted(entry for entry in path.iterdir() if entry.is_dir() and not ignored(entry.name))


def ignored(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def finder(path: Path, names: list[str], prefix: str) -> Callable[[str], str | None]:
    """A function from a path as written in a file to the name of the image.

    It accepts either slash, `./`, accents in one or two characters, paths with or without the
    prefix, absolute paths and links.
    """

    def plain(text: str) -> str:
        return unicodedata.normalize("NFC", posixpath.normpath(text.replace("\\", "/")))

    by_name = {plain(name.removeprefix(prefix)): name for name in names}
    by_name |= {plain(name): name for name in names}
    by_name |= {name: name for name in names}  # a name as it is comes before its other spellings
    by_file: dict[str, str] = {}

    def find(written: str) -> str | None:
        if name := by_name.get(written) or by_name.get(plain(written)):
            return name
        if not by_file:
            by_file.update((os.path.realpath(path / name), name) for name in names)
        return by_file.get(os.path.realpath(path / written.replace("\\", "/")))

    return find
