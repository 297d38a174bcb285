"""The paper's ablations: one hyper-parameter at a time, the others at the recipe's values.

The paper varies them on ImageNet, where T = 0.3, lambda_ctr = 10 and K = 30,000. T and alpha lie
between 0 and 1, so the same values make sense on other data. lambda_ctr and K do not: they are
tried at multiples of the recipe's values, or at any values that are asked for. The recipe's own
values are one setting, trained once and shown in every panel.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from comatch import recipes
from comatch.commands.reproduce import (
    Cell,
    Experiment,
    Group,
    PaperTable,
    cell_record,
    make_group,
    paper,
    share,
    with_setting,
)
from comatch.config import check_name, labels_text, require
from comatch.config import replace as with_values
from comatch.device import choose_device
from comatch.errors import UserError
from comatch.planning import Request
from comatch.tables import to_markdown
from comatch.training.recipe import Recipe


@dataclass(frozen=True)
class Parameter:
    """A hyper-parameter, and the values or multiples of the recipe's value that are tried."""

    setting: str
    sign: str  # in the paper, as matplotlib writes it
    says: str
    values: tuple[float, ...] = ()
    multiples: tuple[float, ...] = ()

    @property
    def letter(self) -> str:
        """The paper's letter, or the name of the setting if it is a word."""
        letter = self.sign.strip("$")
        return letter if len(letter) == 1 else self.setting

    @property
    def name(self) -> str:
        return self.setting if self.letter == self.setting else f"{self.setting} ({self.letter})"

    def tried(self, default: Any) -> list[Any]:
        """The recipe's value and the others, in order."""
        others = [default * factor for factor in self.multiples] + list(self.values)
        return sorted({default, *(type(default)(round(value, 6)) for value in others)})

    def asked(self, default: Any, values: Sequence[str], recipe: Recipe) -> list[Any]:
        """The recipe's value and these, which must be values that the setting takes."""
        known = {default}
        for text in values:
            option = f"--values {self.letter}={text}"
            try:
                value = type(default)(text.replace("_", ""))
                require(math.isfinite(value), f"{self.setting} takes a finite number")
                with_values(recipe, **{self.setting: value})
            except ValueError:
                kind = "a whole number" if isinstance(default, int) else "a number"
                raise UserError(f"{option}: {self.setting} takes {kind}") from None
            except UserError as error:
                raise UserError(f"{option}: {error}") from None
            known.add(value)
        return sorted(known)


