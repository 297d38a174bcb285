"""The paper's ablations: one hyper-parameter at a time, the others at the recipe's values.

The paper varies them on ImageNet, where T = 0.3, lambda_ctr = 10 and K = 30,000. T and alpha are
shares, so the same values mean something on other data. The weight and the memory's size do not:
they are tried as multiples of the recipe's. The recipe's own values are one setting, trained once
and shown in every panel.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comatch import api, recipes
from comatch.api import Settings
from comatch.commands import reproduce as reproduction
from comatch.commands.report import runs
from comatch.commands.reproduce import Cell, Group, paper
from comatch.config import check_name, labels_text, require


@dataclass(frozen=True)
class Parameter:
    """A hyper-parameter, and what it is tried at: values, or multiples of the recipe's."""

    setting: str
    sign: str  # in the paper, as matplotlib writes it
    says: str
    values: tuple[float, ...] = ()
    multiples: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        letter = self.sign.strip("$")
        return f"{self.setting} ({letter})" if len(letter) == 1 else self.setting

    def tried(self, default: Any) -> list[Any]:
        others = [default * factor for factor in self.multiples] + list(self.values)
        return sorted({default, *(type(default)(round(value, 6)) for value in others)})


TRIED = (
    Parameter("edge_threshold", "$T$", "graph's threshold", (0.2, 0.4, 0.6, 0.8, 1.0)),
    Parameter(
        "lambda_ctr", r"$\lambda_{ctr}$", "contrast's weight", multiples=(0.2, 0.5, 1.0, 2.0, 5.0)
    ),
    Parameter("alpha", r"$\alpha$", "prediction's weight", (0.8, 0.85, 0.9, 0.95, 1.0)),
    Parameter("bank_size", "$K$", "memory's size", multiples=(0.2, 0.5, 1.0, 2.0)),
)
PARAMETERS = {parameter.setting: parameter for parameter in TRIED}
PAPER_NAMES = {"T": "edge_threshold", "lambda": "lambda_ctr", "K": "bank_size"}
CHOSEN = (
    "The values are ours, for the paper's text names only some of its own: T and alpha around "
    "those, lambda_ctr and K as multiples of the recipe's, since ImageNet's mean nothing elsewhere."
)
OURS = (
    "Accuracy in per cent, mean ± sample deviation over n seeds, at the last checkpoint, never the "
    "best one. Changes are in points, over the seeds that both have."
)


@dataclass(frozen=True)
class Point:
    """One value of one hyper-parameter."""

    parameter: Parameter
    value: float
    default: bool  # it is the recipe's own
    cell: Cell

    @property
    def key(self) -> tuple[str, float]:
        return self.parameter.setting, self.value


@dataclass(frozen=True)
class Ablations:
    path: Path
    points: list[Point]  # panel by panel, values rising
    groups: list[Group]  # the recipe's own values first
    remarks: list[str]

    def change(self, point: Point) -> float | None:
        """Accuracy beside that of the recipe's own values, over the seeds that both have."""
        ours, recipes_own = accuracies(point.cell), accuracies(self.groups[0].cells[0])
        both = [ours[seed] - recipes_own[seed] for seed in ours if seed in recipes_own]
        return sum(both) / len(both) if both and not point.default else None

    def rows(self) -> list[list[str]]:
        """Setting, value, accuracy, change in points, the paper's change in points."""
        return [
            [
                point.parameter.name,
                f"{point.value:,}" + (" (recipe's)" if point.default else ""),
                point.cell.text(),
                points(self.change(point)),
                points_of_paper(point),
            ]
            for point in self.points
        ]

    def markdown(self, settings: Settings) -> str:
        cells = [group.cells[0] for group in self.groups]
        recipe = cells[0].recipe
        data, figure = Path(recipe.data).name, "![accuracy at each value](ablations.svg)"
        varied = dict.fromkeys(point.parameter.setting for point in self.points)
        says = [f"- {setting}: {paper.ABLATION_SAYS[setting]}" for setting in varied]
        return "\n\n".join(
            [
                f"# One hyper-parameter at a time: {recipe.method.method} on {data}",
                runs.ruled([COLUMNS, *self.rows()]),
                *([figure] if self.drawable else []),
                f"{OURS} {CHOSEN}",
                f"{paper.ABLATION_MADE} It says:",
                "\n".join(says),
                f"Ours, with {labels_text(recipe.labels)} labels:",
                reproduction.origins(cells, settings),
                *(f"{line}." for line in (*self.remarks, *reproduction.failures(self.groups))),
            ]
        )

    def records(self) -> list[dict[str, Any]]:
        return [
            {
                "parameter": point.parameter.setting,
                "value": point.value,
                "default": point.default,
                "data": point.cell.recipe.data,
                "labels": point.cell.recipe.labels,
                "method": point.cell.method,
                **reproduction.cell_record(point.cell),
                "change": self.change(point),
                "paper_change": reproduction.share(paper.ABLATION_CHANGES.get(point.key)),
            }
            for point in self.points
        ]

    def publish(self, settings: Settings) -> None:
        reproduction.publish(self.path, "ablations", self.markdown(settings), self.records())

    @property
    def drawable(self) -> bool:
        return any(point.cell.runs for point in self.points)

    def draw(self) -> None:
        """The figure as PNG and SVG, a panel for each hyper-parameter; none without any run."""
        if not self.drawable:
            return
        from comatch.commands.report import figures  # matplotlib is slow to import

        panels = []
        for parameter in dict.fromkeys(point.parameter for point in self.points):
            mine = [point for point in self.points if point.parameter == parameter]
            panels.append(
                figures.Panel(
                    f"{parameter.sign}: {parameter.says}",
                    [point.value for point in mine],
                    [row_figures(point.cell) for point in mine],
                    next(point.value for point in mine if point.default),
                    logarithmic=bool(parameter.multiples),
                )
            )
        figures.save(figures.ablations(panels), self.path / "ablations")


