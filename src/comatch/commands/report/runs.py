"""From run folders to one row for each setting: mean and deviation over seeds, and how many."""

import csv
import io
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from comatch import methods
from comatch.config import RETIRED, Recipe, to_json
from comatch.errors import UserError, shortened
from comatch.files import read_json
from comatch.training.run_folder import RunFolder


@dataclass(frozen=True)
class Row:
    """Runs that differ in nothing but their seed."""

    data: str
    method: str
    labels: int
    steps: int
    seeds: list[int]
    top1: list[float]  # of the last checkpoint, in the order of the seeds
    seconds: float | None  # mean
    device: str
    revision: str
    failed: dict[int, str] = field(default_factory=dict)  # seeds that gave nothing, and why
    top5: list[float] = field(default_factory=list)  # as top1, where there are many classes
    recipe: str = ""

    @property
    def mean(self) -> float | None:
        return statistics.mean(self.top1) if self.top1 else None

    @property
    def std(self) -> float | None:
        """Deviation of the sample; one run has none."""
        return statistics.stdev(self.top1) if len(self.top1) > 1 else None

    def figures(self) -> str:
        """`96.10 +- 0.42`, in per cent; empty where every seed failed."""
        return in_per_cent(self.top1)

    def accuracy(self) -> str:
        """`96.10 +- 0.42 (n=3)`, and how many seeds failed."""
        if not self.top1:
            return "failed"
        failed = f", {len(self.failed)} failed" if self.failed else ""
        return f"{self.figures()} (n={len(self.top1)}{failed})"

    def failures(self) -> list[str]:
        return [f"seed {seed} failed: {why}" for seed, why in self.failed.items()]

    def cells(self) -> dict[str, str]:
        """Text for each column of a table."""
        return {
            "data": self.data,
            RECIPE: self.recipe,
            "method": self.method,
            "labels": f"{self.labels:,}",
            "steps": f"{self.steps:,}",
            "accuracy %": self.accuracy(),
            TOP5: in_per_cent(self.top5),
            "seeds": in_order(self.seeds),
            "seconds": "" if self.seconds is None else f"{self.seconds:.0f}",
            "device": self.device,
            "commit": self.revision,
        }


RECIPE = "recipe"
TOP5 = "top-5 %"
MANY_CLASSES = 20  # from here on it says something that the right one is among five


def in_per_cent(shares: Sequence[float]) -> str:
    """Mean and sample deviation."""
    if not shares:
        return ""
    spread = f" ± {100 * statistics.stdev(shares):.2f}" if len(shares) > 1 else ""
    return f"{100 * statistics.mean(shares):.2f}{spread}"


def in_order(seeds: Sequence[int]) -> str:
    """`0, 1, 2`, and `100 to 104` for more than three that follow each other."""
    parts: list[list[int]] = []
    for seed in seeds:
        if parts and seed == parts[-1][-1] + 1:
            parts[-1].append(seed)
        else:
            parts.append([seed])
    return ", ".join(
        f"{part[0]} to {part[-1]}" if len(part) > 3 else ", ".join(map(str, part)) for part in parts
    )


def table(rows: Sequence[Row], columns: Sequence[str] = ()) -> list[list[str]]:
    """A head and a line for each row: these columns, or all that say something.

    Top-5 does where some row has it, and the recipe where rows of the same data have several.
    """
    names = list(columns or rows[0].cells())
    if not columns and not any(row.top5 for row in rows):
        names.remove(TOP5)
    if not columns and len({(row.data, row.recipe) for row in rows}) == len({r.data for r in rows}):
        names.remove(RECIPE)
    return [names, *([cells[name] for name in names] for cells in map(Row.cells, rows))]


# What a run is called, how it was computed and how often it was looked at: not what it learned.
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


def result_settings(recipe: Recipe) -> dict[str, Any]:
    """The settings that two runs share if they differ in nothing but chance."""
    return result_settings_of_json(to_json(recipe))


def result_settings_of_json(plain: dict[str, Any]) -> dict[str, Any]:
    """The same from a recipe as it was written down."""
    return {k: value for k, value in settings_of_json(plain).items() if k not in INCIDENTAL}


def settings_of_json(plain: dict[str, Any]) -> dict[str, Any]:
    """All settings of a recipe that was written down by this version or by an older one.

    What came later has the value that changes nothing. What is gone is left out, if it had the
    value that is left; another one stays, for that run was another.
    """
    own = plain["method"]
    today = to_json(Recipe(method=methods.config(own["name"])))
    together = {**today, **today["method"], **plain, **own, "method": own["name"]}
    return {k: v for k, v in together.items() if k not in RETIRED or v != RETIRED[k]}


