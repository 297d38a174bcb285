"""Methods side by side: each is trained on the same splits, and one table says how well.

The folder of a comparison holds a run folder for each method and seed, and the table as text, CSV
and Markdown. A finished run is never trained again and an unfinished one goes on, so the same call
continues what was stopped, and one with more seeds or methods adds to what is there.
"""

import dataclasses
import gc
import sys
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import torch

from comatch import api
from comatch.api import Settings
from comatch.commands.compare.live_table import Board
from comatch.commands.report import runs, tables
from comatch.commands.report.runs import Row
from comatch.config import Recipe, check_name, labels_text, replace, require, settings_of
from comatch.data import splits
from comatch.errors import TOO_LITTLE_MEMORY, UserError
from comatch.files import make_folder, read_json, write_texts
from comatch.methods import METHODS, config
from comatch.training.build import build_method, normalisation
from comatch.training.init_weights import begin_from
from comatch.training.run_folder import RunFolder
from comatch.types import Dataset

DECIDES_SPLIT = (
    "data",
    "image_size",
    "stream",
    "labels",
    "labels_file",
    "validation",
    "fold",
    "split_seed",
    "labelled_too",
)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The folder, and a row for each method: the best first, what failed last."""

    path: Path
    rows: list[Row]


@dataclasses.dataclass
class Job:
    """One method with one seed."""

    recipe: Recipe
    folder: RunFolder
    failure: str = ""  # why it could not be finished

    @property
    def method(self) -> str:
        return self.recipe.method.method

    @property
    def seed(self) -> int:
        return self.recipe.seed

    @property
    def finished(self) -> bool:
        return self.folder.finished()


def compare(
    data: str | Path | None = None,
    *,
    methods: Sequence[str] | None = None,
    labels: int | float | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    steps: int | None = None,
    recipe: str | None = None,
    data_dir: str | Path | None = None,
    out: str | Path | None = None,
    device: str = "auto",
    settings: Settings = (),
    progress: bool = True,
    elsewhere: Collection[tuple[str, int]] = (),
    after_run: Callable[[list[Row]], None] | None = None,
) -> Comparison:
    """Trains each method with each seed, on the same split for the same seed.

    `methods` left out are all there are; the rest is as in `train`. A setting that only some of the
    methods have is theirs alone. A run that fails is named in its row, and the others go on.
    A method and seed that is finished `elsewhere` is not trained here. `after_run` is told the rows
    so far, after each run.
    """
    where = api.choose_device(device)
    names = list(dict.fromkeys(METHODS if methods is None else methods))
    seeds = list(dict.fromkeys(seeds))
    require(bool(names and seeds), "there is nothing to compare: name a method and a seed")
    given = api.named(data, labels=labels, steps=steps)
    recipes = plan(where, recipe, names, given, settings)
    folder = Path(out) if out else default_folder(recipes[0])
    jobs = jobs_for(folder, recipes, seeds, elsewhere)
    check_folder(folder, jobs)

    todo = [job for job in jobs if not job.finished]
    if not todo:
        check_splits(jobs)
        return Comparison(folder, publish(folder, jobs))
    home = home_of_data(data_dir, jobs)
    dataset = api.open_data(recipes[0], home, progress)
    rehearse(todo, dataset)
    check_splits(jobs, dataset)
    make_folder(folder)

    rows = publish(folder, jobs, dataset)
    learned = f"{dataset.name}, {labels_text(recipes[0].labels)} labels"
    title = f"{learned}, seeds {', '.join(map(str, seeds))} in {folder}"
    others = Counter(method for method, _ in elsewhere)
    with Board(title, names, len(seeds), rows, progress, others) as board:
        for job in todo:
            bar = board.begin(job.method, job.seed)
            try:
                api.learn(job.folder, job.recipe, dataset, where, home, bar)
            except UserError as error:
                job.failure = str(error)
            except torch.OutOfMemoryError:
                job.failure = TOO_LITTLE_MEMORY
            rows = publish(folder, jobs, dataset)
            board.end(job.method, job.seed, rows)
            if after_run:
                after_run(rows)
            clear_away(where)
    return Comparison(folder, rows)


# ------------------------------------------------------------------------ before the first run


def plan(
    where: torch.device,
    recipe: str | None,
    methods: Sequence[str],
    given: dict[str, Any],
    settings: Settings,
) -> list[Recipe]:
    """A recipe for each method, with those of the settings that it has; one at least must."""
    known = {name: {*settings_of(Recipe), *settings_of(config(name))} for name in methods}
    for key in map(key_of, settings):
        check_name(key, sorted(set().union(*known.values())), "setting")
        require(key != "seed", "--set seed: a comparison has --seeds")
    planned = []
    for name in methods:
        mine = [item for item in settings if key_of(item) in known[name]]
        own = {key: settings[key] for key in mine} if isinstance(settings, dict) else mine
        planned.append(api.plan(where, recipe, name, given, own))
    for key in DECIDES_SPLIT:
        require(
            len({getattr(one, key) for one in planned}) == 1,
            f"the methods have not the same {key} in this recipe: give --set {key}=...",
        )
    return planned


def key_of(setting: str) -> str:
    return setting.partition("=")[0]


def jobs_for(
    folder: Path,
    recipes: Sequence[Recipe],
    seeds: Sequence[int],
    elsewhere: Collection[tuple[str, int]] = (),
) -> list[Job]:
    """Seed by seed: after one round every method has a first result."""
    planned = [replace(recipe, seed=seed) for seed in seeds for recipe in recipes]
    jobs = [Job(recipe, RunFolder(folder / run_name(recipe))) for recipe in planned]
    return [job for job in jobs if (job.method, job.seed) not in elsewhere]


def home_of_data(data_dir: str | Path | None, jobs: Sequence[Job]) -> Path:
    """As given, or where the runs that are there found theirs."""
    there = [job.folder for job in jobs if job.folder.exists()]
    return Path(data_dir) if data_dir else there[0].data_dir() if there else Path("data")


def run_name(recipe: Recipe) -> str:
    return f"{recipe.method.method}-seed{recipe.seed}"


def default_folder(recipe: Recipe) -> Path:
    """runs/compare-digits-40: always the same, so that the same command goes on."""
    labels = labels_text(recipe.labels).replace("%", "pct")
    return Path("runs") / f"compare-{Path(recipe.data).name}-{labels}"


def check_folder(folder: Path, jobs: Sequence[Job]) -> None:
    """What lies there must be runs of the same settings, all of them."""
    if RunFolder(folder).exists():
        raise UserError(f"{folder} is a run, not a comparison: choose another --out")
    for job in jobs:
        if not job.folder.exists():
            job.folder.check_free()
            continue
        saved, asked = job.folder.recipe(), job.recipe
        everything = {k: getattr(p, k) for p in (asked, asked.method) for k in settings_of(p)}
        api.check_same(job.folder, saved, asked.name, asked.method.method, {})  # names come first
        api.check_same(job.folder, saved, None, None, everything)


def rehearse(jobs: Sequence[Job], dataset: Dataset) -> None:
    """Builds each method once: what would stop it before its first step is told now."""
    if dataset.test is None:
        raise UserError(
            f"{dataset.name} has no test part to compare on: "
            "add a folder 'test' with labelled images"
        )
    mean, std = normalisation(jobs[0].recipe, dataset)
    for job in {job.method: job for job in jobs}.values():
        split = splits.make(dataset, job.recipe)
        method = build_method(job.recipe, dataset, split, mean, std)
        if not job.folder.checkpoint.exists():
            begin_from(method, job.recipe, dataset.classes)


def check_splits(jobs: Sequence[Job], dataset: Dataset | None = None) -> None:
    """The same seed is the same split: of the runs that are there, and of those to come."""
    known: dict[int, dict[str, Any]] = {}
    for job in jobs:
        if not job.folder.split.exists():
            continue
        written = read_json(job.folder.split)
        if dataset and job.seed not in known:
            known[job.seed] = splits.to_json(splits.make(dataset, job.recipe), dataset)
        expected = known.setdefault(job.seed, written)
        for key in ("fingerprint", "classes", "labelled", "validation", "unlabelled"):
            if written.get(key) != expected.get(key):
                raise UserError(
                    f"{job.folder.path} learned from another split ({key} differs: the data "
                    "changed since): choose another --out"
                )


# ------------------------------------------------------------------------------- after each run


def results(jobs: Sequence[Job], dataset: Dataset | None) -> list[Row]:
    """A row for each method that has something to show, the best first and what failed last."""
    rows = {row.method: row for row in runs.rows([j.folder.path for j in jobs if j.finished])}
    for job in jobs:
        if job.failure and dataset:
            labels = len(splits.make(dataset, job.recipe).labelled)
            nothing = Row(dataset.name, job.method, labels, job.recipe.steps, [], [], None, "", "")
            row = rows.get(job.method, nothing)
            failed = {**row.failed, job.seed: job.failure}
            rows[job.method] = dataclasses.replace(row, failed=failed)
    best_first = sorted(rows.values(), key=lambda row: row.mean or 0.0, reverse=True)
    return sorted(best_first, key=lambda row: not row.top1)


def publish(folder: Path, jobs: Sequence[Job], dataset: Dataset | None = None) -> list[Row]:
    """Writes the results so far: what was computed is never only on the screen."""
    rows = results(jobs, dataset)
    if not rows:
        return []
    notes = [f"{row.method} {why}" for row in rows for why in row.failures()] + origins(jobs)
    texts = {
        "compare.txt": "\n".join([tables.plain(tables.ranking(rows)), "", *notes, ""]),
        "compare.csv": runs.comma_separated(rows),
        "compare.md": "\n\n".join([runs.markdown(rows), *notes]) + "\n",
    }
    write_texts(folder, texts)
    return rows


def origins(jobs: Sequence[Job]) -> list[str]:
    """Command, commit, device and versions; several where the comparison was made in parts."""
    lines = []
    for job in jobs:
        if (job.finished or job.failure) and job.folder.environment.exists():
            session = read_json(job.folder.environment)["sessions"][-1]
            comatch, python = session["packages"]["comatch"], session["python"]
            lines.append(f"{runs.origin(session)}, comatch {comatch}, Python {python}")
    return list(dict.fromkeys(lines))


def clear_away(device: torch.device) -> None:
    """Of a run nothing stays: the next one finds the process as the first one did."""
    gc.collect()  # a step and its graph know each other
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()  # it gives up on a function that it compiled for eight runs
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
