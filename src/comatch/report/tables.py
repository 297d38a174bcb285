"""Tables for the terminal."""

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table

from comatch.config import Recipe, settings_of
from comatch.evaluation import Scores
from comatch.report.runs import COLUMNS, Row


def results(summaries: Sequence[dict[str, Any]]) -> Table:
    """One row a run: what it learned from, and how well."""
    table = Table(box=box.SIMPLE_HEAD, title="Accuracy on pictures that were never trained on")
    for column in ("method", "labels", "unlabelled used"):
        table.add_column(column, justify="left" if column == "method" else "right")
    table.add_column("test accuracy", justify="right", style="bold")
    for column in ("steps", "seconds"):
        table.add_column(column, justify="right")
    for summary in summaries:
        table.add_row(
            summary["method"],
            f"{summary['labels']:,}",
            f"{summary['unlabelled']:,}",
            accuracy(summary),
            f"{summary['steps']:,}",
            f"{summary['seconds']:.0f}",
        )
    return table


def accuracy(summary: dict[str, Any]) -> str:
    if "top1" in summary:
        return f"{summary['top1']:.2%}"
    if "validation_top1" in summary:
        return f"{summary['validation_top1']:.2%} (validation)"
    return "no test part"


def comparison(rows: Sequence[Row]) -> Table:
    """One line for each configuration, over its seeds."""
    shown = COLUMNS.index("seconds") + 1  # device and commit are for the record, not the eye
    table = Table(*COLUMNS[:shown], box=box.SIMPLE_HEAD)
    for row in rows:
        table.add_row(*row.cells()[:shown])
    return table


def scores(scores: Scores, classes: list[str]) -> Table:
    """Accuracy class by class, weakest first, and in all."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("class")
    table.add_column("found", justify="right")
    ranked = sorted(zip(classes, scores.per_class, strict=True), key=lambda row: row[1] or 0.0)
    for name, share in ranked:
        table.add_row(name, "no test picture" if share is None else f"{share:.1%}")
    table.add_section()
    table.add_row("[bold]top-1 accuracy", f"[bold]{scores.top1:.2%}")
    if scores.top5 is not None:
        table.add_row("top-5 accuracy", f"{scores.top5:.2%}")
    table.add_row("calibration error", f"{scores.calibration_error:.2%}")
    table.add_row("pictures", f"{scores.pictures:,}")
    return table


def settings(config: Recipe | Any) -> Table:
    """Every field with its value and its meaning: what --set takes."""
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("setting", "value", "meaning"):
        table.add_column(column)
    parts = [config, config.method] if isinstance(config, Recipe) else [config]
    for part in parts:
        for name, field in settings_of(part).items():
            value = getattr(part, name)
            table.add_row(name, str(value), field.metadata["says"])
        table.add_section()
    return table


def catalogue(entries: dict[str, str | None]) -> Table:
    """Names, each with the first line of what it says of itself."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    for name, text in entries.items():
        table.add_row(name, (text or "").strip().splitlines()[0])
    return table
