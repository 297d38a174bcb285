"""Read run folders and summarise them: one row for each configuration, over its seeds.

Settings are read as plain JSON, so runs of older versions are reported too, with settings that this
version does not have. PyTorch is loaded only to compare runs of several versions.
"""

import itertools
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from comatch import tables
from comatch.config import Config, to_json
from comatch.config import flatten as flatten_groups
from comatch.errors import UserError, shortened
from comatch.files import expecting, read_json, read_sessions, read_summary

RECIPE = "recipe"
DIFFERS = "differs in"
TOP5 = "top-5 %"
MANY_CLASSES = 20  # top-5 accuracy is shown from this number of classes on

# Settings that do not change the result: names, how it was computed, how often it was logged.
INCIDENTAL = (
    "name",
    "seed",
    "precision",
    "fused",
    "engine",
    "workers",
    "ahead",
    "log_every",
    "eval_every",
    "checkpoint_every",
)


@dataclass(frozen=True)
class Run:
    """The small files of a run folder."""

    path: Path

    @property
    def config_file(self) -> Path:
        return self.path / "config.json"

    def finished(self) -> bool:
        return (self.path / "summary.json").exists()

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """The settings as they were written, perhaps by another version."""
        try:
            recipe = flatten_groups(read_json(self.config_file)["recipe"])
            _ = recipe["seed"], recipe["method"]["name"]
        except (KeyError, TypeError, AttributeError):
            raise UserError(f"{self.config_file} is not the configuration of a run") from None
        return recipe

    @cached_property
    def summary(self) -> dict[str, Any]:
        return read_summary(self.path / "summary.json")

    @cached_property
    def sessions(self) -> list[dict[str, Any]]:
        """One entry for each time the run was started or resumed."""
        return read_sessions(self.path / "environment.json")

    def metrics(self, wanted: Mapping[str, str]) -> dict[str, dict[int, float]]:
        """Metrics by name and step; `wanted` names the kind of line to read each from."""
        values: dict[str, dict[int, float]] = {name: {} for name in wanted}
        for step, kind, entry in self.journal():
            for name in entry.keys() & wanted.keys():
                if wanted[name] == kind:
                    values[name][step] = entry[name]
        return values

    def all_metrics(self) -> dict[str, dict[int, float]]:
        """Every metric by name and step."""
        values: dict[str, dict[int, float]] = defaultdict(dict)
        for step, _, entry in self.journal():
            for name, value in entry.items():
                values[name][step] = value
        return values

    def journal(self) -> Iterator[tuple[int, str, dict[str, float]]]:
        """Each line of metrics.jsonl: the step, the kind, and the metrics."""
        file = self.path / "metrics.jsonl"
        try:
            text = file.read_text()
        except FileNotFoundError:  # the run has just started
            return
        except (OSError, ValueError) as error:
            raise UserError(f"{file} cannot be read: {error}") from None
        for line in text.split("\n")[:-1]:  # a run that still trains may have written half a line
            try:
                entry = json.loads(line)
                yield entry.pop("step"), entry.pop("kind"), entry
            except (ValueError, TypeError, KeyError, AttributeError):
                raise UserError(f"{file} was not written by comatch train") from None


@dataclass(frozen=True)
class Row:
    """Runs that differ only in their seed."""

    data: str
    method: str
    labels: int
    steps: int
    seeds: list[int]
    top1: list[float]  # of the last checkpoint, in the order of the seeds
    seconds: float | None  # mean
    device: str
    revision: str
    failed: dict[int, str] = field(default_factory=dict)  # seeds without a result, and why
    top5: list[float] = field(default_factory=list)  # like top1; empty with few classes
    recipe: str = ""
    differs: str = ""  # settings or commit, where rows would look the same otherwise

    @property
    def mean(self) -> float | None:
        return statistics.mean(self.top1) if self.top1 else None

    @property
    def std(self) -> float | None:
        """The sample standard deviation; None for a single run."""
        return statistics.stdev(self.top1) if len(self.top1) > 1 else None

    def figures(self) -> str:
        """`96.10 ± 0.42`, in per cent; empty if every seed failed."""
        return tables.in_per_cent(self.top1)

    def accuracy(self) -> str:
        """`96.10 ± 0.42 (n=3)`, with the number of failed seeds."""
        if not self.top1:
            return "failed"
        failed = f", {len(self.failed)} failed" if self.failed else ""
        return f"{self.figures()} (n={len(self.top1)}{failed})"

    def failures(self) -> list[str]:
        return [f"seed {seed} failed: {why}" for seed, why in self.failed.items()]

    def cells(self) -> dict[str, str]:
        """The text of each column."""
        return {
            "data": self.data,
            RECIPE: self.recipe,
            "method": self.method,
            DIFFERS: self.differs,
            "labels": f"{self.labels:,}",
            "steps": f"{self.steps:,}",
            "accuracy %": self.accuracy(),
            TOP5: tables.in_per_cent(self.top5),
            "seeds": tables.seed_list(self.seeds),
            "seconds": "" if self.seconds is None else f"{self.seconds:.0f}",
            "device": self.device,
            "commit": self.revision,
        }


