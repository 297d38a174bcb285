"""Results of transfer learning as tables for the terminal."""

from pathlib import Path
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from comatch.commands.reproduce import paper
from comatch.commands.transfer.record import Record


def transfer(record: Record) -> Table:
    """A line for each encoder; the paper's are dim."""
    head, *rest = record.lines()
    title = escape(f"{record.data}, by images a class")
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(head[0], overflow="fold")
    for name in head[1:]:
        table.add_column(name)
    for name, *figures in rest:
        table.add_row(Text(name), *figures, style="dim" if name.startswith("paper:") else None)
    return table


def detection(summary: dict[str, Any]) -> Table:
    """A detector on COCO below the paper's of the same schedule: boxes (bb) and masks (mk)."""
    schedule, net, steps, batch = (summary[key] for key in ("schedule", "net", "steps", "batch"))
    theirs = ("resnet50", paper.COCO_STEPS[schedule], paper.COCO_BATCH)
    caption = f"paper: {size_text(*theirs)}"
    if (net, steps, batch) != theirs:
        caption += f"\nours: {size_text(net, steps, batch)}, not comparable with the paper's"
    table = Table(box=box.SIMPLE_HEAD, title=f"COCO val2017, {schedule} schedule", caption=caption)
    for head in ("initial weights", "labels"):
        table.add_column(head)
    for head in paper.COCO_FIGURES:
        table.add_column(head.replace("_", "\n"), justify="right")
    for (method, labels), figures in paper.COCO[schedule].items():
        table.add_row(
            f"paper: {method}", labels, *(f"{value:.1f}" for value in figures), style="dim"
        )
    ours = (summary[name] for name in paper.COCO_FIGURES)
    texts = ("" if value is None else f"{value:.1f}" for value in ours)
    table.add_row(Text(f"ours: {Path(summary['start']).name}"), "", *texts, style="bold")
    return table


def size_text(net: str, steps: int, batch: int) -> str:
    return f"{net}, {steps:,} steps of {batch} images"
