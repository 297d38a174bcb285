"""The metrics of a run: a JSON line per logging interval and evaluation, and TensorBoard events.

metrics.jsonl has no times in it, so a resumed run writes the same file as an uninterrupted one. Of
several ranks, only the first writes.
"""

import json
from contextlib import suppress
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
        from torch.utils.tensorboard import SummaryWriter  # slow to import, needed only here

        try:
            self.path.touch()
            self.file = self.path.open("r+b")
            self.file.truncate(position)
            self.file.seek(position)
            self.board = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)
        except OSError as error:
            raise UserError(f"cannot write {self.path}: {error.strerror}") from None

    def write(self, step: int, kind: str, values: dict[str, float]) -> None:
        if self.silent:
            return
        line: dict[str, Any] = {"step": step, "kind": kind, **values}
        try:
            self.file.write(json.dumps(line).encode() + b"\n")
            self.file.flush()
            for name, value in values.items():
                self.board.add_scalar(f"{kind}/{name}", value, step)
        except OSError as error:
            raise UserError(
                f"cannot write {self.path}: {error.strerror}. The last checkpoint is kept: make "
                "room, then add --resume"
            ) from None

    @property
    def position(self) -> int:
        return 0 if self.silent else self.file.tell()

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
