"""The style that all figures share, and saving them as PNG and SVG.

Colours are those of Okabe and Ito, which people with any colour vision can tell apart. Nothing
depends on a screen, and the same numbers give the same file.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from comatch.errors import UserError
from comatch.files import atomic_writer

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
GREY = "#666666"
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "legend.frameon": False,
    "svg.hashsalt": "comatch",  # otherwise the identifiers in an SVG are random
}


def save(figure: Figure, stem: Path, kinds: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Write STEM.png and STEM.svg, or one of them; return their paths."""
    if stem.suffix in (".png", ".svg"):
        stem = stem.with_suffix("")
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in kinds]
    for path in paths:
        drawn = io.BytesIO()
        undated = {"Date": None} if path.suffix == ".svg" else None
        with matplotlib.rc_context(STYLE):
            figure.savefig(drawn, format=path.suffix[1:], dpi=200, metadata=undated)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_writer(path) as file:
                file.write(drawn.getvalue())
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from None
    return paths
