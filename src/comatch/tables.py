"""Text for tables: numbers, Markdown, CSV, and plain text from rich tables. Loads no PyTorch."""

import csv
import io
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table


def in_per_cent(shares: Sequence[float]) -> str:
    """Mean and sample deviation in per cent: `96.10 ± 0.42`; nothing for no shares."""
    if not shares:
        return ""
    spread = f" ± {100 * statistics.stdev(shares):.2f}" if len(shares) > 1 else ""
    return f"{100 * statistics.mean(shares):.2f}{spread}"


def seed_list(seeds: Sequence[int]) -> str:
    """`0, 1, 2`, and `100 to 104` for more than three consecutive seeds."""
    parts: list[list[int]] = []
    for seed in seeds:
        if parts and seed == parts[-1][-1] + 1:
            parts[-1].append(seed)
        else:
            parts.append([seed])
    return ", ".join(
        f"{part[0]} to {part[-1]}" if len(part) > 3 else ", ".join(map(str, part)) for part in parts
    )


def to_markdown(lines: Sequence[Sequence[str]], numbers: bool = False) -> str:
    """A Markdown table; the first line is its head. `numbers` aligns all but the first column."""
    head, *body = lines
    rule = ["---", *["---:" if numbers else "---"] * (len(head) - 1)]
    cells = ([cell.replace("|", "\\|") for cell in line] for line in [head, rule, *body])
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def to_csv(records: Sequence[dict[str, Any]], head: Iterable[str] = ()) -> str:
    """A CSV table; without a head, it is the keys of the first record."""
    written = io.StringIO()
    table = csv.DictWriter(written, list(head) or list(records[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(records)
    return written.getvalue()


def to_text(table: Table) -> str:
    """A rich table as plain text for a file."""
    console = Console(file=io.StringIO(), width=200, color_system=None)
    with console.capture() as drawn:
        console.print(table)
    lines = [line.rstrip() for line in drawn.get().splitlines()]
    return "\n".join(line for line in lines if line)


def origin(session: dict[str, Any]) -> str:
    """How a result was computed: `command` at its commit, the device and torch's version."""
    revision = session["git"][:7] if session["git"] else "no commit"
    torch = session["packages"]["torch"]
    return f"`{session['command']}` at {revision}, {session['device']}, torch {torch}"
