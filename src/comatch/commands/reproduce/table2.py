"""The paper's table 2: accuracy on ImageNet with 1 % and 10 % of the labels."""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from comatch import methods
from comatch.commands.compare import key_of
from comatch.commands.reproduce import (
    AccuracyTable,
    Cell,
    Experiment,
    Group,
    cell_record,
    joined,
    make_group,
    paper,
    share,
)
from comatch.config import check_name, require
from comatch.nets import build_encoder
from comatch.recipes.imagenet import IMAGES
from comatch.tables import in_per_cent
from comatch.training.init_weights import check_exists
from comatch.training.recipe import Recipe
from comatch.types import Task

RECIPES = {1: "imagenet-1pct", 10: "imagenet-10pct"}  # by share of the labels in per cent
STARTS = {name for name, _ in paper.TABLE2_EPOCHS if name}  # names of the pre-training
CLASSES = 1000
SEEDS = (0,)


class Column(NamedTuple):
    """One share of the labels, from one kind of initial weights."""

    share: int
    start: str  # "" for random weights, or the name of the pre-training
    group: Group

    def published(self, method: str) -> paper.Tops:
        return paper.TABLE2[self.share].get((self.start, method), paper.Tops(None, None))


class Parameters(NamedTuple):
    train: int  # those that require a gradient
    test: int

    def __str__(self) -> str:
        return in_millions(self.train / 1e6, self.test / 1e6)


@dataclass
class Table2(AccuracyTable):
    """A row for each start and method: epochs, parameters, and top-1 and top-5 for each share."""

    name, number, made = "table2", 2, paper.TABLE2_MADE
    columns: list[Column]
    others: list[tuple[str, str]]  # the paper's rows, by start and method, that nobody asked for

    @property
    def groups(self) -> list[Group]:
        return [column.group for column in self.columns]

    def titles(self) -> list[str]:
        shares = dict.fromkeys(column.share for column in self.columns)
        tops = [f"{share} %, {top}" for share in shares for top in ("top-1", "top-5")]
        return ["epochs", "parameters", *tops]

    def rows(self) -> list[tuple[str, list[str], list[str]]]:
        found = []
        for start in dict.fromkeys(column.start for column in self.columns):
            columns = [column for column in self.columns if column.start == start]
            for i, method in enumerate(columns[0].group.methods):
                cells = [column.group.cells[i] for column in columns]
                theirs = [per_cent(t) for column in columns for t in column.published(method)]
                ours = [text for cell in cells for text in texts(cell)]
                sizes = joined(str(parameters(cell.recipe)) for cell in cells)
                epochs = joined(epochs_text(epochs_of(cell.recipe)) for cell in cells)
                found.append(
                    (
                        row_name(start, method),
                        [*published_columns(start, method), *theirs],
                        [epochs, sizes, *ours],
                    )
                )
        return found + [self.not_run(start, method) for start, method in self.others]

    def not_run(self, start: str, method: str) -> tuple[str, list[str], list[str]]:
        """A row of the paper without runs of ours."""
        shares = dict.fromkeys(column.share for column in self.columns)
        none = paper.Tops(None, None)
        tops = [t for one in shares for t in paper.TABLE2[one].get((start, method), none)]
        ours = ["", "", *["not run", ""] * len(shares)]
        theirs = [*published_columns(start, method), *map(per_cent, tops)]
        return row_name(start, method), theirs, ours

    def notes(self) -> list[str]:
        """The initial weights of the pre-trained runs."""
        lines = (
            f"- {column.start}: {column.group.cells[0].recipe.model.init}"
            for column in self.columns
            if column.start
        )
        return list(dict.fromkeys(lines))

    def records(self) -> list[dict[str, Any]]:
        return [
            {
                "share": column.share,
                "pretraining": column.start,
                "init": cell.recipe.model.init or "",
                "data": cell.recipe.dataset.data,
                "labels": cell.recipe.dataset.labels,
                "method": cell.method,
                "epochs": round(epochs_of(cell.recipe), 2),
                "parameters_train": parameters(cell.recipe).train,
                "parameters_test": parameters(cell.recipe).test,
                "paper_top1": share(column.published(cell.method).top1),
                "paper_top5": share(column.published(cell.method).top5),
                **cell_record(cell),
                "top5": " ".join(map(str, cell.row.top5)) if cell.row else "",
            }
            for column in self.columns
            for cell in column.group.cells
        ]


