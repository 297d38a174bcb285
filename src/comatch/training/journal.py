"""The run's diary: one JSON line per logging interval and per evaluation, and TensorBoard events.

No clock goes into metrics.jsonl: a run that was killed and continued writes the same bytes as one
that never was. Of several ranks, only the first writes; its figures are those of all.
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
        """Goes on after `position` bytes: what a killed run wrote beyond its checkpoint is cut."""
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
        with suppress(OSError):  # a full disk was told when it was met
            self.file.close()
            self.board.close()
