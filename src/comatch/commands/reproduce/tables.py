"""The paper's tables for the terminal, with our results beside them."""

from collections.abc import Sequence

from rich import box
from rich.table import Table


def beside_paper(columns: Sequence[str], rows: Sequence[tuple[str, list[str], list[str]]]) -> Table:
    """For each method a line of the paper's figures and one of ours; empty lines are left out."""
    # Narrow, so that four columns fit into 80 characters; long cells wrap before (n=...).
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for head in ("accuracy %", ""):
        table.add_column(head, no_wrap=True)
    for head in columns:
        table.add_column(head.replace(", ", "\n"))
    for method, theirs, ours in rows:
        if any(theirs):
            table.add_row(method, "paper", *theirs, style="dim")
        table.add_row("" if any(theirs) else method, "ours", *ours, end_section=True)
    return table


def sections(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A section for all rows with the same first cell."""
    table = Table(*columns, box=box.SIMPLE_HEAD)
    before = ""
    for first, *rest in rows:
        if before not in ("", first):
            table.add_section()
        table.add_row("" if first == before else first, *rest)
        before = first
    return table
