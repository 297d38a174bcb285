"""What the command line prints: results, notes, warnings and errors."""

import inspect
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import typer
from rich.console import Console

from comatch import launch
from comatch.errors import printable

out = Console()
err = Console(stderr=True)


@contextmanager
def loading_torch() -> Iterator[None]:
    """Around the imports of a command: PyTorch takes seconds, and a terminal shows that."""
    if "torch" in sys.modules or launch.rank() > 0:
        yield
        return
    with err.status("loading PyTorch"):
        yield


@contextmanager
def resumable(*more: str) -> Iterator[None]:
    """Around long work: Ctrl-C prints the command that continues it, with these words added."""
    with loading_torch():
        from comatch.training.loop import Interrupted

    try:
        yield
    except (Interrupted, KeyboardInterrupt) as stop:
        saved = "stopped; finished runs and checkpoints are kept."
        if isinstance(stop, Interrupted):
            saved = f"{stop} of {stop.folder.name}; everything up to there is saved."
        words = sys.argv[1:]
        again = shlex.join(["comatch", *words, *(word for word in more if word not in words)])
        err.print(f"{saved}\nContinue with: {again}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(130) from None


def exit_stopped(step: int, folder: Path) -> NoReturn:
    """After a stopped run: print the command that continues it, and exit with 130."""
    if launch.rank() == 0:
        err.print(f"stopped after step {step}; everything up to there is saved.")
        err.print(f"Continue with: {resume_command(folder)}", soft_wrap=True, markup=False)
    raise typer.Exit(130)


def resume_command(folder: Path) -> str:
    """The command that was entered, with the folder named and --resume added."""
    words = [word for word in sys.argv[1:] if word != "--resume"]
    if not any(word == "--out" or word.startswith("--out=") for word in words):
        words += ["--out", str(folder)] if "--baseline" not in words else []
    start = "torchrun ... -m comatch " if launch.several() else "comatch "
    return start + shlex.join([*words, "--resume"])


def say(line: str) -> None:
    """Print a result in one line: a path in it is neither wrapped nor taken for markup."""
    out.print(printable(line), markup=False, soft_wrap=True)


def print_docstring(text: str) -> None:
    """Print the prose of a docstring as wide as the terminal, and its tables as they are."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    prose = (part if "  " in part else part.replace("\n", " ") for part in paragraphs)
    out.print("\n\n".join(prose), markup=False, highlight=False)


def exit_with_failures(failures: list[str]) -> None:
    """Print why runs failed, and exit with 1 if any did."""
    for failure in failures:
        print_error(failure)
    if failures:
        raise typer.Exit(1)


def print_notes(notes: list[str]) -> None:
    for note in notes:
        print_labelled("[yellow]note:[/]", note)


def warn(message: str) -> None:
    """Print a warning; of several processes, the first prints it."""
    if launch.rank() == 0:
        print_labelled("[yellow]warning:[/]", message)


def fail(message: str) -> NoReturn:
    """Print an error and exit with 2; of several processes that fail, one prints it."""
    if is_first_to_fail():
        print_error(message)
    leave(2)


def fail_as_rank(error: Exception) -> None:
    """Exit if this process failed after another one did; return if it is the first."""
    from comatch import distributed

    if distributed.is_connection_error(error):
        reason = str(error).splitlines()[0][:200]
        fail(
            "another process has ended or does not answer: start torchrun with --max-restarts to "
            f"continue by itself ({reason})"
        )
    if not is_first_to_fail():
        leave(1)


def leave(code: int) -> NoReturn:
    if launch.several():
        from comatch import distributed

        distributed.settle()
    sys.exit(code)


def is_first_to_fail() -> bool:
    if not launch.several():
        return True
    from comatch import distributed

    return distributed.first_to_fail()


def print_error(message: str) -> None:
    print_labelled("[bold red]error:[/]", message)


def print_labelled(label: str, message: str) -> None:
    """Print one line to stderr: a path in it is neither wrapped nor taken for markup."""
    err.print(label, end=" ")
    err.print(printable(message), markup=False, highlight=False, soft_wrap=True)
