"""The paper's tables and figures, filled from run folders.

A figure of ours is a cell: one recipe over several seeds. Its runs lie in the folder of a
comparison, or any_rank else. What is missing is trained and what is half done goes on; both are
left to `comatch compare`, so the folders are the same. Only runs of the cell's own settings count:
a mean over runs of different length would be the mean of nothing.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from comatch import api, files
from comatch.commands import compare as comparison
from comatch.commands.report import runs
from comatch.commands.report.runs import Row
from comatch.config import Recipe, require
from comatch.errors import UserError, shortened
from comatch.files import read_json
from comatch.training.run_folder import RunFolder
from comatch.types import Dataset

OURS = "Ours: mean ± sample deviation over n seeds, at the last checkpoint, never the best one."
LeftOut = dict[str, list[Path]]  # runs that do not count, by the reason


@dataclass
class Cell:
    """One recipe over its seeds, and the runs that are there of it."""

    recipe: Recipe
    folder: Path  # of the comparison that trains it
    seeds: Sequence[int]
    here: dict[int, RunFolder] = field(default_factory=dict)  # finished, by seed
    elsewhere: dict[int, RunFolder] = field(default_factory=dict)  # finished, in other folders
    begun: set[int] = field(default_factory=set)  # not finished yet
    failed: dict[int, str] = field(default_factory=dict)

    @property
    def method(self) -> str:
        return self.recipe.method.method

    @property
    def runs(self) -> dict[int, RunFolder]:
        return {**self.elsewhere, **self.here}

    @property
    def missing(self) -> list[int]:
        return [seed for seed in self.seeds if seed not in self.runs]

    @property
    def row(self) -> Row | None:
        found = [(read_json(folder.summary), folder) for folder in self.runs.values()]
        return runs.summarise(found) if found else None

    def text(self) -> str:
        """`93.09 ± 1.39 (n=5)`, `(n=3 of 5)` while seeds are missing, or that there is none."""
        failed = f", {len(self.failed)} failed" if self.failed else ""
        row, wanted = self.row, len(self.seeds)
        if row:
            n = f"n={len(row.top1)}" + (f" of {wanted}" if self.missing else "")
            return f"{row.figures()} ({n}{failed})"
        return f"0 of {wanted} seeds{failed}" if self.begun or failed else "not run"

    def look(self) -> LeftOut:
        """Reads the cell's own folder; runs of other settings there are left out."""
        left_out: LeftOut = defaultdict(list)
        self.here, self.begun = {}, set()
        for job in comparison.jobs_for(self.folder, [self.recipe], self.seeds):
            if not job.folder.exists():
                continue
            why = refusal(job.folder, self)
            if why:
                left_out[why].append(job.folder.path)
            elif job.finished:
                self.here[job.seed] = job.folder
            else:
                self.begun.add(job.seed)
        return left_out


@dataclass
class Group:
    """The cells of one comparison: one data set, the same splits, one folder."""

    folder: Path
    cells: list[Cell]
    options: dict[str, Any]  # what `compare` is told

    @property
    def missing(self) -> bool:
        return any(cell.missing for cell in self.cells)

    def elsewhere(self) -> set[tuple[str, int]]:
        """What need not be trained, although it is not in the folder."""
        return {(c.method, s) for c in self.cells for s in set(c.elsewhere) - set(c.here)}

    def jobs(self) -> list[comparison.Job]:
        recipes, seeds = [cell.recipe for cell in self.cells], self.options["seeds"]
        return comparison.jobs_for(self.folder, recipes, seeds, self.elsewhere())


def arrange(parent: Path, name: str = "", **options: Any) -> Group:
    """A cell for each of the methods; options are those of `compare`.

    The folder is named after data and labels, as in cifar10-40, if it has no other name.
    """
    options["seeds"] = list(dict.fromkeys(options["seeds"]))
    options["methods"] = list(dict.fromkeys(options["methods"]))
    require(bool(options["seeds"] and options["methods"]), "name a method and a seed at least")
    recipes = comparison.plan(
        api.choose_device(options["device"]),
        options["recipe"],
        options["methods"],
        api.named(options.get("data"), labels=options["labels"], steps=options["steps"]),
        options["settings"],
    )
    folder = parent / (name or f"{Path(recipes[0].data).name}-{recipes[0].labels}")
    return Group(folder, [Cell(recipe, folder, options["seeds"]) for recipe in recipes], options)


