"""Files that are either whole or not there: written beside their place and renamed into it.

Of several ranks, only the first writes.
"""

import json
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch

from comatch import distributed
from comatch.errors import UserError


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write into; `path` changes only once everything is on the disk."""
    beside = path.with_name(path.name + ".part")
    try:
        with beside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise


def write(path: Path, content: Callable[[BinaryIO], Any]) -> None:
    """Calls `content` with a file; a failure is one line that says what is still there."""
    if distributed.rank() > 0:
        return
    try:
        with replacing(path) as file:
            content(file)
    except (OSError, RuntimeError) as error:
        # torch reports a failed write as a RuntimeError that holds the OSError, or as neither.
        cause = error if isinstance(error, OSError) else error.__context__ or error
        reason = getattr(cause, "strerror", None) or cause
        kept = f"; the one written before it is kept ({path})" if path.exists() else ""
        raise UserError(
            f"cannot write {path.name} in {path.parent}: {reason}{kept}. "
            "Make room or choose another --out, then add --resume"
        ) from None


def write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, indent=2) + "\n"
    write(path, lambda file: file.write(text.encode()))


def save(path: Path, state: dict[str, Any]) -> None:
    write(path, lambda file: torch.save(state, file))


def load(path: Path) -> dict[str, Any]:
    """Tensors and plain values only: nothing in the file is executed."""
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path} is damaged ({reason}): start again with another --out") from None
    return state


def random_state() -> dict[str, torch.Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
