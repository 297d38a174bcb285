"""Atomic files: written under another name and renamed, so that each is complete or absent.

Of several ranks, only the first writes.
"""

import json
import os
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from comatch import launch
from comatch.errors import UserError


@contextmanager
def atomic_writer(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing; it replaces `path` once all of it is on the disk."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


def write_file(path: Path, fill: Callable[[BinaryIO], Any]) -> None:
    """Let `fill` write a file of a run folder; a failure is a one-line error."""
    if launch.rank() > 0:
        return
    try:
        with atomic_writer(path) as file:
            fill(file)
    except (OSError, RuntimeError) as error:
        # torch.save raises a RuntimeError, most often with the OSError as its context.
        cause = error if isinstance(error, OSError) else error.__context__ or error
        reason = getattr(cause, "strerror", None) or cause
        kept = f"; the previous version is kept ({path})" if path.exists() else ""
        raise UserError(
            f"cannot write {path.name} in {path.parent}: {reason}{kept}. "
            "Make room or choose another --out, then add --resume"
        ) from None


def write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, indent=2) + "\n"
    write_file(path, lambda file: file.write(text.encode()))


def write_texts(folder: Path, texts: Mapping[str, str]) -> None:
    """Write several text files, given by name, into a folder."""
    try:
        for name, text in texts.items():
            with atomic_writer(folder / name) as file:
                file.write(text.encode())
    except OSError as error:
        raise UserError(f"cannot write into {folder}: {error.strerror}") from None


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {folder}: {error.strerror}") from None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file of a run folder; a failure is a one-line error."""
    try:
        return typing.cast(dict[str, Any], json.loads(path.read_text()))
    except (FileNotFoundError, NotADirectoryError):
        raise no_run_folder(path.parent, path.name) from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def check_run_folder(folder: Path) -> None:
    """Raise an error if a folder has neither the settings nor the network of a run."""
    if not any((folder / name).exists() for name in ("config.json", "model.json")):
        raise no_run_folder(folder, "config.json")


def no_run_folder(folder: Path, missing: str) -> UserError:
    return UserError(f"{folder} is not a run folder: it has no {missing}")
