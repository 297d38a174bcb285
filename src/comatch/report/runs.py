"""From run folders to one row for each setting: mean and deviation over seeds, and how many."""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comatch.config import read_json
from comatch.errors import UserError
from comatch.training.folder import RunFolder


@dataclass(frozen=True)
class Row:
    """Runs that differ in nothing but their seed."""

    data: str
    method: str
    labels: int
    steps: int
    seeds: list[int]
    top1: list[float]  # of the last checkpoint, in the order of the seeds
    seconds: float  # mean
    device: str
    revision: str

    def accuracy(self) -> str:
        """`96.10 +- 0.42 (n=3)`, in per cent; the deviation is the sample's."""
        mean = 100 * statistics.mean(self.top1)
        if len(self.top1) == 1:
            return f"{mean:.2f} (n=1)"
        return f"{mean:.2f} ± {100 * statistics.stdev(self.top1):.2f} (n={len(self.top1)})"

    def cells(self) -> list[str]:
        return [
            self.data,
            self.method,
            f"{self.labels:,}",
            f"{self.steps:,}",
            self.accuracy(),
            ", ".join(map(str, self.seeds)),
            f"{self.seconds:.0f}",
            self.device,
            self.revision,
        ]


COLUMNS = (
    "data",
    "method",
    "labels",
    "steps",
    "accuracy %",
    "seeds",
    "seconds",
    "device",
    "commit",
)


def rows(paths: Sequence[Path]) -> list[Row]:
    """One row for each configuration among these run folders, in the order they first appear."""
    groups: dict[str, list[tuple[dict[str, Any], RunFolder]]] = defaultdict(list)
    for path in paths:
        folder = RunFolder(path)
        summary = read_json(folder.summary)
        if "top1" not in summary:
            raise UserError(f"{path} was not tested: its data has no test part")
        settings = dict(read_json(folder.config)["recipe"])
        del settings["seed"]
        groups[str(settings)].append((summary, folder))
    return [summarise(group) for group in groups.values()]


def summarise(group: list[tuple[dict[str, Any], RunFolder]]) -> Row:
    group = sorted(group, key=lambda run: run[0]["seed"])
    summaries = [summary for summary, _ in group]
    seeds = [summary["seed"] for summary in summaries]
    if len(set(seeds)) < len(seeds):
        raise UserError(f"seed {max(seeds, key=seeds.count)} occurs twice: name each run once")
    sessions = [read_json(folder.environment)["sessions"][-1] for _, folder in group]
    revisions = {(session["git"] or "unknown")[:7] for session in sessions}
    first = summaries[0]
    return Row(
        first["data"],
        first["method"],
        first["labels"],
        first["steps"],
        seeds,
        [summary["top1"] for summary in summaries],
        statistics.mean(summary["seconds"] for summary in summaries),
        ", ".join(sorted({session["device"] for session in sessions})),
        ", ".join(sorted(revisions)),
    )


def markdown(rows: Sequence[Row]) -> str:
    lines = [COLUMNS, ["---"] * len(COLUMNS), *(row.cells() for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
