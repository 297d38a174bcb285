"""What a person sees while it trains: a live bar on a terminal, plain lines elsewhere."""

import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol, TypeVar

from rich.console import Console, Group
from rich.live import Live
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

import comatch

Item = TypeVar("Item")
LINES = 10  # plain lines a run, where there is no terminal to draw on


class Bar(Protocol):
    """What a run tells while it trains, to whoever shows it."""

    def look(self, done: int, total: int) -> None: ...
    def advance(self, done: int) -> None: ...
    def show(self, done: int, values: dict[str, float]) -> None: ...
    def say(self, line: str) -> None: ...
    def __enter__(self) -> "Bar": ...
    def __exit__(self, *_: object) -> None: ...


OpenBar = Callable[[str, int, int], Bar]  # title, steps in all, steps done before


class TrainingBar:
    """Step and time left on one line; losses, confident pseudo-labels and their accuracy below."""

    def __init__(
        self, title: str, steps: int, done: int, show: bool = True, lines: int = LINES
    ) -> None:
        self.console = Console(stderr=True, quiet=not show)
        self.title, self.steps, self.next_line = title, steps, done
        self.pause = max(1, steps // lines)  # steps between two plain lines
        self.bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("[dim]left"),
            TimeRemainingColumn(),
        )
        self.task = self.bar.add_task(title, total=steps, completed=done)
        self.looking: TaskID | None = None
        self.figures = Text("starting", style="dim")
        self.live: Live | None = None
        if show and self.console.is_terminal:
            self.live = Live(Group(self.bar, self.figures), console=self.console)

    def look(self, done: int, total: int) -> None:
        """At so many views of images, of all that are looked at before the first step."""
        if self.looking is None:
            self.looking = self.bar.add_task("looking at images", total=total)
            if self.live is None:
                self.say(f"looking at {total:,} views of images before the first step")
        self.bar.update(self.looking, completed=done, visible=done < total)

    def advance(self, done: int) -> None:
        self.bar.update(self.task, completed=done)

    def show(self, done: int, values: dict[str, float]) -> None:
        """New figures: losses as numbers, shares as per cent."""
        self.figures.plain = describe(values)
        if self.live is None and done >= self.next_line:
            line = f"{self.title} {done}/{self.steps} {self.figures.plain}"
            self.console.print(line, highlight=False, soft_wrap=True)
            self.next_line = done + self.pause

    def say(self, line: str) -> None:
        self.console.print(line, style="dim", markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> "TrainingBar":
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()


def describe(values: dict[str, float]) -> str:
    """`loss 1.02 (x 0.10 cls 0.31 ctr 0.61)  confident 83 % (97 % right)`"""
    parts = [f"{n.removeprefix('loss_')} {v:.2f}" for n, v in values.items() if "loss_" in n]
    text = f"loss {values['loss']:.3f}" + (f" ({' '.join(parts)})" if len(parts) > 1 else "")
    if "lr" in values:
        text += f"  lr {values['lr']:.2g}"
    if "confident" in values:
        text += f"  confident {values['confident']:.0%}"
    if "pseudo_accuracy" in values:
        text += f" ({values['pseudo_accuracy']:.1%} right)"
    return text


_first = [comatch.BORN]


def beginning() -> float:
    """When the way to the first step began: for the first run of a process, with the process."""
    return _first.pop() if _first else time.perf_counter()


class StopRequest:
    """True once somebody asked to stop (Ctrl-C, or a batch system's SIGTERM)."""

    def __init__(self) -> None:
        self.asked = False

    def ask(self, number: int, frame: FrameType | None) -> None:
        # A second Ctrl-C does not wait. SIGTERM may come twice: from torchrun and from above it.
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True


@contextmanager
def stoppable() -> Iterator[StopRequest]:
    """Turns Ctrl-C into a request that the loop answers between two steps."""
    request = StopRequest()
    try:
        before = {n: signal.signal(n, request.ask) for n in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread: whoever owns the signals keeps them
        yield request
        return
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def watched(items: Iterable[Item], what: str, many: int, show: bool) -> Iterable[Item]:
    """The same items, and a bar that goes along with them and is gone afterwards."""
    return track(items, what, many, console=Console(stderr=True, quiet=not show), transient=True)