# --------------------------------------------------------------------------- what is there


def fill(groups: Sequence[Group], others: Sequence[Path] = ()) -> list[str]:
    """Looks for the runs of every cell, and says which of those it met do not count, and why."""
    cells = [cell for group in groups for cell in group.cells]
    left_out: LeftOut = defaultdict(list)
    for cell in cells:
        for why, paths in cell.look().items():
            left_out[why] += paths
    own = {folder.path.resolve() for cell in cells for folder in cell.here.values()}
    for root in others:
        met = [adopt(RunFolder(path), cells, own, left_out) for path in runs.find(root)]
        if not any(met):
            left_out["no finished run of these data, labels and methods is there"].append(root)
    return [remark(why, paths) for why, paths in left_out.items()]


def adopt(folder: RunFolder, cells: Sequence[Cell], own: set[Path], left_out: LeftOut) -> bool:
    """Gives a run from elsewhere to the cell it belongs to; false if it concerns none of them."""
    if folder.path.resolve() in own:
        return True
    if not folder.finished():
        return False
    try:
        recipe = folder.recipe()
    except UserError as error:
        left_out[str(error)].append(folder.path)
        return True
    kin = [cell for cell in cells if alike(cell.recipe, recipe)]
    if not kin:
        return False
    cell = min(kin, key=lambda cell: len(differences(recipe, cell.recipe)))
    why = refusal(folder, cell)
    if not why and recipe.seed not in cell.seeds:
        why = f"seed {recipe.seed} is not among the seeds"
    if not why and recipe.seed in cell.runs:
        why = f"{cell.method} with seed {recipe.seed} is counted already"
    if why:
        left_out[why].append(folder.path)
    else:
        cell.elsewhere[recipe.seed] = folder
        own.add(folder.path.resolve())
    return True


def alike(one: Recipe, other: Recipe) -> bool:
    def key(recipe: Recipe) -> tuple[Any, ...]:
        return recipe.data, recipe.labels, recipe.method.method

    return key(one) == key(other)


def refusal(folder: RunFolder, cell: Cell) -> str:
    """Why this run must not be counted in the cell; empty if it may."""
    unlike = differences(folder.recipe(), cell.recipe)
    if unlike:
        return shortened(unlike, between="; ")
    if folder.finished() and "top1" not in read_json(folder.summary):
        return "it was not tested: its data has no test part"
    return ""


def differences(run: Recipe, wanted: Recipe) -> list[str]:
    """`steps is 5000, not 524288`, for each setting that decides the result."""
    is_, should_be = runs.result_settings(run), runs.result_settings(wanted)
    keys = [key for key in should_be | is_ if is_.get(key) != should_be.get(key)]
    return [f"{key} is {is_.get(key)}, not {should_be.get(key)}" for key in keys]


def remark(why: str, paths: Sequence[Path]) -> str:
    return f"{shortened(paths, 1)} not counted: {why}"


# ----------------------------------------------------------------------------- what is missing


def train(groups: Sequence[Group], publish: Callable[[], None]) -> None:
    """Runs what is missing, group by group; `publish` is called before, and after every run."""
    todo = [group for group in groups if group.missing]
    rehearse(todo)
    publish()
    for group in todo:
        comparison.compare(
            out=group.folder,
            elsewhere=group.elsewhere(),
            after_run=partial(note, group, publish),
            **group.options,
        )


def note(group: Group, publish: Callable[[], None], rows: Sequence[Row]) -> None:
    failed = {row.method: row.failed for row in rows}
    for cell in group.cells:
        cell.failed = failed.get(cell.method, {})
        cell.look()
    publish()