def table2(
    experiment: Experiment,
    *,
    shares: Sequence[int] = tuple(RECIPES),
    methods: Sequence[str] | None = None,
    inits: Mapping[str, str | Path] | None = None,
) -> Table2:
    """Fill the table from the runs that exist, and train the others if that is wanted.

    The request's `data` is the folder of ImageNet, or another one. `inits` has weights by the name
    of their pre-training: each method is also trained from each of them. By default, the methods
    are the paper's own runs, and from each pre-training those of the paper; its other rows are
    shown as not run. Each share and start is a comparison in a folder of its own.
    """
    request, out = experiment.request, experiment.out or Path("runs/table2")
    require(bool(shares), "the table has no column: give --shares")
    for one in shares:
        check_name(str(one), [str(known) for known in RECIPES], "share of the labels")
    settings = set(map(key_of, request.settings))
    require("init" not in settings and not request.init, "--set init: this table has --init")
    starts: dict[str, str | None] = {"": None}
    for name, file in (inits or {}).items():
        check_exists(str(file))
        starts[known_start(name)] = str(file)
    seeds = SEEDS if experiment.seeds is None else experiment.seeds
    columns = []
    for start, init in starts.items():
        for one in dict.fromkeys(shares):
            name = f"{one}pct-{slug(start)}" if start else f"{one}pct"
            asked = replace(request, recipe=RECIPES[one], init=init)
            group = make_group(out, asked, methods or default_methods(start), seeds, name)
            columns.append(Column(one, start, group))
    ours = {(column.start, name) for column in columns for name in column.group.methods}
    others = [row for row in paper.TABLE2_EPOCHS if methods is None and row not in ours]
    table = Table2(experiment, out, columns, others)
    table.complete()
    return table


def default_methods(start: str) -> Sequence[str]:
    """The paper's own runs from random weights, or its rows with this pre-training."""
    rows = [method for name, method in paper.TABLE2_EPOCHS if name == start and start]
    needs_teacher = ("distill",)
    return [m for m in rows if m not in needs_teacher] or paper.TABLE2_METHODS


def row_name(start: str, method: str) -> str:
    return f"{start}, then {method}" if start else method


def parse_inits(assignments: Sequence[str]) -> dict[str, str]:
    """`["MoCo v2=moco.pth.tar"]` as {"MoCo v2": "moco.pth.tar"}."""
    inits: dict[str, str] = {}
    for assignment in assignments:
        name, equals, file = (part.strip() for part in assignment.partition("="))
        require(
            bool(slug(name) and equals and file),
            f"--init {assignment}: name the pre-training, as in --init 'MoCo v2={name or 'FILE'}'",
        )
        require(
            slug(known_start(name)) not in {slug(known_start(other)) for other in inits},
            f"--init {assignment}: {name} is named twice",
        )
        inits[name] = file
    return inits


def known_start(name: str) -> str:
    """The paper's name of a pre-training, however it is written, or the name as it is."""
    plain = {slug(known).replace("-", ""): known for known in STARTS}
    return plain.get(slug(name).replace("-", ""), name)


def slug(name: str) -> str:
    """A name as a part of a folder's name: `moco-v2`."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def epochs_of(recipe: Recipe) -> float:
    """How often a run sees each unlabelled image; of supervised runs, images over all images."""
    optim, labels = recipe.optim, recipe.dataset.labels
    if methods.find(recipe.method.method).views:
        return optim.steps * optim.batch * optim.mu / (IMAGES - int(labels or 0))
    return optim.steps * optim.batch / IMAGES


def epochs_text(epochs: float) -> str:
    return f"{epochs:,.0f}" if epochs >= 10 else f"{epochs:.1f}"


@functools.cache
def parameters(recipe: Recipe) -> Parameters:
    """The parameters with ImageNet's classes. Nothing is allocated for them."""
    model = recipe.model
    with torch.device("meta"):
        encoder = build_encoder(model.net, recipe.dataset.image_size, model.stem)
        method = methods.build(recipe.method, encoder, Task(CLASSES))
    tested = [*method.net.encoder.parameters(), *method.net.classifier.parameters()]
    trained = [p for p in method.parameters() if p.requires_grad]
    return Parameters(*(sum(p.numel() for p in some) for some in (trained, tested)))


def published_columns(start: str, method: str) -> list[str]:
    """The paper's epochs and parameters of a row; empty if it does not have the row."""
    if (start, method) not in paper.TABLE2_EPOCHS:
        return ["", ""]
    epochs = paper.TABLE2_EPOCHS[start, method]
    sizes = in_millions(*paper.TABLE2_PARAMETERS[start, method])
    return [epochs_text(epochs) if epochs else "-", sizes]


def in_millions(train: float, test: float) -> str:
    return f"{train:.1f} / {test:.1f}"


def per_cent(figure: float | None) -> str:
    return "" if figure is None else f"{figure:.1f}"


def texts(cell: Cell) -> tuple[str, str]:
    """Top-1 with its deviation and number of seeds, and top-5."""
    return cell.text(), in_per_cent(cell.row.top5) if cell.row else ""