# ---------------------------------------------------------------------------------- run folders


def find(path: Path) -> list[Path]:
    """The run folder at this path, or those below it; the folds in a run folder are part of it."""
    if is_detector(path):
        raise UserError(f"{path} is a run of transfer detect: its result is in its summary.json")
    if Run(path).config_file.exists():
        return [path]
    if not path.is_dir():
        known = path.exists()
        raise UserError(f"{path} is not a run folder" if known else f"there is no folder {path}")
    folders = {config.parent for config in path.rglob(Run(path).config_file.name)}
    runs = (run for run in folders if folders.isdisjoint(run.parents))
    return sorted(run for run in runs if not is_detector(run))


def is_detector(path: Path) -> bool:
    """Whether `comatch transfer detect` made this folder."""
    config = Run(path).config_file
    return config.is_file() and b'"coco":' in config.read_bytes()


def find_all(paths: Iterable[Path]) -> list[Path]:
    """The run folders at these paths or below them, each once."""
    found: dict[Path, None] = {}
    for path in paths:
        there = find(path)
        if not there:
            raise UserError(f"{path} is not a run folder, and has none below it")
        found |= dict.fromkeys(there)
    return list(found)


def finished(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """The finished runs, and a note on those that are left out."""
    done = [path for path in paths if Run(path).finished()]
    if paths and not done:
        raise UserError(f"{paths[0]} has not finished: train with --resume to continue it")
    return done, left_out(paths, done, "not finished")


def tested(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """The finished runs with a test accuracy, and a note on those that are left out.

    If no run has one, all are returned, and `rows` raises the error.
    """
    done = [path for path in paths if "top1" in Run(path).summary] or list(paths)
    return done, left_out(paths, done, "not tested")


def left_out(paths: Sequence[Path], kept: Sequence[Path], why: str) -> list[str]:
    """A note on the run folders that are not kept, if there are any."""
    left = [path for path in paths if path not in kept]
    note = f"{len(left)} of {len(paths)} runs left out, {why}: {shortened(left)}"
    return [note] if left else []


# ------------------------------------------------------------------------------------- settings


def result_settings(recipe: Config) -> dict[str, Any]:
    """The settings that decide the result, apart from chance."""
    return without_incidental(flatten(to_json(recipe)))


def without_incidental(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in INCIDENTAL}


def flatten(recipe: dict[str, Any]) -> dict[str, Any]:
    """The settings of a config.json in one dictionary; `method` is the method's name."""
    recipe = flatten_groups(recipe)
    own = recipe["method"]
    return {**recipe, **own, "name": recipe.get("name", ""), "method": own["name"]}


def comparable_settings(recipes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The settings of each recipe, comparable between versions.

    A setting that is newer than a run gets its default, which keeps the old behaviour. Settings
    that were removed since are compared as they are.
    """
    settings = [flatten(recipe) for recipe in recipes]
    keys: dict[str, set[frozenset[str]]] = defaultdict(set)
    for one in settings:
        keys[one["method"]].add(frozenset(one))
    return [one if len(keys[one["method"]]) == 1 else with_defaults(one) for one in settings]


def with_defaults(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings, with this version's defaults for those that are missing."""
    from comatch import methods  # which loads PyTorch
    from comatch.training.recipe import Recipe

    if settings["method"] not in methods.METHODS:
        return settings
    return {**flatten(to_json(Recipe(method=methods.config(settings["method"])))), **settings}


# ----------------------------------------------------------------------------------------- rows


def rows(paths: Sequence[Path]) -> list[Row]:
    """One row for each configuration among these run folders, in the order of their first runs.

    Runs with the same settings and the same seed are in different rows: one for each commit, or
    else for each folder.
    """
    runs = [Run(path) for path in paths]
    for run in runs:
        if "top1" not in run.summary:
            raise UserError(f"{run.path} was not tested: its data has no test part")
    groups: dict[str, list[Run]] = defaultdict(list)
    for run, settings in zip(runs, comparable_settings([r.recipe for r in runs]), strict=True):
        del settings["seed"]
        groups[json.dumps(settings, sort_keys=True)].append(run)
    found = []
    for text, group in groups.items():
        for part, name in distinct(group):
            settings = json.loads(text) | ({"commit or folder": name} if name else {})
            found.append((summarise(part), without_incidental(settings)))
    return named_apart(found)


def distinct(group: Sequence[Run]) -> list[tuple[list[Run], str]]:
    """The runs in parts in which no seed occurs twice, each with its commit or folder."""
    if not repeats(group):
        return [(list(group), "")]
    parts: dict[str, list[Run]] = defaultdict(list)
    for run in group:
        parts[revisions([run])].append(run)
    found = []
    for commit, part in parts.items():
        if not repeats(part):
            found.append((part, commit))
            continue
        folders: dict[str, list[Run]] = defaultdict(list)
        for run in part:
            folders[str(run.path.parent)].append(run)
        for folder, some in folders.items():
            if repeats(some):
                found += [([run], str(run.path)) for run in some]
            else:
                found.append((some, folder))
    return found


def repeats(group: Sequence[Run]) -> bool:
    """Whether two of the runs have the same seed."""
    return len({run.summary["seed"] for run in group}) < len(group)


def named_apart(rows: Sequence[tuple[Row, dict[str, Any]]]) -> list[Row]:
    """The rows; those that would look the same name the settings in which they differ."""
    alike: dict[tuple[str | int, ...], list[dict[str, Any]]] = defaultdict(list)
    for row, settings in rows:
        alike[look(row)].append(settings)
    named = []
    for row, settings in rows:
        others = alike[look(row)]
        keys = [key for key in settings if any(o.get(key) != settings[key] for o in others)]
        texts = [f"{key}={settings[key]}".removeprefix("commit or folder=") for key in keys]
        named.append(replace(row, differs=shortened(texts)))
    return named


def look(row: Row) -> tuple[str | int, ...]:
    return row.data, row.recipe, row.method, row.labels, row.steps


def summarise(group: Sequence[Run]) -> Row:
    """The row of runs that differ only in their seed."""
    group = sorted(group, key=lambda run: run.summary["seed"])
    check_distinct(group)
    summaries = [run.summary for run in group]
    first = summaries[0]
    return Row(
        first["data"],
        first["method"],
        first["labels"],
        first["steps"],
        [summary["seed"] for summary in summaries],
        [summary["top1"] for summary in summaries],
        statistics.mean(summary["seconds"] for summary in summaries),
        ", ".join(sorted({session["device"] for run in group for session in run.sessions})),
        revisions(group),
        top5=top5(group),
        recipe=group[0].recipe.get("name", ""),
    )


def check_distinct(group: Sequence[Run]) -> None:
    """Raise an error if two of these runs, sorted by seed, have the same seed."""
    for one, other in itertools.pairwise(group):
        if (seed := one.summary["seed"]) == other.summary["seed"]:
            raise UserError(
                f"seed {seed} occurs twice: {one.path} and {other.path} have the same settings, "
                "so report only one of them"
            )


def revisions(group: Iterable[Run]) -> str:
    """The commits that these runs were computed with."""
    sessions = [session for run in group for session in run.sessions]
    return ", ".join(sorted({(session["git"] or "unknown")[:7] for session in sessions}))


def top5(group: Sequence[Run]) -> list[float]:
    """The top-5 accuracy of each run; empty with few classes."""
    if not all("top5" in run.summary for run in group):
        return []
    files = (group[0].path / name for name in ("model.json", "split.json"))
    many = False
    for file in [file for file in files if file.exists()][:1]:
        with expecting(file):
            many = len(read_json(file)["classes"]) >= MANY_CLASSES
    return [run.summary["top5"] for run in group] if many else []


def table(rows: Sequence[Row], columns: Sequence[str] = ()) -> list[list[str]]:
    """A header, and a line for each row; the columns are these, or all that tell something.

    Top-5 accuracy and differing settings are left out if no row has them, and the recipe if it
    follows from the data set.
    """
    names = list(columns or rows[0].cells())
    for name, told in ((TOP5, "top5"), (DIFFERS, "differs")):
        if not columns and not any(getattr(row, told) for row in rows):
            names.remove(name)
    if not columns and len({(row.data, row.recipe) for row in rows}) == len({r.data for r in rows}):
        names.remove(RECIPE)
    return [names, *([cells[name] for name in names] for cells in map(Row.cells, rows))]


def as_markdown(rows: Sequence[Row]) -> str:
    return tables.to_markdown(table(rows))


def as_csv(rows: Sequence[Row]) -> str:
    """A CSV table for programs: unrounded accuracies as shares of 1, also of each seed."""
    records = [
        {
            "data": row.data,
            "recipe": row.recipe,
            "method": row.method,
            "labels": row.labels,
            "steps": row.steps,
            "top1_mean": row.mean,
            "top1_std": row.std,
            "n": len(row.top1),
            "seconds": row.seconds,
            "seeds": " ".join(map(str, row.seeds)),
            "top1": " ".join(map(str, row.top1)),
            "top5": " ".join(map(str, row.top5)),
            "device": row.device,
            "commit": row.revision,
            "failed": "; ".join(row.failures()),
            "differs": row.differs,
        }
        for row in rows
    ]
    return tables.to_csv(records)
