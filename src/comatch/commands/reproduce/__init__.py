"""The paper's tables, with our results beside them.

A cell of a table is one recipe with several seeds. Its runs lie in the folder of a comparison or in
other folders. `comatch compare` trains the missing runs and resumes the unfinished ones. A run
counts only if its settings are those of its cell: a mean over runs of different lengths means
nothing.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from comatch import files
from comatch.commands.compare import (
    Job,
    check_folder,
    check_methods,
    compare,
    home_of_data,
    jobs_for,
    plan_all,
)
from comatch.commands.report import runs
from comatch.commands.report.runs import Row
from comatch.config import require
from comatch.device import choose_device
from comatch.errors import UserError, shortened
from comatch.files import read_summary
from comatch.planning import Request, Settings, load_dataset
from comatch.tables import to_csv, to_markdown
from comatch.training.recipe import Recipe
from comatch.training.run_folder import RunFolder
from comatch.types import Dataset

OURS = "Ours: mean ± sample deviation over n seeds, at the last checkpoint, never the best one."
NotCounted = dict[str, list[Path]]  # runs, by the reason why they do not count


@dataclass(frozen=True)
class Experiment:
    """The runs of a table: what they have in common, their seeds and their folders."""

    request: Request = field(default_factory=Request)
    out: Path | None = None  # default: a folder in runs, named after the table
    seeds: Sequence[int] | None = None  # default: the paper's number of runs
    others: Sequence[Path] = ()  # finished runs below these folders count too
    train: bool = True  # train what is missing, or only show what exists

    def with_request(self, **changes: Any) -> "Experiment":
        return replace(self, request=replace(self.request, **changes))


@dataclass
class Cell:
    """One recipe with several seeds, and the runs that exist."""

    recipe: Recipe
    folder: Path  # of the comparison that trains it
    seeds: Sequence[int]
    own: dict[int, RunFolder] = field(default_factory=dict)  # finished, in that folder
    elsewhere: dict[int, RunFolder] = field(default_factory=dict)  # finished, in other folders
    unfinished: set[int] = field(default_factory=set)
    failed: dict[int, str] = field(default_factory=dict)

    @property
    def method(self) -> str:
        return self.recipe.method.method

    @property
    def runs(self) -> dict[int, RunFolder]:
        return {**self.elsewhere, **self.own}

    @property
    def missing(self) -> list[int]:
        return [seed for seed in self.seeds if seed not in self.runs]

    @property
    def row(self) -> Row | None:
        found = [runs.Run(folder.path) for folder in self.runs.values()]
        return runs.summarise(found) if found else None

    def text(self) -> str:
        """`93.09 ± 1.39 (n=5)`, `(n=3 of 5)` while seeds are missing, or `not run`."""
        failed = f", {len(self.failed)} failed" if self.failed else ""
        row, wanted = self.row, len(self.seeds)
        if row:
            n = f"n={len(row.top1)}" + (f" of {wanted}" if self.missing else "")
            return f"{row.figures()} ({n}{failed})"
        return f"0 of {wanted} seeds{failed}" if self.unfinished or failed else "not run"

    def scan(self) -> NotCounted:
        """Find the cell's runs in its own folder; return those with other settings."""
        not_counted: NotCounted = defaultdict(list)
        self.own, self.unfinished = {}, set()
        for job in jobs_for(self.folder, [self.recipe], self.seeds):
            if not job.folder.exists():
                continue
            why = mismatch(job.folder, self)
            if why:
                not_counted[why].append(job.folder.path)
            elif job.finished:
                self.own[job.seed] = job.folder
            else:
                self.unfinished.add(job.seed)
        return not_counted


@dataclass
class Group:
    """The cells of one comparison: one data set, the same splits, one folder."""

    folder: Path
    cells: list[Cell]
    request: Request
    seeds: Sequence[int]

    @property
    def methods(self) -> list[str]:
        return [cell.method for cell in self.cells]

    @property
    def missing(self) -> bool:
        return any(cell.missing for cell in self.cells)

    def elsewhere(self) -> set[tuple[str, int]]:
        """Method and seed of the runs that are finished in other folders."""
        return {(c.method, s) for c in self.cells for s in set(c.elsewhere) - set(c.own)}

    def jobs(self) -> list[Job]:
        recipes = [cell.recipe for cell in self.cells]
        return jobs_for(self.folder, recipes, self.seeds, self.elsewhere())

    def failures(self) -> list[str]:
        return [
            f"{self.folder.name}: {cell.method} seed {seed} failed: {why}"
            for cell in self.cells
            for seed, why in cell.failed.items()
        ]


