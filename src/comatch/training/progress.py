"""Progress of a run: a live bar on a terminal, plain lines elsewhere."""

import warnings
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    track,
)
from rich.text import Text

from comatch.data.summary import Summary
from comatch.errors import printable

Item = TypeVar("Item")
SHOWN = (
    ("test", "top1"),
    ("validation", "validation_top1"),
    ("kNN", "knn_top1"),
    ("kNN, validation", "validation_knn_top1"),
    ("linear", "linear_top1"),
)
LINES = 10  # plain lines a run, where there is no terminal to draw on


class Bar(Protocol):
    """Shows the progress of a run."""

    def encoding(self, done: int, total: int) -> None: ...
    def advance(self, done: int) -> None: ...
    def show(self, done: int, values: dict[str, float]) -> None: ...
    def say(self, line: str) -> None: ...
    def __enter__(self) -> "Bar": ...
    def __exit__(self, *_: object) -> None: ...


OpenBar = Callable[[str, int, int], Bar]  # title, steps in all, steps done before


class TrainingBar:
    """Steps and remaining time on one line, losses and pseudo-labels below it."""

    def __init__(
        self,
        title: str,
        steps: int,
        done: int,
        show: bool = True,
        lines: int = LINES,
        summary: Summary | None = None,
    ) -> None:
        self.console = Console(stderr=True, quiet=not show)
        self.title, self.steps = escape(printable(title)), steps
        self.next_line, self.summary = done, summary
        self.pause = max(1, steps // lines)  # steps between two plain lines
        self.bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("[dim]left"),
            TimeRemainingColumn(),
        )
        self.task = self.bar.add_task(self.title, total=steps, completed=done)
        self.cache_task: TaskID | None = None
        self.figures = Text("starting", style="dim")
        self.live: Live | None = None
        if show and self.console.is_terminal:
            self.live = Live(Group(self.bar, self.figures), console=self.console)

    def encoding(self, done: int, total: int) -> None:
        """Show the filling of the feature cache, in views of images."""
        if self.cache_task is None:
            self.cache_task = self.bar.add_task("encoding images", total=total)
            if self.live is None:
                self.say(f"encoding {total:,} views of images before the first step")
        self.bar.update(self.cache_task, completed=done, visible=done < total)

    def advance(self, done: int) -> None:
        self.bar.update(self.task, completed=done)

    def show(self, done: int, values: dict[str, float]) -> None:
        """Show new metrics."""
        self.figures.plain = describe(values)
        if self.live is None and done >= self.next_line:
            line = f"{self.title} {done}/{self.steps} {self.figures.plain}"
            self.console.print(line, highlight=False, soft_wrap=True)
            self.next_line = done + self.pause

    def say(self, line: str) -> None:
        self.console.print(line, style="dim", markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> "TrainingBar":
        if self.summary:
            show_summary(self.summary, self.console)
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()


def show_summary(summary: Summary, console: Console) -> None:
    """Print what was read, and warn about what is doubtful."""
    for line in summary.lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    for doubt in summary.warnings:
        warnings.warn(doubt, stacklevel=2)


def describe(values: dict[str, float]) -> str:
    """`loss 1.02 (x 0.10 cls 0.31 ctr 0.61)  pseudo-labels 83% used, 97.0% right  test 88.1%`"""
    parts = [f"{n.removeprefix('loss_')} {v:.2f}" for n, v in values.items() if "loss_" in n]
    text = f"loss {values['loss']:.3f}" + (f" ({' '.join(parts)})" if len(parts) > 1 else "")
    if "lr" in values:
        text += f"  lr {values['lr']:.2g}"
    if "confident" in values:
        text += f"  pseudo-labels {values['confident']:.0%} used"
    if "pseudo_accuracy" in values:
        text += f", {values['pseudo_accuracy']:.1%} right"
    for name, key in SHOWN:
        if key in values:
            text += f"  {name} {values[key]:.1%}"
    return text


def watched(items: Iterable[Item], what: str, many: int, show: bool) -> Iterable[Item]:
    """The same items, with a progress bar that disappears at the end."""
    return track(items, what, many, console=Console(stderr=True, quiet=not show), transient=True)
