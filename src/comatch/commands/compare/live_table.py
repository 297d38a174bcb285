"""Progress of a comparison: a live table on a terminal, plain lines elsewhere."""

import statistics
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from comatch.commands.report.runs import Row
from comatch.errors import printable
from comatch.training.progress import OpenBar, TrainingBar

LINES = 3  # plain lines a run, without a terminal


class Running:
    """The progress of the current run, shown in a cell of the table."""

    def __init__(self, method: str, seed: int) -> None:
        self.method, self.seed = method, seed
        self.since = time.monotonic()
        self.steps = self.done = 0
        self.loss = ""

    def open(self, title: str, steps: int, done: int) -> "Running":
        self.steps, self.done = steps, done
        return self

    def encoding(self, done: int, total: int) -> None:
        self.loss = f"encoding {done / total:.0%}"

    def advance(self, done: int) -> None:
        self.done = done

    def show(self, done: int, values: dict[str, float]) -> None:
        self.loss = f"loss {values['loss']:.3f}"

    def say(self, line: str) -> None:
        """Nothing: the table has no room for it."""

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def cell(self, room: int) -> RenderableType:
        """Seed, step and loss, and a bar if there is room."""
        if not self.steps:
            return Text(f"seed {self.seed} starting")
        cell = Table.grid(padding=(0, 1))
        width = room - len(f"seed {self.seed} {self.steps:,}/{self.steps:,} loss 0.000 ")
        bar = [ProgressBar(total=self.steps, completed=self.done, width=width)] if width > 4 else []
        text = f"seed {self.seed} {self.done:,}/{self.steps:,} {self.loss}"
        cell.add_row(*bar, Text(text, no_wrap=True))
        return cell


class LiveTable:
    """A line for each method: finished seeds, accuracy, state, seconds a run."""

    def __init__(
        self,
        title: str,
        methods: Sequence[str],
        seeds: int,
        rows: Sequence[Row],
        show: bool,
        elsewhere: Mapping[str, int] | None = None,
    ) -> None:
        self.console = Console(stderr=True, quiet=not show)
        self.title, self.methods = printable(title), methods
        self.seeds, self.show = seeds, show
        self.elsewhere = elsewhere or {}  # number of seeds of a method that other folders have
        self.rows = {row.method: row for row in rows}
        self.running: Running | None = None
        self.began = time.monotonic()
        self.live: Live | None = None
        if show and self.console.is_terminal:
            # Transient: the table of results replaces it.
            self.live = Live(get_renderable=self.draw, console=self.console, transient=True)

    def __enter__(self) -> "LiveTable":
        if self.live:
            self.live.start()
        else:
            self._print(f"{self.title}: {self.count()} done")
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    def begin(self, method: str, seed: int) -> OpenBar:
        """What shows the progress of the next run."""
        if self.live:
            self.running = Running(method, seed)
            return self.running.open
        name = f"{method} seed {seed}"
        return lambda _, steps, done: TrainingBar(name, steps, done, self.show, LINES)

    def end(self, method: str, seed: int, rows: Sequence[Row]) -> None:
        """Show the results after a run has finished or failed."""
        self.rows = {row.method: row for row in rows}
        self.running = None
        if not self.live:
            row = self.rows[method]
            if seed in row.failed:
                result = f"failed: {row.failed[seed]}"
            else:
                result = f"done: {row.top1[row.seeds.index(seed)]:.2%}"
            self._print(f"{method} seed {seed} {result} ({self.count()})")

    def _print(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def over(self, method: str) -> int:
        """The number of finished and failed runs of a method."""
        row = self.rows.get(method)
        return self.elsewhere.get(method, 0) + (len(row.seeds) + len(row.failed) if row else 0)

    def count(self) -> str:
        over = sum(self.over(method) for method in self.methods)
        return f"{over} of {len(self.methods) * self.seeds} runs"

    def draw(self) -> RenderableType:
        # Fixed widths: the table must not change its shape when it is redrawn.
        name = max(map(len, self.methods))
        room = max(8, min(48, self.console.width - name - 37))
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column("method", width=name, no_wrap=True)
        table.add_column("seeds", width=5, no_wrap=True, justify="right")
        table.add_column("accuracy %", width=13, no_wrap=True)
        table.add_column("state", width=room, no_wrap=True)
        table.add_column("seconds", width=7, no_wrap=True, justify="right")
        for method in self.methods:
            row = self.rows.get(method)
            seconds = f"{row.seconds:.0f}" if row and row.seconds is not None else ""
            table.add_row(
                method,
                f"{len(row.seeds) if row else 0}/{self.seeds}",
                row.figures() if row else "",
                self.state(method, room),
                seconds,
            )
        return Group(Text(self.title, style="bold"), table, Text(self.clock(), style="dim"))

    def state(self, method: str, room: int) -> RenderableType:
        running, row = self.running, self.rows.get(method)
        if running and running.method == method:
            return running.cell(room)
        if self.over(method) < self.seeds:
            return Text("waiting", "dim")
        if row and row.failed:
            return Text(f"failed: {next(iter(row.failed.values()))}", "red")
        return Text("done", "green")

    def clock(self) -> str:
        """`3 of 9 runs, 0:02:10, about 0:04:20 left`"""
        now, running = time.monotonic(), self.running
        text = f"{self.count()}, {timedelta(seconds=int(now - self.began))}"
        known = {m: row.seconds for m, row in self.rows.items() if row.seconds is not None}
        if not known:
            return text
        usual = statistics.mean(known.values())
        left = sum((self.seeds - self.over(m)) * known.get(m, usual) for m in self.methods)
        left -= now - running.since if running else 0
        return f"{text}, about {timedelta(seconds=max(0, int(left)))} left"