def make_group(
    folder: Path, request: Request, methods: Sequence[str], seeds: Sequence[int], name: str = ""
) -> Group:
    """A cell for each method, in a folder below `folder` that is by default named as cifar10-40."""
    seeds, methods = list(dict.fromkeys(seeds)), list(dict.fromkeys(methods))
    require(bool(seeds and methods), "name a method and a seed at least")
    recipes = plan_all(request, methods, choose_device(request.device))
    dataset = recipes[0].dataset
    path = folder / (name or f"{Path(dataset.data).name}-{dataset.labels}")
    return Group(path, [Cell(recipe, path, seeds) for recipe in recipes], request, seeds)


@dataclass
class PaperTable:
    """A table of the paper, and the runs that fill it."""

    name: ClassVar[str]  # of its files
    experiment: Experiment
    path: Path
    remarks: list[str] = field(init=False, default_factory=list)  # runs that do not count, and why

    @property
    def groups(self) -> list[Group]:
        raise NotImplementedError

    def markdown(self) -> str:
        raise NotImplementedError

    def records(self) -> list[dict[str, Any]]:
        raise NotImplementedError

    def complete(self) -> None:
        """Find the runs, train the missing ones if that is wanted, and write the table."""
        self.remarks = find_runs(self.groups, self.experiment.others)
        if self.experiment.train:
            self.train()
        else:
            self.write()

    def train(self) -> None:
        """Train what is missing, group by group. The table is written before and after each run."""
        todo = [group for group in self.groups if group.missing]
        rehearse(todo)
        self.write()
        for group in todo:
            compare(
                group.request,
                methods=group.methods,
                seeds=group.seeds,
                out=group.folder,
                elsewhere=group.elsewhere(),
                after_run=partial(self.update, group),
            )

    def update(self, group: Group, rows: Sequence[Row]) -> None:
        """Take over the results of a group, of which one more run has ended."""
        failed = {row.method: row.failed for row in rows}
        for cell in group.cells:
            cell.failed = failed.get(cell.method, {})
            cell.scan()
        self.write()

    def write(self) -> None:
        """Write the table as Markdown and as CSV."""
        files.make_folder(self.path)
        texts = {
            f"{self.name}.md": self.markdown() + "\n",
            f"{self.name}.csv": to_csv(self.records()),
        }
        files.write_texts(self.path, texts)

    def failures(self) -> list[str]:
        return [line for group in self.groups for line in group.failures()]

    def origins(self) -> str:
        """A Markdown list of how our results were made: recipe, steps, seeds, commits, devices."""
        cells = [cell for group in self.groups for cell in group.cells]
        rows = [row for row in (cell.row for cell in cells) if row]
        settings = self.experiment.request.settings
        changed = (
            [f"{k}={v}" for k, v in settings.items()] if isinstance(settings, Mapping) else settings
        )
        by_steps: dict[int, dict[str, None]] = defaultdict(dict)
        for cell in cells:
            by_steps[cell.recipe.optim.steps][cell.method] = None
        parts = {
            "recipe": joined(cell.recipe.name for cell in cells),
            "settings changed": joined(changed),
            "steps": "; ".join(f"{', '.join(names)} {n:,}" for n, names in by_steps.items()),
            "seeds": joined(map(str, cells[0].seeds)),
            "commits": joined(part for row in rows for part in row.revision.split(", ")),
            "devices": "; ".join(dict.fromkeys(row.device for row in rows)),
        }
        return "\n".join(f"- {name}: {text or 'none'}" for name, text in parts.items())

    def closing(self) -> list[str]:
        """The last paragraphs of the page: runs that do not count, and failures."""
        return [f"{line}." for line in (*self.remarks, *self.failures())]


class AccuracyTable(PaperTable):
    """A table of accuracies: one column of the paper's and one of ours under each title."""

    number: ClassVar[int]  # in the paper
    made: ClassVar[str]  # how the paper made its own

    def titles(self) -> list[str]:
        raise NotImplementedError

    def rows(self) -> list[tuple[str, list[str], list[str]]]:
        """For each row its name, the paper's figures and ours, one for each title."""
        raise NotImplementedError

    def notes(self) -> list[str]:
        """More lines for the list of how our results were made."""
        return []

    def markdown(self) -> str:
        head = [f"{title}: {whose}" for title in self.titles() for whose in ("paper", "ours")]
        body = [
            [name, *(text for pair in zip(theirs, ours, strict=True) for text in pair)]
            for name, theirs, ours in self.rows()
        ]
        return "\n\n".join(
            [
                f"# The paper's table {self.number}, and ours",
                to_markdown([["accuracy %", *head], *body]),
                f"{self.made} {OURS}",
                "\n".join([self.origins(), *self.notes()]),
                *self.closing(),
            ]
        )


# --------------------------------------------------------------------------- the runs that exist


