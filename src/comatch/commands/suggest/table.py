"""The pictures of a folder that can be labelled, and the table of their labels.

This module does not import PyTorch.
"""

import csv
import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from comatch.data.image_files import (
    FORMATS_TEXT,
    LABELS_CSV,
    finder,
    image_names,
    labels_csv,
    layout_of,
)
from comatch.data.labels_file import UNLABELLED_NAMES, Columns, Table, read_table
from comatch.errors import UNPRINTABLE, UserError
from comatch.files import atomic_writer

HEAD, STATUS = ["path", "label"], "status"
SKIPPED, NONE = "skipped", "none of these"  # statuses of pictures without a label


class Mark(NamedTuple):
    """What a person said about a picture: a label, or a status without one."""

    label: str = ""
    status: str = ""


EMPTY = Mark()


class Pictures(NamedTuple):
    """The pictures of a folder, without those of its test part."""

    root: Path
    names: list[str]  # paths below the folder
    labels_file: Path  # that training reads
    left_out: int  # files with names that a CSV file cannot hold


def storable(name: str) -> bool:
    """Whether a CSV file can hold this name of a file and give it back."""
    return not UNPRINTABLE.search(name) and name == name.strip()


def find_pictures(root: Path, inside: bool = False) -> Pictures:
    """With `inside`, links that lead out of the folder are not followed."""
    if not root.is_dir():
        what = "is a file" if root.exists() else "does not exist"
        raise UserError(f"{root} {what}: give a folder of images")
    layout = layout_of(root)
    names = image_names(root, layout.others, inside)
    usable = [name for name in names if storable(name)]
    if not usable:
        raise UserError(f"{root} has no images: put some in it ({FORMATS_TEXT})")
    table = labels_csv(root) or labels_csv(layout.home) or root / LABELS_CSV
    return Pictures(root, usable, table, len(names) - len(usable))


def known_marks(pictures: Pictures, path: Path) -> dict[str, Mark]:
    """What a file says about the pictures; nothing if there is no file."""
    if not path.exists():
        return {}
    table = read_table(path)
    find = finder(pictures.root, pictures.names, "")
    rows: dict[str, list[list[str]]] = defaultdict(list)
    for row in table.rows:
        if name := find(row[table.columns.path]):
            rows[name].append(row)
    marks = {name: mark_of(several, table) for name, several in rows.items()}
    return {name: mark for name, mark in marks.items() if mark != EMPTY}


def status_column(table: Table) -> int | None:
    return table.head.index(STATUS) if STATUS in table.head else None


def mark_of(rows: Sequence[Sequence[str]], table: Table) -> Mark:
    """What the rows of a picture say; nothing if they say two things."""
    label, status = table.columns.label, status_column(table)
    found = {
        Mark(
            "" if row[label].lower() in UNLABELLED_NAMES else row[label],
            row[status] if status is not None and len(row) > status else "",
        )
        for row in rows
    }
    one = found.pop() if len(found) == 1 else EMPTY
    if one.label:
        return Mark(one.label)
    return one if one.status in (SKIPPED, NONE) else EMPTY


def check_free(table: Path, sheet: str | Path | None, folder: Path, overwrite: bool) -> None:
    """Raise an error if a file exists, or if the sheet would be a picture of the folder."""
    if table.exists() and not overwrite:
        raise UserError(
            f"{table} exists: name another file with --out, or add --overwrite, which keeps the "
            "labels in it"
        )
    if sheet is None:
        return
    if Path(sheet).absolute().parent.resolve().is_relative_to(folder.resolve()):
        raise UserError(f"{sheet} would be one of the pictures: name a file outside {folder}")
    if Path(sheet).exists() and not overwrite:
        raise UserError(f"{sheet} exists: name another file with --sheet, or add --overwrite")


def write_table(path: Path, labels: Mapping[str, str], suggested: Sequence[str]) -> Path:
    """Rows of path,label: those that the file has already, other labels, and the suggestions.

    Rows without a label are from earlier suggestions, and go.
    """
    table = read_table(path) if path.exists() else Table([], [], Columns(0, 1, 2), ",")
    columns, head = table.columns, table.head or HEAD
    kept = [row for row in table.rows if any(row[i] for i in range(len(row)) if i != columns.path)]
    there = {row[columns.path] for row in kept}
    text = io.StringIO()
    rows = csv.writer(text, delimiter=table.separator, lineterminator="\n")
    rows.writerows([head, *kept])
    added = {name: label for name, label in sorted(labels.items()) if name not in there}
    for name, label in (added | dict.fromkeys(suggested, "")).items():
        row = [""] * columns.width
        row[columns.path], row[columns.label] = name, label
        rows.writerow(row)
    try:
        with atomic_writer(path) as file:
            file.write(text.getvalue().encode())
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
    return path
