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
from comatch.errors import UserError, shortened
from comatch.report import curves, runs
from comatch.training.folder import RunFolder

HEAD = ("unlike the first", "steps", "validation %", "confident %", "right %", "seeds", "commit")
VALIDATION = "validation_top1"
SHARES = ("confident", "pseudo_accuracy")  # of which the mean over the last steps is shown
MEASURES = {VALIDATION: "eval", **dict.fromkeys(SHARES, "train")}
AT_THE_END = 0.05  # share of the steps that are the last ones


def table(paths: Sequence[Path], at: int | None = None) -> list[list[str]]:
    """A head, and a line for each configuration in the order in which they first appear.

    Runs are compared as they ended or, finished or not, as they were at a step.
    """
    groups: dict[str, list[Path]] = defaultdict(list)
    for path in paths:
        settings = runs.essence_of_json(RunFolder(path).written())
        groups[json.dumps(settings)].append(path)
    first, *_ = (json.loads(key) for key in groups)
    return [list(HEAD), *(line(first, json.loads(k), group, at) for k, group in groups.items())]


def line(
    first: dict[str, Any], mine: dict[str, Any], group: Sequence[Path], at: int | None
) -> list[str]:
    by_seed = sorted((RunFolder(path).written()["seed"], path) for path in group)
    seeds, paths = zip(*by_seed, strict=True)
    usual = {**RETIRED, **first}
    # Of runs that are compared as they were at a step, some may have been made for longer.
    said_elsewhere = () if at else ("steps",)
    unlike = [k for k in mine if k not in said_elsewhere and mine[k] != usual.get(k)]
    steps = at or mine["steps"]
    measured = [curves.logged(path, MEASURES) for path in paths]
    shares = [last_shares(one, steps) for one in measured]
    if at:
        validation = [one[VALIDATION][at] for one in measured]
    else:
        validation = [final_validation(path) for path in paths]
    return [
        ", ".join(f"{key}={curves.shown(mine[key])}" for key in unlike) or "the first",
        f"{steps:,}",
        runs.in_per_cent(validation),
        *(runs.in_per_cent([one[name] for one in shares if name in one]) for name in SHARES),
        runs.in_order(runs.once_each(list(seeds))),
        runs.revisions(runs.last_sessions(map(RunFolder, paths))),
    ]


def final_validation(path: Path) -> float:
    summary = read_json(RunFolder(path).summary)
    if VALIDATION not in summary:
        raise UserError(f"{path} held no pictures back: train with --set validation=NUMBER")
    return float(summary[VALIDATION])


def last_shares(measured: dict[str, dict[int, float]], steps: int) -> dict[str, float]:
    """Confident pseudo-labels, and right ones among them, in the last of so many steps."""
    within = {
        name: [v for step, v in measured[name].items() if (1 - AT_THE_END) * steps < step <= steps]
        for name in SHARES
    }
    return {name: statistics.mean(values) for name, values in within.items() if values}


def reached(paths: Sequence[Path], at: int) -> tuple[list[Path], list[str]]:
    """Those of these runs that were evaluated at a step, and a remark if others are left out."""
    there = [path for path in paths if at in curves.logged(path, MEASURES)[VALIDATION]]
    left = [path for path in paths if path not in there]
    if left and not there:
        steps = list(curves.logged(left[0], MEASURES)[VALIDATION])
        known = (
            f"it was at {shortened(steps)}" if steps else "none so far (--set validation=NUMBER)"
        )
        raise UserError(f"{left[0]}: no validation at step {at}; {known}")
    said = f"{len(left)} of {len(paths)} runs left out, no validation at {at}: {shortened(left)}"
    return there, [said] if left else []
