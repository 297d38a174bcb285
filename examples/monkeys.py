"""Prepare the photographs of the tutorial: ten species of monkey, a folder for each.

git clone --depth 1 https://github.com/nikhildutta333/Monkey-Species-Classification download
python examples/monkeys.py download monkeys

The data set "10 Monkey Species" is published under CC0.
"""

import shutil
import sys
from pathlib import Path

SPECIES = (  # in the order of the folders n0 to n9
    "mantled howler",
    "patas monkey",
    "bald uakari",
    "Japanese macaque",
    "pygmy marmoset",
    "white-headed capuchin",
    "silvery marmoset",
    "squirrel monkey",
    "night monkey",
    "Nilgiri langur",
)


def main(download: Path, folder: Path) -> None:
    for number, name in enumerate(SPECIES):
        for theirs, ours in (("training", "train"), ("validation", "test")):
            source = download / theirs / f"n{number}"
            shutil.copytree(source, folder / ours / name, dirs_exist_ok=True)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
