"""The run's diary: one JSON line per logging interval and per evaluation, and TensorBoard events.

No clock goes into metrics.jsonl: a run that was killed and continued writes the same bytes as one
that never was.
"""

import json
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from comatch.errors import UserError


class Journal:
    def __init__(self, folder: Path, position: int = 0, step: int = 0) -> None:
        """Goes on after `position` bytes: what a killed run wrote beyond its checkpoint is cut."""
        from torch.utils.tensorboard import SummaryWriter  # slow to import, needed only here

        self.path = folder / "metrics.jsonl"
        try:
            self.path.touch()
            self.file = self.path.open("r+b")
            self.file.truncate(position)
            self.file.seek(position)
            self.board = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)
        except OSError as error:
            raise UserError(f"cannot write {self.path}: {error.strerror}") from None

    def write(self, step: int, kind: str, values: dict[str, float]) -> None:
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
        return self.file.tell()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(OSError):  # a full disk was told when it was met
            self.file.close()
            self.board.close()


def averages(sums: dict[str, float]) -> dict[str, float]:
    """Sums over an interval as means, and pseudo-label accuracy as right out of judged."""
    sums = dict(sums)
    steps = sums.pop("steps")
    sums.pop("finite_steps")
    judged, right = sums.pop("judged", 0.0), sums.pop("right", 0.0)
    means = {name: value / steps for name, value in sums.items()}
    if judged:
        means["pseudo_accuracy"] = right / judged
    return means
