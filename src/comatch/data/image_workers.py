"""Processes that read images into memory which they share with ours.

Python runs one thread of a process at a time, and a file takes several turns: read by threads, ten
thousand files a second are about all. A worker is a Python of its own that knows nothing of torch,
so it starts at once and is small. It is told paths and answers where in the shared memory the
images are; no pixel goes through the pipes in between.
"""

import mmap
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, TypeVar, cast

from comatch import launch
from comatch.errors import UserError

ASKED_AT_ONCE = 16  # images
# By default the C library gives the memory of each image back, and asking for it again can take
# longer than decoding.
KEEPING = {"MALLOC_MMAP_THRESHOLD_": f"{2**26}", "MALLOC_TRIM_THRESHOLD_": f"{2**28}"}

Form = Literal["square", "whole", "jpeg"]  # of an image: how much of the work is done already
Item = TypeVar("Item")


class Wanted(NamedTuple):
    """An image that a worker is asked for, and the cell of the memory where it goes."""

    path: str
    place: float  # of the window along its longer side, 0 to 1
    cell: int


class Answer(NamedTuple):
    """What became of it: so many bytes of this form, or nothing."""

    length: int
    form: Form
    size: tuple[int, int] = (0, 0)  # height and width of a whole image
    why: str = ""  # there is nothing


class Workers:
    """A number of them, and the memory: `cells` of so many bytes each, one for an image."""

    def __init__(self, count: int, cells: int, size: int) -> None:
        with shared_file(cells * size) as file:
            self.memory = mmap.mmap(file.fileno(), cells * size)
            here = str(Path(__file__).parents[2])  # where our package is, installed or not
            environment = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")])),
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
                **KEEPING,
            }
            work = f"from comatch.data import image_workers; image_workers.main({file.fileno()}, {size})"
            self.processes = [
                subprocess.Popen(
                    [sys.executable, "-c", work],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    pass_fds=[file.fileno()],
                    env=environment,
                )
                for _ in range(count)
            ]
        self.over = False
        self.idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        for process in self.processes:
            self.idle.put(process)

    def ask(self, wanted: Sequence[Wanted], side: int, form: Form = "square") -> list[Answer]:
        """Reads these images; several threads may ask at once.

            square  [3, side, side]
            whole   [H, W, 3], decoded
            jpeg    the file as it is, if it is a JPEG that was not cut off and stands upright

        What does not fit into its cell, or is no such JPEG, becomes a square.
        """
        waiting = deque(pieces(wanted, ASKED_AT_ONCE))
        asked: deque[subprocess.Popen[bytes]] = deque()
        answers: list[Answer] = []
        try:
            while waiting or asked:
                process = None
                if waiting:
                    with suppress(queue.Empty):  # others have them all: that ends, unless it is us
                        process = self.idle.get(block=not asked)
                if process:
                    asked.append(process)
                    self._ask(process, (waiting.popleft(), side, form))
                else:
                    answers += self._answer(asked[0])
                    self.idle.put(asked.popleft())
        except BaseException:
            self.over = True
            raise
        finally:
            for process in asked:  # lest somebody waits for it
                self.idle.put(process)
        return answers

    def _ask(self, process: "subprocess.Popen[bytes]", question: object) -> None:
        if self.over:  # answers to other questions may be on their way
            raise UserError("the processes that read images have been ended")
        send(process.stdin, question)

    def _answer(self, process: "subprocess.Popen[bytes]") -> list[Answer]:
        answers: list[Answer] | None = receive(process.stdout)
        if answers is None:
            raise UserError(
                f"a process that reads images has ended (exit code {process.wait()}): "
                "see whether there is enough memory, and go on with --resume"
            )
        return answers

    def close(self) -> None:
        """They end when nobody can ask them any more."""
        self.over = True
        for process in self.processes:
            with suppress(OSError):
                cast(IO[bytes], process.stdin).close()
        for process in self.processes:
            process.wait()
            cast(IO[bytes], process.stdout).close()


def default_workers() -> int:
    """One for each core, shared with other ranks on this machine."""
    return max(1, (os.cpu_count() or 1) // launch.on_this_machine())


def pieces(items: Sequence[Item], length: int) -> list[Sequence[Item]]:
    return [items[i : i + length] for i in range(0, len(items), length)]


def shared_file(room: int) -> IO[bytes]:
    """A file without a name: where the system can, nothing but memory, and only what is used."""
    if hasattr(os, "memfd_create"):
        file: IO[bytes] = os.fdopen(os.memfd_create("comatch"), "r+b")
    else:
        file = tempfile.TemporaryFile()  # noqa: SIM115
    file.truncate(room)
    return file


def send(pipe: IO[bytes] | None, message: object) -> None:
    with suppress(BrokenPipeError):  # then no answer comes either, and that is told
        pickle.dump(message, cast(IO[bytes], pipe))
        cast(IO[bytes], pipe).flush()


def receive(pipe: IO[bytes] | None) -> Any:
    """What the other side has sent, or nothing if it has ended."""
    try:
        return pickle.load(cast(IO[bytes], pipe))
    except (EOFError, pickle.UnpicklingError):
        return None


# -------------------------------------------------------------------------- in the other process


def main(file: int, size: int) -> None:
    for stop in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # are for the one that asks: it wants its last batch
        signal.signal(stop, signal.SIG_IGN)
    memory = memoryview(mmap.mmap(file, 0))
    while (question := receive(sys.stdin.buffer)) is not None:
        wanted, side, form = question
        answers = [
            find(one, memory[one.cell * size : (one.cell + 1) * size], side, form) for one in wanted
        ]
        send(sys.stdout.buffer, answers)


def find(wanted: Wanted, cell: memoryview, side: int, form: Form) -> Answer:
    """Puts one image into its cell."""
    if form == "jpeg" and (length := read_jpeg(wanted.path, cell)):
        return Answer(length, "jpeg")
    from comatch.data.images import ImageError, read_image, read_whole  # which takes a moment

    path = Path(wanted.path)
    try:
        whole = read_whole(path, side, len(cell)) if form == "whole" else None
        pixels = read_image(path, side, wanted.place) if whole is None else whole
    except ImageError as error:
        return Answer(0, "square", why=str(error))
    cell[: pixels.nbytes] = pixels.reshape(-1).data
    if whole is None:
        return Answer(pixels.nbytes, "square")
    return Answer(whole.nbytes, "whole", whole.shape[:2])


def read_jpeg(path: str, cell: memoryview) -> int:
    """The length of a file that is for a GPU's decoder: a whole JPEG that stands upright.

    A file that was cut off lacks its last two bytes, which the decoder would not mind.
    """
    if not os.path.isfile(path):  # opening a pipe would wait for ever
        return 0
    try:
        with open(path, "rb", buffering=0) as file:
            length = file.readinto(cell)
            if length == len(cell):  # there may be more of it
                return 0
    except OSError:
        return 0
    if cell[:3] != b"\xff\xd8\xff" or cell[length - 2 : length] != b"\xff\xd9":
        return 0
    if b"Exif\0\0" in bytes(cell[: min(length, 4096)]) and turned(path):
        return 0
    return length


def turned(path: str) -> bool:
    from PIL import Image

    from comatch.data.images import turned as is_turned

    with suppress(Exception), Image.open(path, formats=["JPEG"]) as image:
        return is_turned(image)
    return True