TRIED = (
    Parameter("edge_threshold", "$T$", "threshold of the graph", (0.2, 0.4, 0.6, 0.8, 1.0)),
    Parameter(
        "lambda_ctr",
        r"$\lambda_{ctr}$",
        "weight of the contrastive loss",
        multiples=(0.2, 0.5, 1.0, 2.0, 5.0),
    ),
    Parameter(
        "alpha", r"$\alpha$", "weight of the model's prediction", (0.8, 0.85, 0.9, 0.95, 1.0)
    ),
    Parameter("bank_size", "$K$", "size of the memory bank", multiples=(0.2, 0.5, 1.0, 2.0)),
)
PARAMETERS = {parameter.setting: parameter for parameter in TRIED}
PAPER_NAMES = {"T": "edge_threshold", "lambda": "lambda_ctr", "K": "bank_size"}
SEEDS = (0, 1, 2)
CHOSEN = (
    "The values are ours, since the paper's text names only some of its own: T and alpha near "
    "those, lambda_ctr and K at multiples of the recipe's value."
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
    default: bool  # whether it is the recipe's own
    cell: Cell

    @property
    def key(self) -> tuple[str, float]:
        return self.parameter.setting, self.value


@dataclass
class Ablations(PaperTable):
    """A panel for each hyper-parameter, and in it a point for each value."""

    name = "ablations"
    points: list[Point]  # panel by panel, values rising
    variants: list[Group]  # the recipe's own values first
    asked: Sequence[str] = field(default=())  # settings whose values were given

    @property
    def groups(self) -> list[Group]:
        return self.variants

    def change(self, point: Point) -> float | None:
        """Accuracy minus that of the recipe's own values, over the seeds that both have."""
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

    def markdown(self) -> str:
        recipe = self.groups[0].cells[0].recipe
        data, figure = Path(recipe.dataset.data).name, "![accuracy at each value](ablations.svg)"
        varied = dict.fromkeys(point.parameter.setting for point in self.points)
        says = [f"- {setting}: {paper.ABLATION_SAYS[setting]}" for setting in varied]
        given = f" Values given on the command line: {', '.join(self.asked)}." if self.asked else ""
        return "\n\n".join(
            [
                f"# One hyper-parameter at a time: {recipe.method.method} on {data}",
                to_markdown([COLUMNS, *self.rows()]),
                *([figure] if self.drawable else []),
                f"{OURS} {CHOSEN}{given}",
                f"{paper.ABLATION_MADE} It says:",
                "\n".join(says),
                f"Ours, with {labels_text(recipe.dataset.labels)} labels:",
                self.origins(),
                *self.closing(),
            ]
        )

    def records(self) -> list[dict[str, Any]]:
        return [
            {
                "parameter": point.parameter.setting,
                "value": point.value,
                "default": point.default,
                "data": point.cell.recipe.dataset.data,
                "labels": point.cell.recipe.dataset.labels,
                "method": point.cell.method,
                **cell_record(point.cell),
                "change": self.change(point),
                "paper_change": share(paper.ABLATION_CHANGES.get(point.key)),
            }
            for point in self.points
        ]

    @property
    def drawable(self) -> bool:
        return any(point.cell.runs for point in self.points)

    def draw(self) -> None:
        """Draw the figure as PNG and SVG, if there is a run."""
        if not self.drawable:
            return
        from comatch.commands.reproduce import figures  # matplotlib is slow to import
        from comatch.figures import save

        panels = []
        for parameter in dict.fromkeys(point.parameter for point in self.points):
            mine = [point for point in self.points if point.parameter == parameter]
            values = [point.value for point in mine]
            panels.append(
                figures.Panel(
                    f"{parameter.sign}: {parameter.says}",
                    values,
                    [mean_and_deviation(point.cell) for point in mine],
                    next(point.value for point in mine if point.default),
                    logarithmic=bool(parameter.multiples) and min(values) > 0,
                )
            )
        save(figures.ablations(panels), self.path / "ablations")


COLUMNS = ("setting", "value", "accuracy %", "change", "paper's change")


def ablations(
    experiment: Experiment | None = None,
    *,
    parameters: Sequence[str] | None = None,
    values: Mapping[str, Sequence[str]] | None = None,
) -> Ablations:
    """Vary each of the parameters, the others at the recipe's values, and draw the figure.

    `values` has the values to try by parameter, as texts. By default the parameters are those, and
    all without `values`.
    """
    experiment = experiment or Experiment()
    asked = {setting_name(name): texts for name, texts in (values or {}).items()}
    names = (list(asked) or list(PARAMETERS)) if parameters is None else parameters
    chosen = [PARAMETERS[name] for name in dict.fromkeys(map(setting_name, names))]
    require(bool(chosen), f"name a parameter at least: {', '.join(PARAMETERS)}")
    for name in asked:
        parameter = PARAMETERS[name]
        require(parameter in chosen, f"--values {parameter.letter}: not among the parameters")
    request, out = with_recipe(experiment.request), experiment.out or Path("runs/ablations")
    methods = [recipes.get(request.recipe or "").method.method]
    seeds = SEEDS if experiment.seeds is None else experiment.seeds
    base = make_group(out, request, methods, seeds, "default")
    groups, found = [base], []
    own = base.cells[0].recipe
    for parameter in chosen:
        default, texts = getattr(own.method, parameter.setting), asked.get(parameter.setting)
        tried = parameter.asked(default, texts, own) if texts else parameter.tried(default)
        for value in tried:
            group = base
            if value != default:
                varied = with_setting(request, parameter.setting, value)
                name = f"{parameter.setting}-{value}"
                group = make_group(out, varied, methods, seeds, name)
                groups.append(group)
            found.append(Point(parameter, value, group is base, group.cells[0]))
    table = Ablations(experiment, out, found, groups, list(asked))
    try:
        table.complete()
    finally:  # an interrupted call draws what there is
        table.draw()
    return table


def with_recipe(request: Request) -> Request:
    """The request with data and recipe named; by default CIFAR-10."""
    if request.data is None and request.recipe is None:
        request = replace(request, data="cifar10")
    gpu = choose_device(request.device).type == "cuda"
    return replace(request, recipe=request.recipe or recipes.default_for(str(request.data), gpu))


def parse_values(assignments: Sequence[str]) -> dict[str, list[str]]:
    """`["K=2560,10000"]` as {"K": ["2560", "10000"]}."""
    values: dict[str, list[str]] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        texts = [part.strip() for part in text.split(",") if part.strip()]
        require(bool(equals and texts), f"--values {assignment}: write it as in K=2560,10000")
        values.setdefault(setting_name(name.strip()), []).extend(texts)
    return values


def setting_name(name: str) -> str:
    """The name of the setting, for that or for the paper's letter."""
    name = PAPER_NAMES.get(name, name)
    check_name(name, PARAMETERS, "parameter")
    return name


def mean_and_deviation(cell: Cell) -> tuple[float, float] | None:
    """As shares of 1. The deviation of a single run is NaN, so it has no error bar."""
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
