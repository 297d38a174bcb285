"""Runs that try settings: what each has that the first has not, and how it did on validation.

What is seen here is what choices are made by, so nothing about the test part is shown.
"""

import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from comatch.commands.report import runs
from comatch.commands.reproduce import curves
from comatch.config import RETIRED
from comatch.errors import UserError, shortened
from comatch.files import read_json
from comatch.training.run_folder import RunFolder

HEAD = ("unlike the first", "steps", "validation %", "confident %", "right %", "seeds", "commit")
VALIDATION = "validation_top1"
SHARES = ("confident", "pseudo_accuracy")  # of which the mean over the last steps is shown
MEASURES = {VALIDATION: "eval", **dict.fromkeys(SHARES, "train")}
AT_THE_END = 0.05  # share of the steps that are the last ones


def table(paths: Sequence[Path], at: int | None = None) -> list[list[str]]:
    """A head, and a line for each configuration in the order in which they first appear.

    Runs are compared as they ended or, finished or not, as they were at a step.
    """
    groups: dict[str, list[tuple[int, Path]]] = defaultdict(list)
    for path in paths:
        recipe = RunFolder(path).written()
        groups[json.dumps(runs.result_settings_of_json(recipe))].append((recipe["seed"], path))
    first, *_ = (json.loads(key) for key in groups)
    return [list(HEAD), *(line(first, json.loads(k), group, at) for k, group in groups.items())]


def line(
    first: dict[str, Any], mine: dict[str, Any], group: Sequence[tuple[int, Path]], at: int | None
) -> list[str]:
    """Of one configuration: its runs, each with its seed."""
    seeds, paths = zip(*sorted(group), strict=True)
    usual = {**RETIRED, **first}
    # The column of steps tells how long a run was, unless it is compared as it was on the way.
    unlike = [k for k in mine if mine[k] != usual.get(k) and (at or k != "steps")]
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
        runs.revisions(runs.sessions_of(map(RunFolder, paths))),
    ]


def final_validation(path: Path) -> float:
    summary = read_json(RunFolder(path).summary)
    if VALIDATION not in summary:
        raise UserError(f"{path} held no images back: train with --set validation=NUMBER")
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
    evaluated = {path: list(curves.logged(path, MEASURES)[VALIDATION]) for path in paths}
    there = [path for path, steps in evaluated.items() if at in steps]
    if paths and not there:
        steps = evaluated[paths[0]]
        known = (
            f"it was at {shortened(steps)}" if steps else "none so far (--set validation=NUMBER)"
        )
        raise UserError(f"{paths[0]}: no validation at step {at}; {known}")
    return there, runs.left_out(paths, there, f"no validation at {at}")
