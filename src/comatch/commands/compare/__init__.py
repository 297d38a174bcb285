"""Train several methods on the same splits, and write one table of their accuracy.

The folder of a comparison has a run folder for each method and seed, and the table as text, CSV
and Markdown. Finished runs are not trained again and unfinished ones are continued, so the same
call continues an interrupted comparison, and more seeds or methods are added to it.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from comatch.commands.compare.live_table import LiveTable
from comatch.commands.report import runs
from comatch.commands.report.runs import Row
from comatch.commands.report.tables import ranking
from comatch.config import check_name, labels_text, replace, require, settings_of, values_of
from comatch.data import splits
from comatch.data.splits import Split
from comatch.device import choose_device, free_memory
from comatch.errors import TOO_LITTLE_MEMORY, UserError
from comatch.files import expecting, locked, read_json, read_sessions, write_texts
from comatch.methods import METHODS, config
from comatch.planning import (
    Request,
    as_request,
    load_dataset,
    plan,
    refuse_changes,
    short_name,
    summarise,
)
from comatch.tables import origin, to_text
from comatch.training.build import build_encoder_for, build_method, net_of, normalisation
from comatch.training.init_weights import load_initial
from comatch.training.loop import fit
from comatch.training.progress import show_summary
from comatch.training.recipe import Recipe
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
)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The folder, and a row for each method: the best first, the failed ones last."""

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

    def split(self, dataset: Dataset) -> Split:
        return splits.make(dataset, self.recipe.dataset, self.recipe.split_seed)

    @property
    def finished(self) -> bool:
        return self.folder.finished()


def compare(
    data: Any = None,
    *,
    methods: Sequence[str] | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    out: str | Path | None = None,
    elsewhere: Collection[tuple[str, int]] = (),
    after_run: Callable[[list[Row]], None] | None = None,
    **options: Any,
) -> Comparison:
    """Train each method with each seed, on the same split for the same seed.

    `data` and `options` are those of `train`; by default all methods are compared. A setting that
    only some methods have changes those methods. A run that fails is recorded in its row, and the
    other runs continue. Methods and seeds that are finished `elsewhere` are not trained.
    `after_run` is called with the rows after each run.
    """
    request = as_request(data, options)
    device = choose_device(request.device)
    names = list(dict.fromkeys(METHODS if methods is None else methods))
    seeds = list(dict.fromkeys(seeds))
    require(bool(names and seeds), "there is nothing to compare: name a method and a seed")
    recipes = plan_all(request, names, device)
    folder = Path(out) if out else default_folder(recipes[0])
    jobs = jobs_for(folder, recipes, seeds, elsewhere)
    check_folder(folder, jobs)

    todo = [job for job in jobs if not job.finished]
    if not todo:
        check_splits(jobs)
        return Comparison(folder, publish(folder, jobs))
    home = home_of_data(request, jobs)
    dataset = load_dataset(
        recipes[0].reading, home, request.progress, request.strict, request.given
    )
    check_methods(todo, dataset)
    check_splits(jobs, dataset)

    rows = results(jobs, dataset)
    trained_on = f"{dataset.name}, {labels_text(recipes[0].dataset.labels)} labels"
    title = f"{trained_on}, seeds {', '.join(map(str, seeds))} in {folder}"
    others = Counter(method for method, _ in elsewhere)
    live_table = LiveTable(title, names, len(seeds), rows, request.progress, others)
    with locked(folder):
        if request.progress and not any(job.folder.exists() for job in jobs):
            first = jobs[0]
            found = summarise(dataset, first.split(dataset), first.recipe)
            show_summary(found, Console(stderr=True))
        publish(folder, jobs, dataset)
        with live_table as table:
            for job in todo:
                bar = table.begin(job.method, job.seed)
                try:
                    fit(job.folder, job.recipe, dataset, device, home, bar)
                except UserError as error:
                    job.failure = str(error)
                except torch.OutOfMemoryError:
                    job.failure = TOO_LITTLE_MEMORY
                rows = publish(folder, jobs, dataset)
                table.end(job.method, job.seed, rows)
                if after_run:
                    after_run(rows)
                free_memory(device)
    return Comparison(folder, rows)


# ------------------------------------------------------------------------ before the first run


