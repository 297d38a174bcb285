"""Runs that tried settings: a CSV table with a row a run, and a summary over their seeds.

Settings are chosen by validation accuracy, so test accuracy is recorded only for runs that held no
validation images back, and the summary does not show it.
"""

import csv
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from comatch import tables
from comatch.commands.report import runs
from comatch.commands.report.runs import Run
from comatch.config import check_name, to_json
from comatch.errors import UserError
from comatch.files import write_texts

Record = dict[str, str]

COLUMNS = (
    "group",  # the folder that the run folder is in
    "run",
    "data",
    "recipe",
    "method",
    "labels",
    "change",  # settings unlike the recipe's, as key=value
    "seed",
    "commit",
    "steps",  # when the accuracies were measured: the last evaluation
    "planned",  # the steps of the whole schedule
    "validation",  # per cent
    "confident",  # share of pseudo-labels above the threshold, near the last step, per cent
    "right",  # share of those that were correct, per cent
    "test",  # per cent, only where there is no validation accuracy
)
SUMMARY = ("change", "steps", "validation %", "confident %", "right %", "seeds", "commit")
IDENTITY = ("group", "run")  # a run that is appended again replaces its row
COMMON = ("data", "recipe", "method", "labels")  # part of the summary where a group has several
MEASURES = {
    "validation_top1": "eval",
    "top1": "eval",
    "confident": "train",
    "pseudo_accuracy": "train",
}
NEAR_THE_END = 0.05  # share of the steps over which pseudo-labels are averaged
NO_CHANGE = {*runs.INCIDENTAL, "method", "data", "labels", "validation", "steps", "mean", "std"}


def append(paths: Sequence[Path], file: Path) -> list[Record]:
    """Add a row for each of these runs to a CSV file, and return the rows added."""
    added = records(paths)
    kept = {tuple(row[key] for key in IDENTITY): row for row in read(file)}
    kept |= {tuple(row[key] for key in IDENTITY): row for row in added}
    write_texts(file.parent, {file.name: tables.to_csv(list(kept.values()))})
    return added


def read(file: Path) -> list[Record]:
    """The rows of a table of tuning runs; none if the file does not exist yet."""
    if not file.exists():
        return []
    with file.open(newline="") as text:
        reader = csv.DictReader(text)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise UserError(f"{file} is not a table of tuning runs: choose another file")
        return list(reader)


def records(paths: Sequence[Path]) -> list[Record]:
    """The row of each of these runs, finished or not, sorted by folder."""
    return [record(Run(path)) for path in sorted(path.resolve() for path in paths)]


def record(run: Run) -> Record:
    measured = run.metrics(MEASURES)
    validation, test = measured["validation_top1"], measured["top1"]
    evaluated = validation or test
    if not evaluated:
        raise UserError(f"{run.path} has not been evaluated yet")
    steps, recipe = max(evaluated), run.recipe
    return {
        "group": run.path.parent.name,
        "run": run.path.name,
        "data": Path(recipe["data"]).name,
        "recipe": recipe["name"],
        "method": recipe["method"]["name"],
        "labels": "all" if recipe["labels"] is None else str(recipe["labels"]),
        "change": change(runs.flatten(recipe)),
        "seed": str(recipe["seed"]),
        "commit": runs.revisions([run]),
        "steps": str(steps),
        "planned": str(recipe["steps"]),
        "validation": per_cent(validation.get(steps)),
        "confident": per_cent(mean_near(measured["confident"], steps)),
        "right": per_cent(mean_near(measured["pseudo_accuracy"], steps)),
        "test": "" if validation else per_cent(test[steps]),
    }


def change(settings: dict[str, Any]) -> str:
    """The settings that the recipe of this name has otherwise, or that this version lacks."""
    from comatch import methods, recipes  # which load PyTorch
    from comatch.training.recipe import Recipe

    if settings["method"] not in methods.METHODS:
        recipe = Recipe()
    elif settings["name"] in recipes.RECIPES:
        recipe = recipes.get(settings["name"], settings["method"])
    else:
        recipe = Recipe(method=methods.config(settings["method"]))
    usual = {key: shown(value) for key, value in runs.flatten(to_json(recipe)).items()}
    mine = {key: shown(value) for key, value in runs.with_defaults(settings).items()}
    unlike = (key for key in mine if key not in NO_CHANGE and mine[key] != usual.get(key))
    return " ".join(f"{key}={mine[key]}" for key in unlike)


def shown(value: Any) -> str:
    """A setting's value as `--set` takes it."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    return (
        "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )


def mean_near(values: Mapping[int, float], steps: int) -> float | None:
    """The mean over the last steps before this one; None if nothing was measured there."""
    near = [value for step, value in values.items() if (1 - NEAR_THE_END) * steps < step <= steps]
    return statistics.mean(near) if near else None


def per_cent(share: float | None) -> str:
    return "" if share is None else str(round(100 * share, 6))


def choose(records: Sequence[Record], groups: Sequence[str]) -> list[Record]:
    """The rows of these groups; all rows if no group is named."""
    known = list(dict.fromkeys(row["group"] for row in records))
    for name in groups:
        check_name(name, known, "group")
    return [row for row in records if not groups or row["group"] in groups]


def summary(records: Sequence[Record]) -> list[list[str]]:
    """A head, and a line for each configuration: mean and deviation over its seeds."""
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    several = [key for key in COMMON if len({row[key] for row in records}) > 1]
    for row in records:
        change = " ".join([*(f"{key}={row[key]}" for key in several), row["change"]]).strip()
        groups[change or "none", steps_text(row)].append(row)
    lines = [list(SUMMARY)]
    for (change, steps), group in groups.items():
        group.sort(key=lambda row: int(row["seed"]))
        measured = (
            tables.in_per_cent([float(row[name]) / 100 for row in group if row[name]])
            for name in ("validation", "confident", "right")
        )
        seeds = tables.seed_list([int(row["seed"]) for row in group])
        commits = ", ".join(sorted({one for row in group for one in row["commit"].split(", ")}))
        lines.append([change, steps, *measured, seeds, commits])
    return lines


def steps_text(row: Record) -> str:
    """`32,000`, or `4,000 of 32,000` for a run that was stopped."""
    done, planned = f"{int(row['steps']):,}", f"{int(row['planned']):,}"
    return done if done == planned else f"{done} of {planned}"
