"""The metrics of a run: a JSON line per logging interval and evaluation, and TensorBoard events.

metrics.jsonl has no times in it, so a resumed run writes the same file as an uninterrupted one. Of
several ranks, only the first writes.
"""

import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from comatch import distributed
from comatch.errors import UserError


class Journal:
    def __init__(self, folder: Path, position: int = 0, step: int = 0) -> None:
        """Continue after `position` bytes. Lines that were written after the checkpoint are cut."""
        self.path = folder / "metrics.jsonl"
        self.silent = distributed.rank() > 0
        if self.silent:
            return
        try:
            self.path.touch()
            self.file = self.path.open("r+b")
            self.cut(position)
        except OSError as error:
            raise UserError(f"cannot write {self.path}: {error.strerror}") from None
        self.board = Board(folder / "tensorboard", step)

    def cut(self, position: int) -> None:
        """Go to the end of the last line before the position."""
        there = self.file.read(position)
        kept = there.rfind(b"\n") + 1
        if kept < position:
            warnings.warn(
                f"{self.path} has {kept:,} of the {position:,} bytes that the checkpoint counts: "
                "earlier metrics are missing, the run itself is not affected",
                stacklevel=4,
            )
        self.file.truncate(kept)
        self.file.seek(kept)

    def write(self, step: int, kind: str, values: dict[str, float]) -> None:
        if self.silent:
            return
        line: dict[str, Any] = {"step": step, "kind": kind, **values}
        try:
            self.file.write(json.dumps(line).encode() + b"\n")
            self.file.flush()
        except OSError as error:
            raise self.unwritable(error) from None
        self.board.write(step, kind, values)

    def position(self) -> int:
        """The bytes so far, once they are on the disk: a checkpoint counts on them."""
        if self.silent:
            return 0
        try:
            os.fsync(self.file.fileno())
        except OSError as error:
            raise self.unwritable(error) from None
        return self.file.tell()

    def unwritable(self, error: OSError) -> UserError:
        return UserError(
            f"cannot write {self.path}: {error.strerror}. The last checkpoint is kept: make room, "
            "then add --resume"
        )

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.silent:
            return
        with suppress(OSError):  # `write` has reported a full disk already
            self.file.close()
        self.board.close()


class Board:
    """TensorBoard events: a copy of the metrics, without which a run goes on."""

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # slow to import, needed only here

        self.writer: SummaryWriter | None = None
        with self.optional():
            self.writer = SummaryWriter(str(folder), purge_step=step + 1)

    @contextmanager
    def optional(self) -> Iterator[None]:
        """Around writing: after a failure, nothing more is written."""
        try:
            yield
        except (OSError, ValueError) as error:  # a path that is no text is a ValueError
            self.writer = None
            warnings.warn(f"no more TensorBoard events are written: {error}", stacklevel=4)

    def write(self, step: int, kind: str, values: dict[str, float]) -> None:
        with self.optional():
            for name, value in values.items():
                if self.writer:
                    self.writer.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        with self.optional():
            if self.writer:
                self.writer.close()
