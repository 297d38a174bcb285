"""The paper's table 2, accuracy on ImageNet with a hundredth or a tenth of the labels, and ours."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from comatch.api import Settings
from comatch.commands import compare as comparison
from comatch.commands import reproduce as reproduction
from comatch.commands.report import runs
from comatch.commands.reproduce import Cell, Group, paper
from comatch.config import check_name, require
from comatch.training.init_weights import check_there

RECIPES = {1: "imagenet-1pct", 10: "imagenet-10pct"}  # by share of the labels in per cent
PRETRAINED = "MoCo v2"


class Column(NamedTuple):
    """One share of the labels, from one beginning."""

    share: int
    start: str  # "", or what was pre-trained
    group: Group

    def printed(self, method: str) -> paper.Tops:
        return paper.TABLE2[self.share].get((self.start, method), paper.Tops(None, None))


@dataclass(frozen=True)
class Table2:
    """A line for each beginning and method, and for each share top-1 and top-5."""

    path: Path
    columns: list[Column]
    remarks: list[str]  # runs that were met and do not count

    @property
    def groups(self) -> list[Group]:
        return [column.group for column in self.columns]

    def titles(self) -> list[str]:
        shares = dict.fromkeys(column.share for column in self.columns)
        return [f"{share} %, {top}" for share in shares for top in ("top-1", "top-5")]

    def rows(self) -> list[tuple[str, list[str], list[str]]]:
        """For each line the paper's figures and ours, column by column."""
        found = []
        for start in dict.fromkeys(column.start for column in self.columns):
            columns = [column for column in self.columns if column.start == start]
            for i, cell in enumerate(columns[0].group.cells):
                name = f"{start}, then {cell.method}" if start else cell.method
                theirs = [per_cent(t) for column in columns for t in column.printed(cell.method)]
                ours = [text for column in columns for text in texts(column.group.cells[i])]
                found.append((name, theirs, ours))
        return found

    def markdown(self, settings: Settings) -> str:
        return reproduction.page(
            2,
            self.titles(),
            self.rows(),
            paper.TABLE2_MADE,
            self.groups,
            settings,
            more=self.beginnings(),
            remarks=self.remarks,
        )

    def beginnings(self) -> list[str]:
        """What the pre-trained runs began from."""
        return list(
            dict.fromkeys(
                f"- {column.start}: {column.group.cells[0].recipe.init}"
                for column in self.columns
                if column.start
            )
        )

    def records(self) -> list[dict[str, Any]]:
        return [
            {
                "share": column.share,
                "init": cell.recipe.init or "",
                "data": cell.recipe.data,
                "labels": cell.recipe.labels,
                "method": cell.method,
                "paper_top1": reproduction.share(column.printed(cell.method).top1),
                "paper_top5": reproduction.share(column.printed(cell.method).top5),
                **reproduction.cell_record(cell),
                "top5": " ".join(map(str, cell.row.top5)) if cell.row else "",
            }
            for column in self.columns
            for cell in column.group.cells
        ]

    def publish(self, settings: Settings) -> None:
        reproduction.publish(self.path, "table2", self.markdown(settings), self.records())


def table2(
    data: str | Path,
    *,
    shares: Sequence[int] = tuple(RECIPES),
    methods: Sequence[str] = paper.TABLE2_METHODS,
    init: str | None = None,
    seeds: Sequence[int] = (0,),
    steps: int | None = None,
    out: str | Path = "runs/table2",
    others: Sequence[Path] = (),
    train: bool = True,
    device: str = "auto",
    settings: Settings = (),
    progress: bool = True,
) -> Table2:
    """Fills the table from the runs in `out` and below `others`; with `train`, runs the rest.

    `data` is the folder of ImageNet. With `init`, the weights of MoCo v2, each method is also
    trained from those. Each share and beginning is a comparison of its own, in a folder of `out`.
    """
    path = Path(out)
    require(bool(shares), "the table has no column: give --shares")
    for share in shares:
        check_name(str(share), [str(known) for known in RECIPES], "share of the labels")
    require("init" not in map(comparison.key_of, settings), "--set init: this table has --init")
    check_there(init)
    starts = {"": settings}
    if init is not None:
        starts[PRETRAINED] = reproduction.variant(settings, "init", init)
    columns = [
        Column(
            share,
            start,
            reproduction.arrange(
                path,
                f"{share}pct{'-pretrained' if start else ''}",
                data=data,
                recipe=RECIPES[share],
                labels=None,
                methods=methods,
                seeds=seeds,
                steps=steps,
                data_dir=None,
                device=device,
                settings=its_settings,
                progress=progress,
            ),
        )
        for start, its_settings in starts.items()
        for share in dict.fromkeys(shares)
    ]
    groups = [column.group for column in columns]
    table = Table2(path, columns, reproduction.fill(groups, others))
    if train:
        reproduction.train(groups, lambda: table.publish(settings))
    else:
        table.publish(settings)
    return table


def per_cent(figure: float | None) -> str:
    return "" if figure is None else f"{figure:.1f}"


def texts(cell: Cell) -> tuple[str, str]:
    """Top-1 with all that belongs to it, and top-5."""
    return cell.text(), runs.in_per_cent(cell.row.top5) if cell.row else ""
