"""What to label next: pictures that teach a classifier most."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress

from comatch.classifier import load_classifier
from comatch.commands.contact_sheet import draw_names, save
from comatch.commands.suggest import learner, selection
from comatch.commands.suggest.features import compressed, encoder_of, plain_features, recipe_for
from comatch.commands.suggest.table import (
    EMPTY,
    Mark,
    check_free,
    find_pictures,
    known_marks,
    write_table,
)
from comatch.config import require
from comatch.data.features import Encoder
from comatch.device import choose_device
from comatch.errors import UserError
from comatch.files import read_json
from comatch.nets.frozen import FrozenEncoder
from comatch.training.recipe import Recipe
from comatch.training.run_folder import Run, RunFolder


@dataclasses.dataclass(frozen=True)
class Suggestions:
    """Pictures to label next, the most useful first."""

    folder: Path
    names: list[str]  # paths below the folder
    table: Path  # CSV with an empty label for each, and the labels that are known
    sheet: Path | None  # the pictures with their names
    labelled: dict[str, str]  # the labels that are known
    classes: int | None  # that are predicted among the suggestions; None without labels
    groups: tuple[int, int]  # groups of similar pictures: with a suggestion or a label, in all
    unreadable: dict[str, str]  # files, and why


def suggest(
    data: str | Path | Run,
    *,
    number: int = 40,
    out: str | Path | None = None,
    sheet: str | Path | None = None,
    labels_file: str | Path | None = None,
    encoder: str | None = None,
    init: str | Path | None = None,
    device: str = "auto",
    overwrite: bool = False,
    progress: bool = True,
) -> Suggestions:
    """Choose pictures of a folder, or of the folder of a run, to label next.

    They are written to the CSV file `out`, by default labels.csv in the folder, with empty labels.
    Labels that are known come first in it. A file that exists is replaced only with `overwrite`.
    Images are compared by the run's encoder if it is frozen, else by `encoder` with the weights
    `init`, or by the default one.
    """
    require(number >= 1, f"number={number}: must be at least 1")
    data = data.path if isinstance(data, Run) else Path(data)
    run = RunFolder(data) if (data / "config.json").exists() else None
    folder = Path(run.reading().dataset.data) if run else data
    where = choose_device(device)
    pictures = find_pictures(folder)
    table = Path(out) if out else pictures.labels_file
    check_free(table, sheet, folder, overwrite)
    if labels_file and not Path(labels_file).exists():
        raise UserError(f"{labels_file} does not exist: give a CSV file of path,label")
    marks = known_marks(pictures, Path(labels_file) if labels_file else pictures.labels_file)
    if run:
        used = read_json(run.split).get("labelled", {})
        marks = {name: Mark(label) for name, label in used.items()} | marks
    recipe = encoder_recipe(run) or recipe_for(folder, encoder, init, where)
    names, features, bad = encode(
        folder, pictures.names, encoder_of(recipe, folder, pictures.names, where), progress
    )
    if not names:
        raise UserError(f"none of the {len(bad)} pictures in {folder} can be read")
    chosen = choose(names, features, marks, number, run)
    labels = {name: mark.label for name, mark in marks.items() if mark.label}
    path = write_table(table, labels, [names[row] for row in chosen.rows])
    drawn = None
    if sheet:
        drawn = save(draw_names(folder, [names[row] for row in chosen.rows]), Path(sheet))
    return Suggestions(
        folder,
        [names[row] for row in chosen.rows],
        path,
        drawn,
        labels,
        chosen.classes,
        chosen.groups,
        bad,
    )


def encoder_recipe(run: RunFolder | None) -> Recipe | None:
    """The recipe of a run with a frozen encoder, whose features are then used."""
    if run is None or not run.settings()["frozen"]:
        return None
    return run.recipe()


def encode(
    folder: Path, names: Sequence[str], encoder: Encoder, show: bool
) -> tuple[list[str], np.ndarray, dict[str, str]]:
    """The names of readable pictures, their features [n, width], and why others have none."""
    rows: list[int] = []
    found: list[np.ndarray] = []
    bad: dict[str, str] = {}
    screen = Console(stderr=True)
    with Progress(console=screen, transient=True, disable=not show) as progress:
        task = progress.add_task("encoding", total=len(names))
        for some in plain_features(folder, names, range(len(names)), encoder):
            rows += some.rows
            found.append(some.features)
            bad |= {names[row]: why for row, why in some.bad.items()}
            progress.advance(task, some.done)
    return [names[row] for row in rows], np.concatenate(found), bad


@dataclasses.dataclass(frozen=True)
class Chosen:
    rows: list[int]
    classes: int | None
    groups: tuple[int, int]


def choose(
    names: Sequence[str],
    features: np.ndarray,
    marks: Mapping[str, Mark],
    number: int,
    run: RunFolder | None = None,
    seed: int = 0,
) -> Chosen:
    """Rows of the pictures to label next, and how much they cover."""
    known = [marks.get(name, EMPTY) for name in names]
    classes = sorted({mark.label for mark in known if mark.label})
    number_of = {label: number for number, label in enumerate(classes)}
    numbers = np.array([number_of.get(mark.label, -1) for mark in known])
    taken = [row for row, mark in enumerate(known) if mark != EMPTY]
    reduced = compressed(features)
    near = reduced[:, : selection.COMPONENTS]
    guess = None
    if len(classes) > 1:
        guess = run_predictions(run, features) if run else None
        guess = learner.predict(reduced, numbers, len(classes)) if guess is None else guess
        rows = selection.uncertain(near, guess, numbers, number, taken, seed)
    else:
        rows = selection.typical(near, number, taken, seed)
    group = selection.groups(near)
    covered = len(set(group[[*rows, *taken]].tolist()))
    seen = None if guess is None else len(set(guess[rows].argmax(1).tolist()))
    return Chosen(rows, seen, (covered, int(group.max()) + 1))


@torch.no_grad()
def run_predictions(run: RunFolder, features: np.ndarray) -> np.ndarray | None:
    """Class probabilities [n, C] by the heads of a run; None if its encoder is not frozen."""
    net = load_classifier(run, torch.device("cpu")).net
    if not isinstance(net.encoder, FrozenEncoder):
        return None
    projected = net.encoder.projection(torch.from_numpy(features).float())
    found: np.ndarray = net.classifier(projected).softmax(1).numpy()
    return found
