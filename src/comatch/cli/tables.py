"""Tables that only the command line prints: runs just trained, methods, recipes and settings."""

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from comatch.config import Config, parts_of
from comatch.errors import printable

if TYPE_CHECKING:
    from comatch.data.feature_store import Stored
    from comatch.nets.encoders import Recommended

MOST_CLASSES = 20  # in the table of predictions


def results(summaries: Sequence[dict[str, Any]]) -> Table:
    """One row a run: what it learned from, and its accuracy."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("method", no_wrap=True, min_width=max(len(s["method"]) for s in summaries))
    for column in ("labels", "unlabelled used"):
        table.add_column(column, justify="right")
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


def pretrained(summary: dict[str, Any]) -> Table:
    """What a run without labels learned from, and accuracies of classifiers on its features."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("method", no_wrap=True)
    for column in ("images", "nearest neighbours", "linear classifier", "steps", "seconds"):
        table.add_column(column, justify="right")
    scores = []
    for name in ("knn_top1", "linear_top1"):
        found = summary.get(name, summary.get(f"validation_{name}"))
        scores.append("no labels" if found is None else f"{found:.2%}")
    table.add_row(
        summary["method"],
        f"{summary['unlabelled']:,}",
        *scores,
        f"{summary['steps']:,}",
        f"{summary['seconds']:.0f}",
    )
    return table


def predicted_classes(found: Sequence[tuple[Path, str, float]]) -> Table:
    """The predicted classes with their images and mean probability, the most frequent first."""
    by_class: dict[str, list[float]] = {}
    for _, label, probability in found:
        by_class.setdefault(label, []).append(probability)
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("predicted class")
    for column in ("images", "share", "mean probability"):
        table.add_column(column, justify="right")
    ordered = sorted(by_class.items(), key=lambda item: -len(item[1]))
    for label, shares in ordered[:MOST_CLASSES]:
        mean = sum(shares) / len(shares)
        share = len(shares) / len(found)
        table.add_row(Text(printable(label)), f"{len(shares):,}", f"{share:.1%}", f"{mean:.1%}")
    if len(ordered) > MOST_CLASSES:
        table.add_row(f"and {len(ordered) - MOST_CLASSES:,} more")
    return table


def accuracy(summary: dict[str, Any]) -> str:
    if "top1" in summary:
        return f"{summary['top1']:.2%}"
    if "validation_top1" in summary:
        return f"{summary['validation_top1']:.2%} (validation)"
    return "no test part"


def settings(config: Config) -> Table:
    """Every setting with its value and its meaning, group by group."""
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("setting", "value", "meaning"):
        table.add_column(column)
    before: Config | None = None
    for group, field in parts_of(config):
        if before is not None and group is not before:
            table.add_section()
        table.add_row(field.name, str(getattr(group, field.name)), field.metadata["says"])
        before = group
    return table


def encoders(found: Iterable["Recommended"], rates: Mapping[str, float]) -> Table:
    """Pre-trained encoders: what they are, and how fast here."""
    from comatch.nets.encoders import is_cached

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("encoder", no_wrap=True)
    for column in ("pixels", "MB"):
        table.add_column(column, justify="right")
    for column in ("licence", "here"):
        table.add_column(column)
    table.add_column("views/s", justify="right")
    for one in found:
        rate = f"{rates[one.name]:,.0f}" if one.name in rates else "-"
        here = "yes" if is_cached(one.name) else "no"
        row = one.name, str(one.image_size), str(one.megabytes), one.licence, here, rate
        table.add_row(*row)
    return table


def features(found: Sequence["Stored"]) -> Table:
    """What the feature cache has, one row an encoder."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("encoder", overflow="fold")
    for column in ("images", "views", "MB", "last used"):
        table.add_column(column, justify="right")
    for one in found:
        used = time.strftime("%Y-%m-%d", time.localtime(one.used))
        size = f"{one.bytes / 1e6:,.0f}"
        table.add_row(one.name, f"{one.images:,}", f"{one.views:,}", size, used)
    return table


def catalogue(descriptions: Mapping[str, str]) -> Table:
    """Names, each with the first line of its description."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    for name, text in descriptions.items():
        table.add_row(name, text.partition("\n")[0])
    return table