def plan_all(request: Request, methods: Sequence[str], device: torch.device) -> list[Recipe]:
    """A recipe for each method, with those of the settings that the method has."""
    known = {
        name: {*settings_of(Recipe()), *settings_of(config(name))} - {"seed"} for name in methods
    }
    for key in map(key_of, request.settings):
        require(key != "seed", "--set seed: use --seeds")
        check_name(key, sorted(set().union(*known.values())), "setting")
    planned = []
    for name in methods:
        mine = [item for item in request.settings if key_of(item) in known[name]]
        settings = request.settings
        own = {key: settings[key] for key in mine} if isinstance(settings, Mapping) else mine
        planned.append(plan(dataclasses.replace(request, method=name, settings=own), device))
    for key in DECIDES_SPLIT:
        require(
            len({values_of(one)[key] for one in planned}) == 1,
            f"the methods differ in {key} in this recipe: give --set {key}=...",
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
    """The runs, seed by seed, so that every method has a first result early."""
    planned = [replace(recipe, seed=seed) for seed in seeds for recipe in recipes]
    jobs = [Job(recipe, RunFolder(folder / run_name(recipe))) for recipe in planned]
    return [job for job in jobs if (job.method, job.seed) not in elsewhere]


def home_of_data(request: Request, jobs: Sequence[Job]) -> Path:
    """The folder of data sets: the request's, or the one that the existing runs used."""
    if request.data_dir:
        return Path(request.data_dir)
    existing = [job.folder for job in jobs if job.folder.exists()]
    return existing[0].data_dir() if existing else Path("data")


def run_name(recipe: Recipe) -> str:
    return f"{recipe.method.method}-seed{recipe.seed}"


def default_folder(recipe: Recipe) -> Path:
    """runs/compare-digits-40, without a number, so that the same command continues."""
    labels = labels_text(recipe.dataset.labels).replace("%", "pct")
    return Path("runs") / f"compare-{short_name(recipe.dataset.data)}-{labels}"


def check_folder(folder: Path, jobs: Sequence[Job]) -> None:
    """Raise an error if the folder has anything but runs with these settings."""
    if RunFolder(folder).exists():
        raise UserError(f"{folder} is a run, not a comparison: choose another --out")
    for job in jobs:
        if not job.folder.exists():
            job.folder.check_free()
            continue
        refuse_changes(job.folder, differences(job.folder.recipe(), job.recipe))


def differences(saved: Recipe, asked: Recipe) -> list[tuple[str, Any, Any]]:
    """Name, saved value and requested value of recipe, method and every setting."""
    names = [
        ("recipe", saved.name, asked.name),
        ("method", saved.method.method, asked.method.method),
    ]
    was = values_of(saved)
    return names + [(key, was.get(key), value) for key, value in values_of(asked).items()]


def check_methods(jobs: Sequence[Job], dataset: Dataset) -> None:
    """Build each method once, so that errors are found before the first run."""
    if dataset.test is None:
        raise UserError(
            f"{dataset.name} has no test part to compare on: "
            "add a folder 'test' with labelled images"
        )
    mean, std = normalisation(jobs[0].recipe, dataset)
    for job in {job.method: job for job in jobs}.values():
        encoder = build_encoder_for(job.recipe)
        method = build_method(job.recipe, dataset, job.split(dataset), mean, std, encoder)
        if not job.folder.checkpoint.exists():
            config, size = job.recipe.model, job.recipe.dataset.image_size
            net = net_of(encoder) if config.frozen else method.net
            load_initial(net, config, size, dataset.classes)


def check_splits(jobs: Sequence[Job], dataset: Dataset | None = None) -> None:
    """Raise an error unless runs with the same seed have the same split, on disk and in memory."""
    known: dict[int, dict[str, Any]] = {}
    for job in jobs:
        if not job.folder.split.exists():
            continue
        written = read_json(job.folder.split)
        if dataset and job.seed not in known:
            known[job.seed] = splits.to_json(job.split(dataset), dataset)
        expected = known.setdefault(job.seed, written)
        for key in ("fingerprint", "classes", "labelled", "validation", "unlabelled"):
            if written.get(key) != expected.get(key):
                raise UserError(
                    f"{job.folder.path} was trained on another split ({key} differs: the data has "
                    "changed): choose another --out"
                )


# ------------------------------------------------------------------------------- after each run


def results(jobs: Sequence[Job], dataset: Dataset | None) -> list[Row]:
    """A row for each method with a finished or failed run, the best first, the failed ones last."""
    rows = {row.method: row for row in runs.rows([j.folder.path for j in jobs if j.finished])}
    for job in jobs:
        if job.failure and dataset:
            labels = len(job.split(dataset).labelled)
            empty = Row(
                dataset.name, job.method, labels, job.recipe.optim.steps, [], [], None, "", ""
            )
            row = rows.get(job.method, empty)
            failed = {**row.failed, job.seed: job.failure}
            rows[job.method] = dataclasses.replace(row, failed=failed)
    best_first = sorted(rows.values(), key=lambda row: row.mean or 0.0, reverse=True)
    return sorted(best_first, key=lambda row: not row.top1)


def publish(folder: Path, jobs: Sequence[Job], dataset: Dataset | None = None) -> list[Row]:
    """Write the table of the results so far, and return its rows."""
    rows = results(jobs, dataset)
    if not rows:
        return []
    notes = [f"{row.method} {why}" for row in rows for why in row.failures()] + origins(jobs)
    texts = {
        "compare.txt": "\n".join([to_text(ranking(rows)), "", *notes, ""]),
        "compare.csv": runs.as_csv(rows),
        "compare.md": "\n\n".join([runs.as_markdown(rows), *notes]) + "\n",
    }
    write_texts(folder, texts)
    return rows


def origins(jobs: Sequence[Job]) -> list[str]:
    """Command, commit, device and versions of the runs, each combination once."""
    lines = []
    for job in jobs:
        if (job.finished or job.failure) and job.folder.environment.exists():
            with expecting(job.folder.environment):
                session = read_sessions(job.folder.environment)[-1]
                comatch, python = session["packages"]["comatch"], session["python"]
                lines.append(f"{origin(session)}, comatch {comatch}, Python {python}")
    return list(dict.fromkeys(lines))
