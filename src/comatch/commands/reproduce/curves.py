"""Training curves, read from metrics.jsonl: one curve for each setting.

Runs that differ only in their seed are one curve: their mean, with a deviation. Unfinished runs are
read up to their last step.
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

# The metrics of the paper's figure, and the kind of line in metrics.jsonl that has them.
METRICS = {
    "pseudo_accuracy": "train",
    "confident": "train",
    "top1": "eval",
}
MOST = 300  # points of a line: more cannot be distinguished


@dataclass(frozen=True)
class Line:
    """One metric over steps: mean and deviation over the seeds that reached the step."""

    steps: list[int]
    mean: list[float]
    std: list[float | None]  # None where there is only one seed


@dataclass(frozen=True)
class Curve:
    """One setting: its name in the legend, and a line for each metric that it has."""

    label: str
    seeds: list[int]
    lines: dict[str, Line] = field(default_factory=dict)


def read(paths: Sequence[Path]) -> list[Curve]:
    """A curve for each setting among the runs at these paths or below them."""
    groups: dict[str, list[tuple[int, dict[str, dict[int, float]]]]] = defaultdict(list)
    settings: dict[str, dict[str, Any]] = {}
    found_runs = [Run(path) for path in runs.find_all(paths)]
    written = runs.comparable_settings([run.recipe for run in found_runs])
    for run, every in zip(found_runs, written, strict=True):
        result_settings = runs.without_incidental(every)
        key = json.dumps(result_settings, sort_keys=True)
        settings[key] = result_settings
        groups[key].append((every["seed"], read_metrics(run)))
    names = labels(list(settings.values()))
    found = [curve(name, group) for name, group in zip(names, groups.values(), strict=True)]
    return found if same_seeds(found) else [named_with_seeds(one) for one in found]


def read_metrics(run: Run) -> dict[str, dict[int, float]]:
    """Each metric of one run by step."""
    file = run.path / "metrics.jsonl"
    if not file.exists():
        raise UserError(f"{run.path} has no metrics.jsonl: there is nothing to draw")
    values = run.metrics(METRICS)
    if not any(values.values()):
        raise UserError(f"{file} has no metric to draw yet")
    return values


def curve(label: str, group: Sequence[tuple[int, dict[str, dict[int, float]]]]) -> Curve:
    seeds = sorted(seed for seed, _ in group)
    if len(set(seeds)) < len(seeds):
        raise UserError(f"{label} has seed {max(seeds, key=seeds.count)} twice")
    every = {name: line([values[name] for _, values in group]) for name in METRICS}
    return Curve(label, seeds, {n: one for n, one in every.items() if one.steps})


def line(runs_by_step: Sequence[dict[int, float]]) -> Line:
    """Mean and deviation over runs. Many steps are first averaged in groups within each run."""
    steps = sorted(set().union(*runs_by_step))
    width = -(-len(steps) // MOST)
    parts = [steps[i : i + width] for i in range(0, len(steps), width)] if steps else []
    mean, std = [], []
    for part in parts:
        within = [[one[step] for step in part if step in one] for one in runs_by_step]
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
    """The method, and the settings that distinguish it from other curves of that method."""
    names = []
    for own in settings:
        same = [one for one in settings if one["method"] == own["method"]]
        unlike = [key for key in own if len({json.dumps(one.get(key)) for one in same}) > 1]
        names.append(", ".join([own["method"], *(f"{k}={shown(own[k])}" for k in unlike)]))
    return names


def shown(value: Any) -> str:
    return Path(value).name if isinstance(value, str) else str(value)


def longest(curves: Iterable[Curve]) -> int:
    return max(step for curve in curves for line in curve.lines.values() for step in line.steps)
