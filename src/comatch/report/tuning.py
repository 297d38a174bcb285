"""Runs that try settings: what each has that the first has not, and how it did on validation.

What is seen here is what choices are made by, so nothing about the test part is shown.
"""

import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from comatch.config import RETIRED, read_json
from comatch.errors import UserError
from comatch.report import curves, runs
from comatch.training.folder import RunFolder

HEAD = ("unlike the first", "steps", "validation %", "confident %", "right %", "seeds", "commit")
ENDS = ("confident", "pseudo_accuracy")  # of which the mean over the last steps is shown
AT_THE_END = 0.05  # share of the steps that are the last ones


def table(paths: Sequence[Path]) -> list[list[str]]:
    """A head, and a line for each configuration in the order in which they first appear."""
    groups: dict[str, list[Path]] = defaultdict(list)
    for path in paths:
        settings = runs.essence_of_json(RunFolder(path).written())
        groups[json.dumps(settings)].append(path)
    first, *_ = (json.loads(key) for key in groups)
    return [list(HEAD), *(line(first, json.loads(k), group) for k, group in groups.items())]


def line(first: dict[str, Any], mine: dict[str, Any], group: Sequence[Path]) -> list[str]:
    folders = [RunFolder(path) for path in group]
    summaries = [read_json(folder.summary) for folder in folders]
    for path, summary in zip(group, summaries, strict=True):
        if "validation_top1" not in summary:
            raise UserError(f"{path} held no pictures back: train with --set validation=NUMBER")
    row = runs.summarise(list(zip(summaries, folders, strict=True)))
    usual = {**RETIRED, **first}
    unlike = [k for k in mine if k != "steps" and mine[k] != usual.get(k)]
    ends = [at_the_end(path) for path in group]
    return [
        ", ".join(f"{key}={curves.shown(mine[key])}" for key in unlike) or "the first",
        f"{row.steps:,}",
        runs.in_per_cent([summary["validation_top1"] for summary in summaries]),
        *(runs.in_per_cent([end[name] for end in ends if name in end]) for name in ENDS),
        ", ".join(map(str, row.seeds)),
        row.revision,
    ]


def at_the_end(path: Path) -> dict[str, float]:
    """Share of confident pseudo-labels and of right ones among them, in the last steps."""
    measured = curves.measures(path)
    last = max(measured["confident"], default=0)
    within = {
        name: [v for step, v in measured[name].items() if step > (1 - AT_THE_END) * last]
        for name in ENDS
    }
    return {name: statistics.mean(values) for name, values in within.items() if values}
