"""The paper's table 1: accuracy on CIFAR-10 and STL-10."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
from comatch.config import require

NAMES = {"cifar10": "CIFAR-10", "stl10": "STL-10"}
SEEDS = (0, 1, 2, 3, 4)


@dataclass
class Table1(AccuracyTable):
    """A column for each data set and number of labels, a row for each method."""

    name, number, made = "table1", 1, paper.TABLE1_MADE
    columns: list[Group]

    @property
    def groups(self) -> list[Group]:
        return self.columns

    def titles(self) -> list[str]:
        return [title(column) for column in self.columns]

    def rows(self) -> list[tuple[str, list[str], list[str]]]:
        return [
            (
                method,
                [str(published(column.cells[i]) or "") for column in self.columns],
                [column.cells[i].text() for column in self.columns],
            )
            for i, method in enumerate(self.columns[0].methods)
        ]

    def records(self) -> list[dict[str, Any]]:
        return [
            {
                "data": cell.recipe.dataset.data,
                "labels": cell.recipe.dataset.labels,
                "method": cell.method,
                "paper_mean": share(figure and figure.mean),
                "paper_std": share(figure and figure.std),
                **cell_record(cell),
            }
            for column in self.columns
            for cell, figure in ((cell, published(cell)) for cell in column.cells)
        ]


def table1(
    experiment: Experiment | None = None,
    *,
    labels: Sequence[int] = paper.TABLE1_LABELS,
    stl10: bool = False,
    methods: Sequence[str] = paper.TABLE1_METHODS,
) -> Table1:
    """Fill the table from the runs that exist, and train the others if that is wanted.

    Each column is a comparison in a folder of its own, such as cifar10-40. The request's recipe is
    that of all columns but STL-10's.
    """
    experiment = experiment or Experiment()
    request, out = experiment.request, experiment.out or Path("runs/table1")
    wanted = [(request.recipe or "cifar10", count) for count in dict.fromkeys(labels)]
    wanted += [("stl10", 1000)] if stl10 else []
    require(bool(wanted), "the table has no column: give --labels, or --stl10")
    seeds = SEEDS if experiment.seeds is None else experiment.seeds
    columns = [
        make_group(out, replace(request, recipe=name, labels=count), methods, seeds)
        for name, count in wanted
    ]
    table = Table1(experiment, out, columns)
    table.complete()
    return table


def title(column: Group) -> str:
    data = column.cells[0].recipe.dataset.data
    return f"{NAMES.get(data, data)}, {int(column.request.labels or 0):,} labels"


def published(cell: Cell) -> paper.Printed | None:
    """The paper's figure for a cell, if its table has one."""
    labels = cell.recipe.dataset.labels
    known = paper.TABLE1.get((cell.recipe.dataset.data, int(labels or 0)), {})
    return known.get(cell.method)
