"""Labels in a file: a CSV table with a path and a label in each row, or a plain list of images."""

import csv
import io
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from comatch.errors import UserError

UNLABELLED_NAMES = ("unlabeled", "unlabelled")
# Names of columns without `_` and spaces. The first that a header has is used.
PATH_HEADS = ("path", "file", "filename", "image", "name", "index")
LABEL_HEADS = ("label", "class")
LARGEST = 2**26  # bytes; a table of a million images is smaller


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
    pairs = list(dict.fromkeys((path, label) for path, label in _rows(csv_path) if label))
    for path, label in pairs:
        if label.lower() in UNLABELLED_NAMES:
            raise UserError(f"{csv_path} labels {path} '{label}': leave the label empty instead")
    if not pairs:
        raise UserError(f"{csv_path} has no labels: write a row path,label for some images")
    return pairs


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


class Form(NamedTuple):
    """How the rows of a CSV file are to be read."""

    separator: str
    columns: Columns
    headed: bool  # the first row is a header


def read_table(csv_path: Path) -> Table:
    """The whole of a CSV file, whose rows must have a path and a label."""
    text = _text(csv_path)
    form = _form(csv_path, text)
    head = next(_split(text, form.separator)) if form.headed else []
    return Table(head, list(_checked(csv_path, text, form)), form.columns, form.separator)


def _rows(csv_path: Path) -> Iterator[tuple[str, str]]:
    """Path and label of each row."""
    text = _text(csv_path)
    form = _form(csv_path, text)
    for row in _checked(csv_path, text, form):
        yield row[form.columns.path], row[form.columns.label]


def _form(csv_path: Path, text: str) -> Form:
    """The separator that fits the most rows, and the columns.

    Rows are read again for each separator instead of kept: a large table has many of them.
    """
    found, fault = dict[tuple[bool, int], Form](), None
    for separator in ",;\t":
        try:
            columns = _columns_of(csv_path, text, separator)
            headed, columns = columns is not None, columns or Columns(0, 1, 2)
            fitting = sum(len(row) == columns.width for row in _split(text, separator))
            found.setdefault((headed, fitting), Form(separator, columns, headed))
        except csv.Error as error:
            fault = error
    if not found:
        raise UserError(f"{csv_path} is no csv file ({fault}): save it as CSV in UTF-8")
    return found[max(found)]


def _checked(csv_path: Path, text: str, form: Form) -> Iterator[list[str]]:
    """The rows below the header."""
    path, label, width = form.columns
    for row in itertools.islice(_split(text, form.separator), int(form.headed), None):
        if len(row) <= max(path, label) or any(row[width:]) or not row[path]:
            raise UserError(
                f"{csv_path} must have two columns, path and label, or a header that names these: "
                f"mend the row {','.join(row)[:80]!r}"
            )
        yield row


def _split(text: str, separator: str) -> Iterator[list[str]]:
    lines = io.StringIO(text, newline=None)
    for row in csv.reader(lines, delimiter=separator, skipinitialspace=True):
        cells = [cell.strip() for cell in row]
        if any(cells):
            yield cells


def _columns_of(csv_path: Path, text: str, separator: str) -> Columns | None:
    return _columns(csv_path, next(_split(text, separator), []))


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
