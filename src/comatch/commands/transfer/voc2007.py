"""PASCAL VOC 2007: 9,963 photographs, in each of which any of twenty kinds of thing may be."""

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
LISTS = Path("ImageSets/Main")  # a file for each kind and part: an image and 1, -1 or 0 a line
INSIDE = "VOCdevkit/VOC2007"


class Voc(NamedTuple):
    """The targets are 1 where the kind is seen, -1 where it is not, 0 where it is hard to say."""

    classes: list[str]  # [C]
    train: Files
    train_y: Tensor  # [N, C]
    test: Files
    test_y: Tensor  # [M, C]


def voc2007(data_dir: Path, progress: bool = True) -> Voc:
    """Found in `data_dir` as it is unpacked, or downloaded to there."""
    homes = {part: obtain(part, data_dir, progress) for part in ARCHIVES}
    classes = sorted(kinds(homes["trainval"], "trainval"))
    train, train_y = read(homes["trainval"], "trainval", classes)
    test, test_y = read(homes["test"], "test", classes)
    return Voc(classes, train, train_y, test, test_y)


def obtain(part: str, data_dir: Path, progress: bool) -> Path:
    """Both archives unpack to the same folder, so each gets one of its own to do so."""
    own = data_dir / f"voc2007-{part}"
    for home in (data_dir, data_dir / "VOC2007", data_dir / INSIDE, own / INSIDE):
        if kinds(home, part):
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


def kinds(home: Path, part: str) -> list[str]:
    return [path.stem.removesuffix(f"_{part}") for path in (home / LISTS).glob(f"*_{part}.txt")]


def read(home: Path, part: str, classes: list[str]) -> tuple[Files, Tensor]:
    columns = [targets(home / LISTS / f"{kind}_{part}.txt") for kind in classes]
    names = sorted(columns[0]) if columns else []
    for kind, column in zip(classes, columns, strict=True):
        if sorted(column) != names:
            raise damaged(home / LISTS / f"{kind}_{part}.txt", "it lists other images")
    if not names:
        raise damaged(home / LISTS, f"no image is in its lists of {part}")
    rows = [[column[name] for column in columns] for name in names]
    labels = torch.full((len(names),), UNLABELLED)
    files = Files(home, labels, [f"JPEGImages/{name}.jpg" for name in names])
    return files, torch.tensor(rows, dtype=torch.int8)


def targets(path: Path) -> dict[str, int]:
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
