"""PASCAL VOC 2007: 9,963 photographs, each of which shows any of twenty classes of objects."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from comatch.data.downloads import fetch, unpack
from comatch.errors import UserError
from comatch.types import UNLABELLED, Files

HOST = "https://thor.robots.ox.ac.uk/pascal/VOC/voc2007"
ARCHIVES = {  # part -> file and md5
    "trainval": ("VOCtrainval_06-Nov-2007.tar", "c52e279531787c972589f7e41ab4ae64"),
    "test": ("VOCtest_06-Nov-2007.tar", "b6e924de25625d8de591ea690078ad9f"),
}
LISTS = Path("ImageSets/Main")  # a file for each class and part; a line is an image and 1, -1 or 0
INSIDE = "VOCdevkit/VOC2007"


class Voc(NamedTuple):
    """A target is 1 if the class is visible, -1 if it is not, 0 if it is hard to say."""

    classes: list[str]  # [C]
    train: Files
    train_y: Tensor  # [N, C]
    test: Files
    test_y: Tensor  # [M, C]


def voc2007(data_dir: Path, progress: bool = True) -> Voc:
    """Read from `data_dir`, and downloaded to it if it is not there."""
    homes = {part: locate(part, data_dir, progress) for part in ARCHIVES}
    classes = sorted(class_names(homes["trainval"], "trainval"))
    train, train_y = read_part(homes["trainval"], "trainval", classes)
    test, test_y = read_part(homes["test"], "test", classes)
    return Voc(classes, train, train_y, test, test_y)


def locate(part: str, data_dir: Path, progress: bool) -> Path:
    """The folder of a part, which is downloaded and unpacked first if it is missing.

    Both archives contain the same folder, so each is unpacked into one of its own.
    """
    own = data_dir / f"voc2007-{part}"
    for home in (data_dir, data_dir / "VOC2007", data_dir / INSIDE, own / INSIDE):
        if class_names(home, part):
            return home
    name, md5 = ARCHIVES[part]
    packed = data_dir / name
    downloaded = not packed.is_file()
    if downloaded:
        fetch(f"{HOST}/{name}", packed, md5, progress)
    own.mkdir(exist_ok=True)
    unpack(packed, own)
    if downloaded:
        packed.unlink(missing_ok=True)
    return own / INSIDE


def class_names(home: Path, part: str) -> list[str]:
    return [path.stem.removesuffix(f"_{part}") for path in (home / LISTS).glob(f"*_{part}.txt")]


def read_part(home: Path, part: str, classes: list[str]) -> tuple[Files, Tensor]:
    columns = [read_targets(home / LISTS / f"{name}_{part}.txt") for name in classes]
    names = sorted(columns[0]) if columns else []
    for class_name, column in zip(classes, columns, strict=True):
        if sorted(column) != names:
            raise damaged(home / LISTS / f"{class_name}_{part}.txt", "it lists other images")
    if not names:
        raise damaged(home / LISTS, f"its lists of {part} are empty")
    rows = [[column[name] for column in columns] for name in names]
    labels = torch.full((len(names),), UNLABELLED)
    files = Files(home, labels, [f"JPEGImages/{name}.jpg" for name in names])
    return files, torch.tensor(rows, dtype=torch.int8)


def read_targets(path: Path) -> dict[str, int]:
    try:
        rows = [line.split() for line in path.read_text().splitlines() if line.strip()]
        found = {name: int(target) for name, target in rows}
    except (OSError, ValueError) as error:
        raise damaged(path, error) from error
    if not set(found.values()) <= {-1, 0, 1}:
        raise damaged(path, "a target is neither 1 nor -1 nor 0")
    return found


def damaged(path: Path, why: object) -> UserError:
    return UserError(f"{path} is missing or damaged ({why}): put VOC 2007 there as published")