def rehearse(groups: Sequence[Group]) -> None:
    """What would stop any run before its first step is told before the first run begins."""
    for group in groups:
        comparison.check_folder(group.folder, group.jobs())
    opened: dict[tuple[Any, ...], Dataset] = {}
    for group in groups:
        jobs, recipe = group.jobs(), group.cells[0].recipe
        home = comparison.home_of_data(group.options["data_dir"], jobs)
        key = (recipe.data, recipe.image_size, recipe.labels_file, home)
        if key not in opened:
            opened[key] = api.open_data(recipe, home, group.options["progress"])
        comparison.rehearse([job for job in jobs if not job.finished], opened[key])


def failures(groups: Sequence[Group]) -> list[str]:
    return [
        f"{group.folder.name}: {cell.method} seed {seed} failed: {why}"
        for group in groups
        for cell in group.cells
        for seed, why in cell.failed.items()
    ]


# ------------------------------------------------------------------------------ what is written


def page(
    number: int,
    titles: Sequence[str],
    rows: Sequence[tuple[str, list[str], list[str]]],
    made: str,
    groups: Sequence[Group],
    settings: api.Settings,
    *,
    more: Sequence[str] = (),
    remarks: Sequence[str] = (),
) -> str:
    """A table of the paper in Markdown, ours beside it, and how both were made.

    A row is a name, the paper's figures and ours, by title; `more` lines tell more of ours.
    """
    head = [f"{title}: {whose}" for title in titles for whose in ("paper", "ours")]
    body = [
        [name, *(text for pair in zip(theirs, ours, strict=True) for text in pair)]
        for name, theirs, ours in rows
    ]
    cells = [cell for group in groups for cell in group.cells]
    return "\n\n".join(
        [
            f"# The paper's table {number}, and ours",
            runs.ruled([["accuracy %", *head], *body]),
            f"{made} {OURS}",
            "\n".join([origins(cells, settings), *more]),
            *(f"{line}." for line in (*remarks, *failures(groups))),
        ]
    )


def publish(path: Path, name: str, markdown: str, records: Sequence[dict[str, Any]]) -> None:
    """A table for people and one for programs."""
    files.make_folder(path)
    texts = {f"{name}.md": markdown + "\n", f"{name}.csv": runs.as_csv(records)}
    files.write_texts(path, texts)


def cell_record(cell: Cell) -> dict[str, Any]:
    """A cell for programs: accuracies as shares of 1, in full, and of each seed too."""
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
        "steps": cell.recipe.steps,
        "device": row.device if row else "",
        "commit": row.revision if row else "",
        "failed": "; ".join(f"seed {seed}: {why}" for seed, why in cell.failed.items()),
    }


def origins(cells: Sequence[Cell], settings: api.Settings) -> str:
    """How ours were made: recipe, steps, seeds, commits, devices, as a list in Markdown."""
    rows = [row for row in (cell.row for cell in cells) if row]
    changed = [f"{k}={v}" for k, v in settings.items()] if isinstance(settings, dict) else settings
    by_steps: dict[int, dict[str, None]] = defaultdict(dict)
    for cell in cells:
        by_steps[cell.recipe.steps][cell.method] = None
    parts = {
        "recipe": listed(cell.recipe.name for cell in cells),
        "settings changed": listed(changed),
        "steps": "; ".join(f"{', '.join(names)} {n:,}" for n, names in by_steps.items()),
        "seeds": listed(map(str, cells[0].seeds)),
        "commits": listed(part for row in rows for part in row.revision.split(", ")),
        "devices": "; ".join(dict.fromkeys(row.device for row in rows)),
    }
    return "\n".join(f"- {name}: {text or 'none'}" for name, text in parts.items())


def listed(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(texts))


def variant(settings: api.Settings, key: str, value: Any) -> api.Settings:
    """The settings with one changed; the last word counts."""
    if isinstance(settings, dict):
        return {**settings, key: value}
    return [*settings, f"{key}={value}"]


def share(per_cent: float | None) -> float | None:
    return None if per_cent is None else round(per_cent / 100, 6)
