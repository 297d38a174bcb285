"""The paper's table 2: accuracy on ImageNet with 1 % and 10 % of the labels."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from comatch.commands.compare import key_of
from comatch.commands.reproduce import (
    AccuracyTable,
    Cell,
    Experiment,
    Group,
    cell_record,
    make_group,
    paper,
    share,
)
from comatch.config import check_name, require
from comatch.tables import in_per_cent
from comatch.training.init_weights import check_exists

RECIPES = {1: "imagenet-1pct", 10: "imagenet-10pct"}  # by share of the labels in per cent
PRETRAINED = "MoCo v2"
SEEDS = (0,)


class Column(NamedTuple):
    """One share of the labels, from one kind of initial weights."""

    share: int
    start: str  # "" for random weights, or the name of the pre-training
    group: Group

    def published(self, method: str) -> paper.Tops:
        return paper.TABLE2[self.share].get((self.start, method), paper.Tops(None, None))


@dataclass
class Table2(AccuracyTable):
    """A row for each start and method; top-1 and top-5 for each share of the labels."""

    name, number, made = "table2", 2, paper.TABLE2_MADE
    columns: list[Column]

    @property
    def groups(self) -> list[Group]:
        return [column.group for column in self.columns]

    def titles(self) -> list[str]:
        shares = dict.fromkeys(column.share for column in self.columns)
        return [f"{share} %, {top}" for share in shares for top in ("top-1", "top-5")]

    def rows(self) -> list[tuple[str, list[str], list[str]]]:
        found = []
        for start in dict.fromkeys(column.start for column in self.columns):
            columns = [column for column in self.columns if column.start == start]
            for i, method in enumerate(columns[0].group.methods):
                name = f"{start}, then {method}" if start else method
                theirs = [per_cent(t) for column in columns for t in column.published(method)]
                ours = [text for column in columns for text in texts(column.group.cells[i])]
                found.append((name, theirs, ours))
        return found

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
                "init": cell.recipe.model.init or "",
                "data": cell.recipe.dataset.data,
                "labels": cell.recipe.dataset.labels,
                "method": cell.method,
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
    methods: Sequence[str] = paper.TABLE2_METHODS,
) -> Table2:
    """Fill the table from the runs that exist, and train the others if that is wanted.

    The request's `data` is the folder of ImageNet. With its `init`, the weights of MoCo v2, each
    method is also trained from those. Each share and start is a comparison in a folder of its own.
    """
    request, out = experiment.request, experiment.out or Path("runs/table2")
    require(bool(shares), "the table has no column: give --shares")
    for one in shares:
        check_name(str(one), [str(known) for known in RECIPES], "share of the labels")
    require("init" not in map(key_of, request.settings), "--set init: this table has --init")
    if request.init:
        check_exists(str(request.init))
    starts = {"": replace(request, init=None)} | ({PRETRAINED: request} if request.init else {})
    seeds = SEEDS if experiment.seeds is None else experiment.seeds
    columns = []
    for start, from_start in starts.items():
        for one in dict.fromkeys(shares):
            name = f"{one}pct-pretrained" if start else f"{one}pct"
            asked = replace(from_start, recipe=RECIPES[one])
            columns.append(Column(one, start, make_group(out, asked, methods, seeds, name)))
    table = Table2(experiment, out, columns)
    table.complete()
    return table


def per_cent(figure: float | None) -> str:
    return "" if figure is None else f"{figure:.1f}"


def texts(cell: Cell) -> tuple[str, str]:
    """Top-1 with its deviation and number of seeds, and top-5."""
    return cell.text(), in_per_cent(cell.row.top5) if cell.row else ""
