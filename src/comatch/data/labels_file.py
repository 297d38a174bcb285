"""Labels in a file: a CSV table with a path and a label in each row, or a plain list of images."""

import csv
import io
from pathlib import Path
from typing import NamedTuple

from comatch.errors import UserError

UNLABELLED_NAMES = ("unlabeled", "unlabelled")
# Names of columns without `_` and spaces. The first that a header has is used.
PATH_HEADS = ("path", "file", "filename", "image", "name", "index")
LABEL_HEADS = ("label", "class")
LARGEST = 2**28  # bytes; the table is read as a whole


class Columns(NamedTuple):
    """Where a table has its paths and labels."""

    path: int
    label: int
    width: int  # the number of columns


class Table(NamedTuple):
    """A CSV file as it is: other columns are kept, so that the file can be written again."""

    head: list[str]  # empty if the file has none
    rows: list[list[str]]
    columns: Columns
    separator: str


def read_labels(csv_path: Path) -> list[tuple[str, str]]:
    """The pairs of path and label in a CSV file, each once; empty labels are left out.

    A header may name the columns, in any order and among others; without one there are two. Spaces,
    a byte-order mark, and `;` or tabs as separators are accepted, because spreadsheets write them.
    """
    pairs = [(path, label) for path, label in _rows(csv_path) if label]
    for path, label in pairs:
        if label.lower() in UNLABELLED_NAMES:
            raise UserError(f"{csv_path} labels {path} '{label}': leave the label empty instead")
    if not pairs:
        raise UserError(f"{csv_path} has no labels: write a row path,label for some images")
    return list(dict.fromkeys(pairs))


def read_list(path: Path) -> list[str]:
    """The lines of a plain list, one image a line; none if the file is a CSV file."""
    lines = [line.strip() for line in _text(path).splitlines()]
    lines = list(dict.fromkeys(line for line in lines if line))
    return [] if any(separator in line for line in lines for separator in ",;\t") else lines


def _text(path: Path) -> str:
    try:
        if path.is_file() and path.stat().st_size > LARGEST:
            raise UserError(f"{path} is larger than {LARGEST // 2**20} MiB: give a smaller file")
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


def _rows(csv_path: Path) -> list[tuple[str, str]]:
    """Path and label of each row."""
    table = read_table(csv_path)
    return [(row[table.columns.path], row[table.columns.label]) for row in table.rows]


def read_table(csv_path: Path) -> Table:
    """The rows of a CSV file, split at the separator that fits the most of them."""
    text = _text(csv_path)
    best, columns, fitting, fault = list[list[str]](), None, (False, -1), None
    chosen = ","
    for separator in ",;\t":
        try:
            rows = _split(text, separator)
        except csv.Error as error:
            fault = error
            continue
        named = _columns(csv_path, rows[0]) if rows else None
        width = named.width if named else 2
        fits = named is not None, sum(len(row) == width for row in rows)
        if fits > fitting:
            best, columns, fitting, chosen = rows, named, fits, separator
    if fitting[1] < 0:
        raise UserError(f"{csv_path} is no csv file ({fault}): save it as CSV in UTF-8")
    head = best.pop(0) if columns else []
    columns = columns or Columns(0, 1, 2)
    for row in best:
        if (
            len(row) <= max(columns.path, columns.label)
            or any(row[columns.width :])
            or not row[columns.path]
        ):
            raise UserError(
                f"{csv_path} must have two columns, path and label, or a header that names these: "
                f"mend the row {','.join(row)[:80]!r}"
            )
    return Table(head, best, columns, chosen)


def _split(text: str, separator: str) -> list[list[str]]:
    lines = io.StringIO(text, newline=None)
    cells = csv.reader(lines, delimiter=separator, skipinitialspace=True)
    rows = [[cell.strip() for cell in row] for row in cells]
    return [row for row in rows if any(row)]


def _columns(csv_path: Path, row: list[str]) -> Columns | None:
    """The columns that the first row names; None if it is not a header."""
    heads = [cell.lower().replace("_", "").replace(" ", "") for cell in row]
    path = next((heads.index(head) for head in PATH_HEADS if head in heads), None)
    label = next((heads.index(head) for head in LABEL_HEADS if head in heads), None)
    if path is None or label is None:
        # Of two columns, one name is enough.
        header = len(heads) == 2 and (path == 0 or label == 1)
        return Columns(0, 1, 2) if header else None
    for column in (path, label):
        if heads.count(heads[column]) > 1:
            raise UserError(f"{csv_path} has two columns '{row[column]}': rename one of them")
    return Columns(path, label, len(heads))
