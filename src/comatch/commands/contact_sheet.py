"""What a classifier made of images, to be looked at: of each class the surest and the least sure.

The surest show what a class is taken to be; the least sure, where it ends.
"""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from comatch.commands.report.figures import GREY, STYLE
from comatch.data.images import ImageError, read_image

EACH = 6  # images at each end of a class
CLASSES = 25  # on a sheet at the most: those that most images were given
SIDE = 128  # pixels of an image on it
NAME, GAP, LINE = 2.2, 0.5, 1.3  # room for a class's name, between the ends, of a line: in images


class Found(NamedTuple):
    """An image, what it is taken for, and how sure that is."""

    path: Path
    label: str
    probability: float


class Line(NamedTuple):
    """A class: how many images it was given, and some of them."""

    label: str
    images: int
    surest: list[Found]
    least: list[Found]  # the least sure comes last


def lines(found: Sequence[Found]) -> list[Line]:
    """The classes by how many images they were given, each image shown once."""
    by_class: dict[str, list[Found]] = {}
    for one in sorted(found, key=lambda one: -one.probability):
        by_class.setdefault(one.label, []).append(one)
    most = sorted(by_class.items(), key=lambda item: (-len(item[1]), item[0]))
    return [Line(label, len(those), those[:EACH], those[EACH:][-EACH:]) for label, those in most]


def draw(found: Sequence[Found]) -> Figure:
    """One line a class: the surest at the left, the least sure at the right."""
    every = lines(found)
    shown = every[:CLASSES]
    width, height = NAME + 2 * EACH + GAP + 0.1, LINE * len(shown) + 0.8
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(figsize=(0.75 * width, 0.75 * height))
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set(xlim=(0, width), ylim=(height, 0), aspect="equal")
        axes.set_axis_off()
        second = NAME + EACH + GAP
        for x, head in ((NAME, "surest"), (second, "least sure")):
            axes.text(x, 0.45, head, weight="bold")
        for number, line in enumerate(shown):
            y = 0.6 + LINE * number
            name = textwrap.wrap(line.label, 18, max_lines=3, placeholder="...")
            said = "\n".join([*name, f"{line.images:,}"])
            axes.text(0.2, y + 0.5, said, va="center", parse_math=False)
            for x, some in ((NAME, line.surest), (second, line.least)):
                for place, one in enumerate(some):
                    put(axes, x + place, y, one)
        if len(every) > len(shown):
            more = f"and {len(every) - len(shown)} more classes"
            axes.text(0.2, height - 0.1, more, color=GREY)
    return figure


def put(axes: Axes, x: float, y: float, one: Found) -> None:
    """An image with its probability below; one that is gone since leaves its place empty."""
    looks: dict[str, Any] = {"ha": "center", "va": "top", "fontsize": 8, "color": GREY}
    try:
        pixels = read_image(one.path, SIDE).transpose(1, 2, 0)
    except ImageError:
        axes.text(x + 0.47, y + 0.4, "not there", **looks)
        return
    axes.imshow(pixels, extent=(x, x + 0.94, y + 0.94, y), interpolation="nearest", zorder=0)
    axes.text(x + 0.47, y + 0.98, f"{one.probability:.1%}", **looks)