def find_runs(groups: Sequence[Group], others: Sequence[Path] = ()) -> list[str]:
    """Find the runs of every cell; return a remark on those that do not count, and why."""
    cells = [cell for group in groups for cell in group.cells]
    not_counted: NotCounted = defaultdict(list)
    for cell in cells:
        for why, paths in cell.scan().items():
            not_counted[why] += paths
    counted = {folder.path.resolve() for cell in cells for folder in cell.own.values()}
    for root in others:
        met = [assign(RunFolder(path), cells, counted, not_counted) for path in runs.find(root)]
        if not any(met):
            not_counted["no finished run of these data, labels and methods is there"].append(root)
    return [f"{shortened(paths, 1)} not counted: {why}" for why, paths in not_counted.items()]


def assign(
    folder: RunFolder, cells: Sequence[Cell], counted: set[Path], not_counted: NotCounted
) -> bool:
    """Add a run from another folder to its cell; return False if it belongs to none."""
    if folder.path.resolve() in counted:
        return True
    if not folder.finished():
        return False
    try:
        settings = settings_of_run(folder)
    except UserError as error:
        not_counted[str(error)].append(folder.path)
        return True
    candidates = [cell for cell in cells if identity(result_settings(cell)) == identity(settings)]
    if not candidates:
        return False
    cell = min(candidates, key=lambda cell: len(differences(settings, cell)))
    why, seed = mismatch(folder, cell), settings["seed"]
    if not why and seed not in cell.seeds:
        why = f"seed {seed} is not among the seeds"
    if not why and seed in cell.runs:
        why = f"{cell.method} with seed {seed} is counted already"
    if why:
        not_counted[why].append(folder.path)
    else:
        cell.elsewhere[seed] = folder
        counted.add(folder.path.resolve())
    return True


def settings_of_run(folder: RunFolder) -> dict[str, Any]:
    """All settings of a run. One that its version did not have yet has its default."""
    return runs.with_defaults(runs.flatten(runs.Run(folder.path).recipe))


def result_settings(cell: Cell) -> dict[str, Any]:
    return runs.result_settings(cell.recipe)


def identity(settings: dict[str, Any]) -> tuple[Any, ...]:
    """Data, labels and method: the settings that a cell is found by."""
    return settings["data"], settings["labels"], settings["method"]


def mismatch(folder: RunFolder, cell: Cell) -> str:
    """Why this run must not count in the cell; empty if it may."""
    unlike = differences(settings_of_run(folder), cell)
    if unlike:
        return shortened(unlike, between="; ")
    if folder.finished() and "top1" not in read_summary(folder.summary):
        return "it was not tested: its data has no test part"
    return ""


def differences(run: dict[str, Any], cell: Cell) -> list[str]:
    """`steps is 5000, not 524288`, for each setting that decides the result.

    A setting that only an older version had changes nothing if it is off: no, none or zero.
    """
    is_, should_be = runs.without_incidental(run), result_settings(cell)
    unlike = [key for key in should_be if is_.get(key) != should_be[key]]
    unlike += [key for key in is_ if key not in should_be and is_[key]]
    return [f"{key} is {is_.get(key)}, not {should_be.get(key)}" for key in unlike]


def rehearse(groups: Sequence[Group]) -> None:
    """Raise an error before the first run if any run cannot start."""
    for group in groups:
        check_folder(group.folder, group.jobs())
    opened: dict[tuple[Any, ...], Dataset] = {}
    for group in groups:
        jobs, recipe = group.jobs(), group.cells[0].recipe
        home = home_of_data(group.request, jobs)
        key = (recipe.dataset.data, recipe.dataset.image_size, recipe.dataset.labels_file, home)
        if key not in opened:
            show = group.request.progress
            opened[key] = load_dataset(recipe.reading, home, show)
        check_methods([job for job in jobs if not job.finished], opened[key])


# ------------------------------------------------------------------------------- what is written


def cell_record(cell: Cell) -> dict[str, Any]:
    """A cell as a row of the CSV: accuracies as shares of 1, unrounded, and of each seed too."""
    row = cell.row
    return {
        "top1_mean": row.mean if row else None,
        "top1_std": row.std if row else None,
        "n": len(row.top1) if row else 0,
        "n_wanted": len(cell.seeds),
        "seeds": " ".join(map(str, row.seeds)) if row else "",
        "top1": " ".join(map(str, row.top1)) if row else "",
        "seconds": row.seconds if row else None,
        "recipe": cell.recipe.name,
        "steps": cell.recipe.optim.steps,
        "device": row.device if row else "",
        "commit": row.revision if row else "",
        "failed": "; ".join(f"seed {seed}: {why}" for seed, why in cell.failed.items()),
    }


def joined(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(texts))


def with_setting(request: Request, key: str, value: Any) -> Request:
    """The request with one more setting, which overrides an earlier one of that name."""
    settings: Settings = request.settings
    if isinstance(settings, Mapping):
        return replace(request, settings={**settings, key: value})
    return replace(request, settings=[*settings, f"{key}={value}"])


def share(per_cent: float | None) -> float | None:
    return None if per_cent is None else round(per_cent / 100, 6)
