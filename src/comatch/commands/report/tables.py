"""Tables of runs for the terminal."""

from collections.abc import Sequence

from rich import box
from rich.console import Group
from rich.table import Table

from comatch.commands.report.runs import Row
from comatch.commands.report.runs import table as table_of

WHOLE = ("recipe", "method", "accuracy %")  # columns that are not wrapped in a narrow terminal


def comparison(rows: Sequence[Row]) -> Group:
    """A table for each data set and number of labels; a line for each configuration."""
    parts: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        parts.setdefault((row.data, row.labels), []).append(row)
    hidden = ("data", "labels", "device", "commit")  # in the title, or only in Markdown and CSV
    return Group(
        *(
            table(part, [name for name in table_of(part)[0] if name not in hidden])
            for part in parts.values()
        )
    )


def ranking(rows: Sequence[Row]) -> Table:
    """Methods on the same data."""
    return table(rows, ("method", "accuracy %", "seeds", "seconds", "steps"))


def table(rows: Sequence[Row], columns: Sequence[str]) -> Table:
    """A table of rows with the same data and number of labels, which the title names."""
    head, *lines = table_of(rows, columns)
    title = f"{rows[0].data} with {rows[0].labels:,} labels"
    # Narrow: the columns of a report fit into a terminal of 80 columns.
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name, *cells in zip(head, *lines, strict=True):
        words = " ".join((name, *cells)).split()
        table.add_column(name, no_wrap=name in WHOLE, min_width=min(14, max(map(len, words))))
    for line in lines:
        table.add_row(*line)
    return table


def tuning(lines: Sequence[Sequence[str]]) -> Table:
    """A head, and a line for each configuration; its commit is left out."""
    head, *rest = lines
    # Narrow: settings and figures are not wrapped in 80 columns, only long lists of seeds are.
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    change, *figures, seeds, _ = head
    table.add_column(change, no_wrap=True)
    for name in figures:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(seeds)
    for change, *figures, _ in rest:
        table.add_row(change.replace(" ", "\n"), *figures)
    return table
