"""The table that `comatch predict` writes: as CSV, JSON or Parquet, or CSV on standard output."""

import csv
import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

from comatch.errors import UserError, encoded
from comatch.files import atomic_writer

STANDARD_OUTPUT = "-"
COLUMNS = ("path", "label", "probability", "fit")  # before those of the classes


class Prediction(NamedTuple):
    path: Path
    label: str  # the predicted class; empty if the image was rejected
    probability: float  # of the likeliest class
    fit: float | None  # how well the image fits the classes, 0 to 1; None: not known
    probabilities: list[float]  # [C]


class Writer(Protocol):
    """Writes the predictions one by one."""

    def __init__(self, file: BinaryIO, classes: list[str]) -> None: ...
    def write(self, one: Prediction) -> None: ...
    def close(self) -> None: ...


class CsvWriter:
    """Columns path, label, probability, fit, and one for each class."""

    def __init__(self, file: BinaryIO, classes: list[str]) -> None:
        # A path can have bytes that are no text.
        self.text = io.TextIOWrapper(file, "utf-8", "surrogateescape", newline="")
        self.rows = csv.writer(self.text, lineterminator="\n")
        self.rows.writerow([*COLUMNS, *classes])

    def write(self, one: Prediction) -> None:
        shares = [f"{share:.6f}" for share in one.probabilities]
        fit = "" if one.fit is None else f"{one.fit:.4f}"
        self.rows.writerow([one.path, one.label, f"{one.probability:.6f}", fit, *shares])

    def close(self) -> None:
        self.text.flush()
        self.text.detach()


class JsonWriter:
    """A list of objects with path, label, probability, fit, and the probabilities by class."""

    def __init__(self, file: BinaryIO, classes: list[str]) -> None:
        self.file, self.classes, self.before = file, classes, "[\n"

    def write(self, one: Prediction) -> None:
        record = as_record(one, self.classes)
        self.file.write(f"{self.before}{json.dumps(record)}".encode())
        self.before = ",\n"

    def close(self) -> None:
        self.file.write(b"[]\n" if self.before == "[\n" else b"\n]\n")


class ParquetWriter:
    """The columns of the CSV file, written by pandas."""

    def __init__(self, file: BinaryIO, classes: list[str]) -> None:
        try:
            import pandas
            import pyarrow  # noqa: F401 - pandas writes Parquet with it
        except ImportError as error:
            raise UserError(
                f"a .parquet file needs {error.name}: pip install pandas pyarrow"
            ) from None
        self.pandas, self.file = pandas, file
        self.columns = [*COLUMNS, *map(valid, classes)]
        self.rows: list[list[str | float | None]] = []

    def write(self, one: Prediction) -> None:
        names = valid(str(one.path)), valid(one.label)
        self.rows.append([*names, one.probability, one.fit, *one.probabilities])

    def close(self) -> None:
        self.pandas.DataFrame(self.rows, columns=self.columns).to_parquet(self.file)


WRITERS: dict[str, type[Writer]] = {
    ".csv": CsvWriter,
    ".json": JsonWriter,
    ".parquet": ParquetWriter,
}


def valid(text: str) -> str:
    """Text without undecodable bytes, which Parquet does not store."""
    return encoded(text).decode(errors="replace")


def as_record(one: Prediction, classes: list[str]) -> dict[str, object]:
    return {
        "path": str(one.path),
        "label": one.label or None,
        "probability": round(one.probability, 6),
        "fit": None if one.fit is None else round(one.fit, 4),
        "probabilities": {
            name: round(share, 6) for name, share in zip(classes, one.probabilities, strict=True)
        },
    }


def check(path: str, overwrite: bool) -> None:
    """Raise an error if no table can be written there."""
    if path == STANDARD_OUTPUT:
        return
    if Path(path).suffix.lower() not in WRITERS:
        raise UserError(f"--out {path}: give a name that ends in {', '.join(WRITERS)}, or -")
    check_free(Path(path), overwrite, "--out")


def check_free(path: Path, overwrite: bool, option: str) -> None:
    if path.exists() and not overwrite:
        raise UserError(f"{path} exists: add --overwrite, or choose another {option}")


@contextmanager
def writer(path: str, classes: list[str]) -> Iterator[Writer]:
    """Open the table; a file appears once it is complete."""
    if path == STANDARD_OUTPUT:
        rows: Writer = CsvWriter(sys.stdout.buffer, classes)
        yield rows
        rows.close()
        return
    try:
        with atomic_writer(Path(path)) as file:
            rows = WRITERS[Path(path).suffix.lower()](file, classes)
            yield rows
            rows.close()
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
