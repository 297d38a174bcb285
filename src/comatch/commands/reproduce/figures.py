"""Figures of the paper, drawn from runs: training curves and ablations."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from comatch.commands.reproduce.curves import Curve, longest, same_seeds
from comatch.figures import COLOURS, GREY, STYLE

DASHES = ("-", "--", ":", "-.")  # for more than seven lines
TITLES = {
    "pseudo_accuracy": "Accuracy of confident pseudo-labels",
    "confident": "Share of confident pseudo-labels",
    "top1": "Test accuracy",
}


@dataclass(frozen=True)
class Panel:
    """One hyper-parameter: its values, and mean and deviation of the accuracy (0 to 1) at each."""

    title: str
    values: Sequence[float]
    accuracy: Sequence[tuple[float, float] | None]  # None: not run yet
    default: float  # the recipe's own value
    logarithmic: bool = False


def curves(found: Sequence[Curve]) -> Figure:
    """The paper's figure: accuracy and share of confident pseudo-labels, and test accuracy.

    A metric that no run has gets no panel: supervised training has no pseudo-labels.
    """
    last = longest(found)
    thousands = last >= 2000
    metrics = [metric for metric in TITLES if any(metric in one.lines for one in found)]
    width = 11 * len(metrics) / len(TITLES)
    letters, handle = int(11 * width), 6  # of a line of the legend, and of its dash
    names = [textwrap.fill(curve.label, letters - handle) for curve in found]
    widest = max(len(part) for name in names for part in name.splitlines())
    columns = max(1, min(len(names), letters // (widest + handle)))
    broken = sum(name.count("\n") for name in names)
    legend_lines = -(-len(names) // columns) + broken + 1
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, 3.4 + 0.22 * legend_lines), layout="constrained")
        panels = figure.subplots(1, len(metrics), sharex=True, squeeze=False)[0]
        for axes, metric in zip(panels, metrics, strict=True):
            for number, curve in enumerate(found):
                draw(axes, number, curve, metric)
            axes.set_title(TITLES[metric], loc="left")
            axes.set_xlabel("steps (thousands)" if thousands else "steps")
            if thousands:
                axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step / 1000:g}"))
            axes.set_xlim(0, 1.02 * last)
            per_cent(axes)
            if metric == "confident":
                axes.set_ylim(-0.02, 1.02)
        handles, _ = panels[0].get_legend_handles_labels()
        figure.legend(
            handles, names, loc="outside lower center", ncols=columns, title=seeds_of(found)
        )
    return figure


def draw(axes: Axes, number: int, curve: Curve, metric: str) -> None:
    """Draw a line with its band. It has a legend entry even where the metric is missing."""
    line = curve.lines.get(metric)
    colour = COLOURS[number % len(COLOURS)]
    dash = DASHES[number // len(COLOURS) % len(DASHES)]
    steps, mean = (line.steps, line.mean) if line else ([], [])
    dot = "o" if len(steps) == 1 else ""  # a line of one point is invisible
    axes.plot(steps, mean, dash, color=colour, label=curve.label, linewidth=1.6, marker=dot)
    if line and len(curve.seeds) > 1:
        band = [(m, std or 0.0) for m, std in zip(mean, line.std, strict=True)]
        low, high = [max(0.0, m - s) for m, s in band], [min(1.0, m + s) for m, s in band]
        axes.fill_between(steps, low, high, color=colour, alpha=0.18, linewidth=0)


def seeds_of(found: Sequence[Curve]) -> str | None:
    """The legend's title: `seed 0`, or that lines are means over seeds."""
    if all(len(curve.seeds) == 1 for curve in found):
        return f"seed {found[0].seeds[0]}" if same_seeds(found) else None
    count = f"{len(found[0].seeds)} seeds" if same_seeds(found) else "seeds"
    return f"line: mean over {count}; band: deviation"


def ablations(panels: Sequence[Panel]) -> Figure:
    """One panel for each hyper-parameter: accuracy at each value, the recipe's own marked."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(max(5.0, 2.9 * len(panels)), 3.2), layout="constrained")
        all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, panel in zip(all_axes, panels, strict=True):
            measured = zip(panel.values, panel.accuracy, strict=True)
            points = [(value, *known) for value, known in measured if known is not None]
            if points:
                values, means, stds = zip(*points, strict=True)
                style: dict[str, Any] = {"color": COLOURS[0], "linewidth": 1.6, "capsize": 3}
                axes.errorbar(
                    values, means, yerr=stds, marker="o", label="mean ± deviation", **style
                )
            else:
                axes.text(0.5, 0.5, "not run", transform=axes.transAxes, ha="center", color=GREY)
            axes.axvline(panel.default, color=COLOURS[1], linestyle=":", label="the recipe's value")
            axes.set_title(panel.title, loc="left")
            axes.set_xscale("log" if panel.logarithmic else "linear")
            axes.set_xlim(*limits(panel))
            axes.xaxis.set_major_locator(FixedLocator(list(panel.values)))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
            axes.margins(y=0.15)
        per_cent(all_axes[0])
        all_axes[0].set_ylabel("test accuracy")
        named: dict[str, Any] = {}
        for axes in all_axes:
            handles, names = axes.get_legend_handles_labels()
            named |= dict(zip(names, handles, strict=True))
        figure.legend(list(named.values()), list(named), loc="outside lower center", ncols=2)
    return figure


def limits(panel: Panel) -> tuple[float, float]:
    """All values of the panel with a margin, also those not run yet."""
    low, high = min(panel.values), max(panel.values)
    if panel.logarithmic:
        room = (high / low) ** 0.08
        return low / room, high * room
    return low - 0.08 * (high - low), high + 0.08 * (high - low)


def per_cent(axes: Axes) -> None:
    """Label shares as per cent; the axis ends at 100 % or a little above."""
    axes.yaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g} %"))
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, -0.02), min(high, 1 + 0.02 * (high - low)))