def find(path: Path) -> list[Path]:
    """The run folder at this path, or those below it; the folds in a run are a part of it."""
    if is_detector(path):
        raise UserError(f"{path} is the run of a detector: what it found is in summary.json there")
    if RunFolder(path).exists():
        return [path]
    if not path.is_dir():
        known = path.exists()
        raise UserError(f"{path} is not a run folder" if known else f"there is no folder {path}")
    every = {config.parent for config in path.rglob(RunFolder(path).config.name)}
    runs = (run for run in every if every.isdisjoint(run.parents))
    return sorted(run for run in runs if not is_detector(run))


def is_detector(path: Path) -> bool:
    """A folder of `comatch transfer detect`, which has no recipe and no accuracy."""
    config = RunFolder(path).config
    return config.exists() and '"coco":' in config.read_text()


def every(paths: Iterable[Path]) -> list[Path]:
    """The run folders at these paths or below them, each once."""
    found: dict[Path, None] = {}
    for path in paths:
        there = find(path)
        if not there:
            raise UserError(f"{path} is not a run folder, and there is none below it")
        found |= dict.fromkeys(there)
    return list(found)


def finished(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Those of these run folders that have a result, and a remark if others are left out."""
    done = [path for path in paths if RunFolder(path).finished()]
    if paths and not done:
        raise UserError(f"{paths[0]} has not finished: train with --resume to go on")
    return done, left_out(paths, done, "not finished")


def tested(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Those of these finished runs whose data has a test part, and a remark on the others.

    All, if there is none: `rows` says what is the matter with them.
    """
    done = [path for path in paths if "top1" in read_json(RunFolder(path).summary)] or list(paths)
    return done, left_out(paths, done, "not tested")


def left_out(paths: Sequence[Path], kept: Sequence[Path], why: str) -> list[str]:
    """A remark on those of these run folders that are not kept, if there are any."""
    left = [path for path in paths if path not in kept]
    said = f"{len(left)} of {len(paths)} runs left out, {why}: {shortened(left)}"
    return [said] if left else []


def rows(paths: Sequence[Path]) -> list[Row]:
    """One row for each configuration among these run folders, in the order they first appear."""
    groups: dict[str, list[tuple[dict[str, Any], RunFolder]]] = defaultdict(list)
    for path in paths:
        folder = RunFolder(path)
        summary = read_json(folder.summary)
        if "top1" not in summary:
            raise UserError(f"{path} was not tested: its data has no test part")
        settings = settings_of_json(folder.written())
        del settings["seed"]
        groups[str(settings)].append((summary, folder))
    return [summarise(group) for group in groups.values()]


def summarise(group: list[tuple[dict[str, Any], RunFolder]]) -> Row:
    group = sorted(group, key=lambda run: run[0]["seed"])
    summaries = [summary for summary, _ in group]
    seeds = once_each([summary["seed"] for summary in summaries])
    sessions = sessions_of(folder for _, folder in group)
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
        revisions(sessions),
        top5=top5_of(group),
        recipe=group[0][1].written().get("name", ""),
    )


def once_each(seeds: list[int]) -> list[int]:
    if len(set(seeds)) < len(seeds):
        raise UserError(f"seed {max(seeds, key=seeds.count)} occurs twice: name each run once")
    return seeds


def sessions_of(folders: Iterable[RunFolder]) -> list[dict[str, Any]]:
    """Where and with which version these runs were computed, each from beginning to end."""
    return [one for folder in folders for one in read_json(folder.environment)["sessions"]]


def revisions(sessions: Sequence[dict[str, Any]]) -> str:
    return ", ".join(sorted({(session["git"] or "unknown")[:7] for session in sessions}))


def top5_of(group: list[tuple[dict[str, Any], RunFolder]]) -> list[float]:
    """Of each run, if there are so many classes that it says something."""
    known = all("top5" in summary for summary, _ in group)
    if not known or len(read_json(group[0][1].split)["classes"]) < MANY_CLASSES:
        return []
    return [summary["top5"] for summary, _ in group]


def markdown(rows: Sequence[Row]) -> str:
    return ruled(table(rows))


def ruled(lines: Sequence[Sequence[str]], numbers: bool = False) -> str:
    """A Markdown table; the first line is its head, and numbers stand at the right."""
    head, *body = lines
    rule = ["---", *["---:" if numbers else "---"] * (len(head) - 1)]
    cells = ([cell.replace("|", "\\|") for cell in line] for line in [head, rule, *body])
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def comma_separated(rows: Sequence[Row]) -> str:
    """For programs: accuracies as shares of 1, in full, and of each seed too."""
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
        }
        for row in rows
    ]
    return as_csv(records)


def as_csv(records: Sequence[dict[str, Any]]) -> str:
    written = io.StringIO()
    table = csv.DictWriter(written, records[0], lineterminator="\n")
    table.writeheader()
    table.writerows(records)
    return written.getvalue()


def origin(session: dict[str, Any]) -> str:
    """How something was measured: `command` at its commit, device, torch."""
    revision = session["git"][:7] if session["git"] else "no commit"
    torch = session["packages"]["torch"]
    return f"`{session['command']}` at {revision}, {session['device']}, torch {torch}"
