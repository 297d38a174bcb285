"""Numbers of the charts on the page, as places in a drawing. The template makes SVG of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

BINS = 10  # of the reliability diagram
WIDTH, HEIGHT = 320, 180  # of a chart of curves, in its own units
LEFT, RIGHT, TOP, BOTTOM = 44, 16, 8, 24  # its margins
MOST_POINTS = 300  # of a curve


class Bin(NamedTuple):
    """Predictions of similar confidence."""

    low: float
    high: float
    images: int
    confidence: float | None  # mean
    accuracy: float | None


def reliability(confidence: Tensor, right: Tensor) -> list[Bin]:
    """Accuracy of the predictions by their confidence."""
    number = (confidence * BINS).long().clamp(max=BINS - 1)
    found = []
    for b in range(BINS):
        here = number == b
        count = int(here.sum())
        means = [float(v[here].double().mean()) if count else None for v in (confidence, right)]
        found.append(Bin(b / BINS, (b + 1) / BINS, count, *means))
    return found


@dataclass(frozen=True)
class Curve:
    name: str
    points: str  # of a polyline
    last: str  # value


@dataclass(frozen=True)
class Chart:
    """Curves over the steps of a run, with the places and texts of the ticks."""

    title: str
    curves: list[Curve]
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]


TEXTS = {  # what metrics are called in the charts
    "top1": "test",
    "validation_top1": "validation",
    "pseudo_accuracy": "pseudo-labels",
    "confident": "share used",
    "mean_confidence": "mean confidence",
    "calibration_error": "test",
    "validation_calibration_error": "validation",
}
GROUPS = {
    "Accuracy": ("top1", "validation_top1", "pseudo_accuracy"),
    "Pseudo-labels": ("confident", "mean_confidence"),
    "Calibration error": ("calibration_error", "validation_calibration_error"),
}


def training_curves(metrics: Mapping[str, Mapping[int, float]]) -> list[Chart]:
    """A chart of the losses, and one for each group of other metrics that the run has."""
    losses = tuple(name for name in metrics if name.startswith("loss"))
    charts = []
    for title, names in {"Loss": losses, **GROUPS}.items():
        there = {TEXTS.get(n, n): metrics[n] for n in names if len(metrics.get(n, {})) > 1}
        if there:
            charts.append(chart(title, there))
    return charts


def chart(title: str, series: Mapping[str, Mapping[int, float]]) -> Chart:
    steps = [step for values in series.values() for step in values]
    heights = [value for values in series.values() for value in values.values()]
    x_ticks, y_ticks = ticks(0, max(steps)), ticks(min(0.0, *heights), max(heights))
    x_end, (y_low, y_high) = max(steps), (y_ticks[0], y_ticks[-1])

    def x(step: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * step / x_end, 1)

    def y(value: float) -> float:
        share = (value - y_low) / (y_high - y_low)
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share, 1)

    curves = []
    for name, values in series.items():
        places = sorted(values.items())
        places = places[:: -(-len(places) // MOST_POINTS)] + places[-1:]
        points = " ".join(f"{x(step)},{y(value)}" for step, value in places)
        curves.append(Curve(name, points, f"{places[-1][1]:.3g}"))
    return Chart(
        title,
        curves,
        [(x(tick), f"{tick:,.0f}") for tick in x_ticks if tick <= x_end],
        [(y(tick), f"{tick:g}") for tick in y_ticks],
    )


def ticks(low: float, high: float) -> Sequence[float]:
    from matplotlib.ticker import MaxNLocator  # slow to import

    places = MaxNLocator(4).tick_values(low, high if high > low else low + 1)
    return [round(float(place), 10) for place in places]
