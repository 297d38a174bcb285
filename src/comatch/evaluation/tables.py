"""Tables of scores for the terminal."""

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from comatch.errors import printable
from comatch.evaluation.accuracy import Scores, interval


def scores(scores: Scores, classes: list[str]) -> Table:
    """Recall of each class, lowest first, with the class it is most confused with; accuracy."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("class")
    table.add_column("recall", justify="right")
    table.add_column("most confused with")
    rows = zip(classes, scores.recall, scores.confused_with, strict=True)
    for name, recall, confused in sorted(rows, key=lambda row: row[1] or 0.0):
        found = "no test image" if recall is None else f"{recall:.1%}"
        other = f"{classes[confused[0]]} {confused[1]:.1%}" if confused else ""
        table.add_row(plain(name), found, plain(other))
    table.add_section()
    low, high = interval(scores.top1, scores.images)
    between = f"95 % confidence interval: {low:.1%} to {high:.1%}"
    table.add_row("[bold]top-1 accuracy", f"[bold]{scores.top1:.2%}", between)
    if scores.top5 is not None:
        table.add_row("top-5 accuracy", f"{scores.top5:.2%}")
    table.add_row("calibration error", f"{scores.calibration_error:.2%}")
    table.add_row("images", f"{scores.images:,}")
    return table


def plain(text: str) -> Text:
    """Text that may have names of files and classes: in one line, and without markup."""
    return Text(printable(text))


def contradicted(mistakes: Sequence[tuple[str, str, str, float]], most: int = 10) -> Table:
    """Labelled images that are predicted as another class, with the confidence."""
    title = "Contradicted labels, most confident first"
    table = Table(box=box.SIMPLE_HEAD, title=title)
    for column in ("image", "label", "predicted"):
        table.add_column(column, overflow="fold")
    for path, label, predicted, confidence in mistakes[:most]:
        table.add_row(plain(path), plain(label), plain(f"{predicted} {confidence:.1%}"))
    if len(mistakes) > most:
        table.add_row(f"and {len(mistakes) - most} more")
    return table
