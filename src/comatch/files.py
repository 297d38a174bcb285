"""Atomic files: written under another name and renamed, so that each is complete or absent.

Of several ranks, only the first writes.
"""

import difflib
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from comatch import launch
from comatch.errors import UserError, encoded

LOCK = ".lock"
CHECKSUM = "checksum"
SUMMARISED = {"method", "data", "labels", "steps", "seed", "seconds"}


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


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make the folder, and refuse to use it while another process does.

    The system releases the lock when a process ends, however it ends. The file stays.
    """
    if launch.rank() > 0:
        yield
        return
    from filelock import FileLock, Timeout

    make_folder(folder)
    try:
        lock = FileLock(folder / LOCK, timeout=0).acquire()
    except Timeout:
        raise UserError(
            f"another process is using {folder}: wait until it has finished, or choose another "
            "folder"
        ) from None
    except (OSError, NotImplementedError) as error:  # read-only, or a disk without locks
        raise UserError(f"cannot lock {folder}: {error}") from None
    with lock:
        yield


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
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    write_file(path, lambda file: file.write(encoded(text)))


def write_checked(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON file with a checksum: a changed number in it would change results."""
    write_json(path, {**value, CHECKSUM: checksum(value)})


def checksum(value: dict[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(value).encode()):08x}"


def write_texts(folder: Path, texts: Mapping[str, str]) -> None:
    """Write several text files, given by name, into a folder."""
    try:
        for name, text in texts.items():
            with atomic_writer(folder / name) as file:
                file.write(encoded(text))
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
        value = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise no_run_folder(path.parent, path.name) from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} is damaged: it is no JSON object")
    if CHECKSUM in value and value.pop(CHECKSUM) != checksum(value):
        raise UserError(
            f"{path} was changed after it was written: restore it, or remove the line "
            f"'{CHECKSUM}' if you changed it on purpose"
        )
    return value


def read_summary(path: Path) -> dict[str, Any]:
    """The summary.json of a run."""
    summary = read_json(path)
    if missing := sorted(SUMMARISED - summary.keys()):
        raise UserError(f"{path} is damaged: it has no {missing[0]}")
    return summary


def read_sessions(path: Path) -> list[dict[str, Any]]:
    """The environment.json of a run: an entry for each time it was started or resumed."""
    with expecting(path):
        sessions: list[dict[str, Any]] = read_json(path)["sessions"]
        _ = [(session["device"], session["git"]) for session in sessions]
        _ = sessions[0]
    return sessions


@contextmanager
def expecting(path: Path, besides: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Around using what a file holds: a value that is missing or of a wrong type is an error."""
    try:
        yield
    except besides:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise UserError(f"{path} is damaged: it has a wrong value ({error!r})") from None


def check_run_folder(folder: Path) -> None:
    """Raise an error if a folder has neither the settings nor the network of a run."""
    if not any((folder / name).exists() for name in ("config.json", "model.json")):
        raise no_run_folder(folder, "config.json")


def no_run_folder(folder: Path, missing: str) -> UserError:
    if not folder.exists():
        return UserError(f"there is no run folder {folder}{nearest_run(folder)}")
    return UserError(f"{folder} is not a run folder: it has no {missing}")


def nearest_run(folder: Path) -> str:
    """A hint with the run folder beside it that has the most similar name, if there is one."""
    beside = {path.parent.name: path.parent for path in folder.parent.glob("*/config.json")}
    near = difflib.get_close_matches(folder.name, beside, n=1)
    return f" (did you mean {beside[near[0]]}?)" if near else ""
