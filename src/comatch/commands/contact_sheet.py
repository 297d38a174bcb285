"""Sheets of images, as one figure.

A sheet of predictions has for each class the images predicted with most and least confidence. The
most confident ones show what the classifier takes the class to be, the least confident ones where
it is uncertain. A sheet of names has images with the names of their files.
"""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from comatch import figures
from comatch.data.images import ImageError, read_image
from comatch.errors import printable
from comatch.figures import GREY, STYLE

EACH = 6  # most confident images of a class, and least confident ones
CLASSES = 25  # most classes on a sheet: those with most images
SIDE = 141  # pixels of an image on the sheet: what it has at the figure's resolution
NAME, GAP, LINE = 2.5, 0.5, 1.3  # widths of name and gap, height of a row, in images
COLUMNS, NAME_WIDTH, NAME_LINE, MOST_NAMES = 8, 1.6, 1.4, 200  # of a sheet of names
JPEG = (".jpg", ".jpeg")


class Found(NamedTuple):
    """An image with its predicted class and the probability of that class."""

    path: Path
    label: str
    probability: float


class Line(NamedTuple):
    """A class: how many images were predicted as it, and some of them."""

    label: str
    images: int
    most: list[Found]
    least: list[Found]  # the least confident comes last


def lines(found: Sequence[Found]) -> list[Line]:
    """The classes, those with most images first; no image appears twice."""
    by_class: dict[str, list[Found]] = {}
    for one in sorted(found, key=lambda one: -one.probability):
        by_class.setdefault(one.label, []).append(one)
    largest = sorted(by_class.items(), key=lambda item: (-len(item[1]), item[0]))
    return [Line(label, len(those), those[:EACH], those[EACH:][-EACH:]) for label, those in largest]


def draw(found: Sequence[Found]) -> Figure:
    """One row a class: the most confident images on the left, the least confident on the right."""
    every = lines(found)
    shown = every[:CLASSES]
    width, height = NAME + 2 * EACH + GAP + 0.1, LINE * len(shown) + 0.8
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(figsize=(0.75 * width, 0.75 * height))
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set(xlim=(0, width), ylim=(height, 0), aspect="equal")
        axes.set_axis_off()
        second = NAME + EACH + GAP
        for x, head in ((NAME, "most confident"), (second, "least confident")):
            axes.text(x, 0.45, head, weight="bold")
        for number, line in enumerate(shown):
            y = 0.6 + LINE * number
            name = "\n".join(
                textwrap.wrap(printable(line.label), 18, max_lines=3, placeholder="...")
            )
            count = f"{line.images:,} image{'s' * (line.images != 1)}"
            looks: dict[str, Any] = {"parse_math": False, "linespacing": 1.15}
            axes.text(0.2, y + 0.47, name, va="bottom", weight="bold", **looks)
            axes.text(0.2, y + 0.55, count, va="top", color=GREY, **looks)
            for x, some in ((NAME, line.most), (second, line.least)):
                for place, one in enumerate(some):
                    put(axes, x + place, y, one.path, f"{one.probability:.1%}")
        if len(every) > len(shown):
            more = f"and {len(every) - len(shown)} more classes"
            axes.text(0.2, height - 0.1, more, color=GREY)
    return figure


def draw_names(root: Path, names: Sequence[str]) -> Figure:
    """A grid of images with their number in the list and the name of the file."""
    shown = names[:MOST_NAMES]
    height = NAME_LINE * -(-len(shown) // COLUMNS) + (0.5 if len(shown) < len(names) else 0.1)
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(figsize=(0.75 * (COLUMNS * NAME_WIDTH + 0.2), 0.75 * height))
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set(xlim=(-0.4, COLUMNS * NAME_WIDTH - 0.2), ylim=(height, 0), aspect="equal")
        axes.set_axis_off()
        for number, name in enumerate(shown):
            row, column = divmod(number, COLUMNS)
            text = "\n".join(textwrap.wrap(f"{number + 1}: {name}", 20)[-2:])
            put(axes, column * NAME_WIDTH, 0.1 + row * NAME_LINE, root / name, text)
        if len(shown) < len(names):
            axes.text(0, height - 0.1, f"and {len(names) - len(shown)} more images", color=GREY)
    return figure


def put(axes: Axes, x: float, y: float, path: Path, below: str) -> None:
    """An image with a text below. A file that no longer exists leaves a gap."""
    looks: dict[str, Any] = {"ha": "center", "va": "top", "fontsize": 8, "color": GREY}
    looks["parse_math"] = False  # a file may be called $x$
    try:
        pixels = read_image(path, SIDE).transpose(1, 2, 0)
    except ImageError:
        axes.text(x + 0.47, y + 0.4, "missing", **looks)
        return
    axes.imshow(pixels, extent=(x, x + 0.94, y + 0.94, y), interpolation="nearest", zorder=0)
    axes.text(x + 0.47, y + 0.98, below, **looks)


def save(figure: Figure, path: Path) -> Path:
    """Write the sheet as JPEG if the path ends so, else as PNG; return its path."""
    kind = path.suffix.lower()
    if kind in (*JPEG, ".png"):
        path = path.with_suffix("")
    (saved,) = figures.save(figure, path, [kind[1:] if kind in JPEG else "png"])
    return saved
