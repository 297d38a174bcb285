"""Commands in processes of their own, which can be killed.

A server imports PyTorch once and forks each of them, so that one starts in a tenth of a second.
"""

import multiprocessing
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path

LOADED = [
    "comatch.api",
    "comatch.cli",
    "comatch.commands.compare",
    "comatch.commands.cross_validation",
    "comatch.commands.export",
    "sklearn.datasets",
    "torch.utils.tensorboard",
]
server = multiprocessing.get_context("forkserver")
server.set_forkserver_preload(LOADED)


@dataclass
class Command:
    """`comatch WORDS` in a folder."""

    process: ForkServerProcess
    output: Path

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def wait(self, seconds: float = 300) -> int | None:
        self.process.join(seconds)
        assert self.process.exitcode is not None, f"still running: {self.text}"
        return self.process.exitcode

    def kill(self) -> None:
        with suppress(ProcessLookupError, TypeError):
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()


def start(*words: object, cwd: Path, die_at: int | None = None) -> Command:
    """Start a command; with `die_at`, it is killed before it writes for that time."""
    output = cwd.with_name(f"{cwd.name}.output")
    output.unlink(missing_ok=True)
    process = server.Process(target=work, args=(list(map(str, words)), cwd, output, die_at))
    process.start()
    return Command(process, output)


def work(words: list[str], cwd: Path, output: Path, die_at: int | None) -> None:
    os.chdir(cwd)
    written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number in (1, 2):
        os.dup2(written, number)
    sys.argv = ["comatch", *words]
    if die_at is not None:
        kill_before_write(die_at)
    from comatch.cli import main

    main()


def kill_before_write(number: int) -> None:
    """Kill this process before it syncs or renames a file for the `number`th time."""
    left = number

    def counted(call):
        def counting(*args, **options):
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **options)

        return counting

    os.fsync, os.replace = counted(os.fsync), counted(os.replace)


def seconds(*words: object, cwd: Path) -> float:
    """How long a command takes that is not disturbed. It must succeed."""
    began = time.monotonic()
    command = start(*words, cwd=cwd)
    assert command.wait() == 0, command.text
    return time.monotonic() - began
