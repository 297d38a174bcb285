"""What is said on the terminal: results, remarks, and what went wrong."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer
from rich.console import Console

from comatch import launch

out = Console()
err = Console(stderr=True)


@contextmanager
def resumable(*more: str) -> Iterator[None]:
    """Whoever stops what takes long is told that the same command, or it and more, goes on."""
    from comatch.training.loop import Interrupted

    try:
        yield
    except (Interrupted, KeyboardInterrupt) as stop:
        said = "stopped; what is finished is kept, and so are checkpoints."
        if isinstance(stop, Interrupted):
            said = f"{stop} of {stop.folder.name}; everything up to there is saved."
        given = sys.argv[1:]
        again = shlex.join(["comatch", *given, *(word for word in more if word not in given)])
        err.print(f"{said}\nGo on with: {again}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(130) from None


def say(line: str) -> None:
    """A result in one line, however long: paths in it must not be mistaken for markup or broken."""
    out.print(line, markup=False, soft_wrap=True)


def tell_failures(failures: list[str]) -> None:
    for failure in failures:
        complain(failure)
    if failures:
        raise typer.Exit(1)


def tell_remarks(remarks: list[str]) -> None:
    for line in remarks:
        remark("[yellow]note:[/]", line)


def fail(message: str) -> NoReturn:
    if speaks():
        complain(message)
    end(2)


def fail_of_many(error: Exception) -> None:
    """Of several processes that fail, one says why: the others only follow it."""
    from comatch import distributed

    if distributed.is_connection_error(error):
        why = str(error).splitlines()[0][:200]
        fail(f"another process is gone or does not answer: `--max-restarts` goes on ({why})")
    if not speaks():
        end(1)


def end(code: int) -> NoReturn:
    if launch.several():
        from comatch import distributed

        distributed.settle()
    sys.exit(code)


def speaks() -> bool:
    """Whether this process is the one to say what went wrong."""
    if not launch.several():
        return True
    from comatch import distributed

    return distributed.first_to_fail()


def warn(message: str) -> None:
    if launch.rank() == 0:
        remark("[yellow]warning:[/]", message)


def complain(message: str) -> None:
    remark("[bold red]error:[/]", message)


def remark(kind: str, message: str) -> None:
    """One line, however long: paths in it must not be mistaken for markup or broken."""
    err.print(kind, end=" ")
    err.print(message, markup=False, highlight=False, soft_wrap=True)