COLUMNS = ("setting", "value", "accuracy %", "change", "paper's change")


def ablations(
    data: str | Path | None = None,
    *,
    parameters: Sequence[str] = tuple(PARAMETERS),
    labels: int | float | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    recipe: str | None = None,
    steps: int | None = None,
    data_dir: str | Path | None = None,
    out: str | Path = "runs/ablations",
    others: Sequence[Path] = (),
    train: bool = True,
    device: str = "auto",
    settings: Settings = (),
    progress: bool = True,
) -> Ablations:
    """Varies each of the parameters, the others at the recipe's values, and draws the figure."""
    path = Path(out)
    chosen = [PARAMETERS[known(name)] for name in dict.fromkeys(parameters)]
    require(bool(chosen), f"name a parameter at least: {', '.join(PARAMETERS)}")
    if data is None and recipe is None:
        data = "cifar10"
    name = recipe or recipes.default_for(str(data), api.choose_device(device).type == "cuda")
    options: dict[str, Any] = {
        "data": data,
        "recipe": name,
        "labels": labels,
        "methods": [recipes.get(name).method.method],
        "seeds": seeds,
        "steps": steps,
        "data_dir": data_dir,
        "device": device,
        "progress": progress,
    }
    base = reproduction.arrange(path, "default", settings=settings, **options)
    groups, found = [base], []
    for parameter in chosen:
        default = getattr(base.cells[0].recipe.method, parameter.setting)
        for value in parameter.tried(default):
            group = base
            if value != default:
                changed = reproduction.variant(settings, parameter.setting, value)
                name = f"{parameter.setting}-{value}"
                group = reproduction.arrange(path, name, settings=changed, **options)
                groups.append(group)
            found.append(Point(parameter, value, group is base, group.cells[0]))
    result = Ablations(path, found, groups, reproduction.fill(groups, others))
    try:
        if train:
            reproduction.train(groups, lambda: result.publish(settings))
        else:
            result.publish(settings)
    finally:  # whoever stops it gets a figure of what is there
        result.draw()
    return result


def known(name: str) -> str:
    """The setting's name; the paper's letter will do."""
    name = PAPER_NAMES.get(name, name)
    check_name(name, PARAMETERS, "parameter")
    return name


def row_figures(cell: Cell) -> tuple[float, float] | None:
    """Mean and deviation as shares of 1; one run has no deviation, and so no bar."""
    row = cell.row
    if row is None or row.mean is None:
        return None
    return row.mean, math.nan if row.std is None else row.std


def accuracies(cell: Cell) -> dict[int, float]:
    return dict(zip(cell.row.seeds, cell.row.top1, strict=True)) if cell.row else {}


def points(change: float | None) -> str:
    return "" if change is None else f"{100 * change:+.2f}"


def points_of_paper(point: Point) -> str:
    change = paper.ABLATION_CHANGES.get(point.key)
    return "" if change is None else f"{change:+.1f}"
