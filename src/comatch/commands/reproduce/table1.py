"""The paper's table 1, accuracy on CIFAR-10 and STL-10, and ours beside it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comatch.api import Settings
from comatch.commands import reproduce as reproduction
from comatch.commands.reproduce import Cell, Group, paper
from comatch.config import require

NAMES = {"cifar10": "CIFAR-10", "stl10": "STL-10"}


@dataclass(frozen=True)
class Table1:
    """A column for each data set and number of labels, in each a cell for each method."""

    path: Path
    columns: list[Group]
    remarks: list[str]  # runs that were met and do not count

    @property
    def methods(self) -> list[str]:
        return [cell.method for cell in self.columns[0].cells]

    def titles(self) -> list[str]:
        return [f"{named(column)}, {labels_of(column):,} labels" for column in self.columns]

    def rows(self) -> list[tuple[str, list[str], list[str]]]:
        """For each method, the paper's figures and ours, column by column."""
        return [
            (
                method,
                [str(printed(column.cells[i]) or "") for column in self.columns],
                [column.cells[i].text() for column in self.columns],
            )
            for i, method in enumerate(self.methods)
        ]

    def markdown(self, settings: Settings) -> str:
        return reproduction.page(
            1,
            self.titles(),
            self.rows(),
            paper.TABLE1_MADE,
            self.columns,
            settings,
            remarks=self.remarks,
        )

    def records(self) -> list[dict[str, Any]]:
        return [
            {
                "data": cell.recipe.data,
                "labels": cell.recipe.labels,
                "method": cell.method,
                "paper_mean": reproduction.share(figure and figure.mean),
                "paper_std": reproduction.share(figure and figure.std),
                **reproduction.cell_record(cell),
            }
            for column in self.columns
            for cell, figure in ((cell, printed(cell)) for cell in column.cells)
        ]

    def publish(self, settings: Settings) -> None:
        reproduction.publish(self.path, "table1", self.markdown(settings), self.records())


def table1(
    *,
    labels: Sequence[int] = paper.TABLE1_LABELS,
    stl10: bool = False,
    methods: Sequence[str] = paper.TABLE1_METHODS,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    recipe: str = "cifar10",
    steps: int | None = None,
    data_dir: str | Path | None = None,
    out: str | Path = "runs/table1",
    others: Sequence[Path] = (),
    train: bool = True,
    device: str = "auto",
    settings: Settings = (),
    progress: bool = True,
) -> Table1:
    """Fills the table from the runs in `out` and below `others`; with `train`, runs the rest.

    Each column is a comparison of its own, in a folder of `out` such as cifar10-40.
    """
    path = Path(out)
    wanted = [(recipe, count) for count in dict.fromkeys(labels)]
    wanted += [("stl10", 1000)] if stl10 else []
    require(bool(wanted), "the table has no column: give --labels, or --stl10")
    columns = [
        reproduction.arrange(
            path,
            recipe=name,
            labels=count,
            methods=methods,
            seeds=seeds,
            steps=steps,
            data_dir=data_dir,
            device=device,
            settings=settings,
            progress=progress,
        )
        for name, count in wanted
    ]
    table = Table1(path, columns, reproduction.fill(columns, others))
    if train:
        reproduction.train(columns, lambda: table.publish(settings))
    else:
        table.publish(settings)
    return table


def labels_of(column: Group) -> int:
    return int(column.options["labels"])


def named(column: Group) -> str:
    data = column.cells[0].recipe.data
    return NAMES.get(data, data)


def printed(cell: Cell) -> paper.Printed | None:
    """The paper's figure for a cell, if its table has one."""
    labels = cell.recipe.labels
    known = paper.TABLE1.get((cell.recipe.data, int(labels or 0)), {})
    return known.get(cell.method)
