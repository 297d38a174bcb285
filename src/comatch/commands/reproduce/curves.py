"""What happened during training, read from metrics.jsonl: one line for each setting.

Runs that differ in nothing but their seed are one line, their mean, with a deviation. A run that is
still training, or was stopped, is read as far as it came.
"""

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from comatch.commands.report import runs
from comatch.commands.report.runs import Run
from comatch.errors import UserError

# What the paper's figure shows, by kind of line in metrics.jsonl and name of the value in it.
MEASURES = {
    "pseudo_accuracy": "train",
    "confident": "train",
    "top1": "eval",
}
MOST = 300  # points of a line: more cannot be told apart


@dataclass(frozen=True)
class Line:
    """One measure over steps: mean over the seeds that came so far, and their deviation."""

    steps: list[int]
    mean: list[float]
    std: list[float | None]  # none where there is only one


@dataclass(frozen=True)
class Curve:
    """One setting: its name in the legend, and a line for each measure that it has."""

    label: str
    seeds: list[int]
    lines: dict[str, Line] = field(default_factory=dict)


def read(paths: Sequence[Path]) -> list[Curve]:
    """A curve for each setting among these run folders, or those below these folders."""
    groups: dict[str, list[tuple[int, dict[str, dict[int, float]]]]] = defaultdict(list)
    settings: dict[str, dict[str, Any]] = {}
    found_runs = [Run(path) for path in runs.find_all(paths)]
    written = runs.comparable_settings([run.recipe for run in found_runs])
    for run, every in zip(found_runs, written, strict=True):
        result_settings = runs.without_incidental(every)
        key = json.dumps(result_settings, sort_keys=True)
        settings[key] = result_settings
        groups[key].append((every["seed"], measures(run)))
    names = labels(list(settings.values()))
    found = [curve(name, group) for name, group in zip(names, groups.values(), strict=True)]
    return found if same_seeds(found) else [named_with_seeds(one) for one in found]


def measures(run: Run) -> dict[str, dict[int, float]]:
    """Each measure of one run by step, as far as the run has come."""
    file = run.path / "metrics.jsonl"
    if not file.exists():
        raise UserError(f"{run.path} has no metrics.jsonl: there is nothing to draw")
    values = run.metrics(MEASURES)
    if not any(values.values()):
        raise UserError(f"{file} holds no measure to draw yet")
    return values


def curve(label: str, group: Sequence[tuple[int, dict[str, dict[int, float]]]]) -> Curve:
    seeds = sorted(seed for seed, _ in group)
    if len(set(seeds)) < len(seeds):
        raise UserError(f"{label} with seed {max(seeds, key=seeds.count)} is there twice")
    every = {name: line([values[name] for _, values in group]) for name in MEASURES}
    return Curve(label, seeds, {n: one for n, one in every.items() if one.steps})


def line(measured: Sequence[dict[int, float]]) -> Line:
    """Mean and deviation over runs; of many neighbouring steps each run first takes its mean."""
    steps = sorted(set().union(*measured))
    width = -(-len(steps) // MOST)
    parts = [steps[i : i + width] for i in range(0, len(steps), width)] if steps else []
    mean, std = [], []
    for part in parts:
        within = [[one[step] for step in part if step in one] for one in measured]
        each = [statistics.mean(some) for some in within if some]
        mean.append(statistics.mean(each))
        std.append(statistics.stdev(each) if len(each) > 1 else None)
    return Line([part[-1] for part in parts], mean, std)


def same_seeds(found: Sequence[Curve]) -> bool:
    return len({tuple(curve.seeds) for curve in found}) == 1


def named_with_seeds(curve: Curve) -> Curve:
    seeds = curve.seeds
    count = f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds"
    return replace(curve, label=f"{curve.label} ({count})")


def labels(settings: Sequence[dict[str, Any]]) -> list[str]:
    """The method, and whatever else tells a setting from others of the same method."""
    names = []
    for mine in settings:
        same = [one for one in settings if one["method"] == mine["method"]]
        unlike = [key for key in mine if len({json.dumps(one.get(key)) for one in same}) > 1]
        names.append(", ".join([mine["method"], *(f"{k}={shown(mine[k])}" for k in unlike)]))
    return names


def shown(value: Any) -> str:
    return Path(value).name if isinstance(value, str) else str(value)


def longest(curves: Iterable[Curve]) -> int:
    return max(step for curve in curves for line in curve.lines.values() for step in line.steps)
