"""Worker processes that read images into memory shared with this process.

Python runs one thread of a process at a time, so threads read about ten thousand files a second at
most. A worker is a separate Python process without PyTorch: it starts fast and needs little memory.
It receives paths through a pipe and writes pixels to shared memory; pixels never go through pipes.
"""

import mmap
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import warnings
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, TypeVar, cast

from comatch import launch
from comatch.errors import UserError

REQUEST = 16  # images that a worker is asked for at a time
# By default the C library returns the memory of each image to the system, and allocating it again
# can take longer than decoding.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": f"{2**26}", "MALLOC_TRIM_THRESHOLD_": f"{2**28}"}

# Resized and cropped, decoded, as it is, or augmented views.
Form = Literal["square", "whole", "jpeg", "views"]
Item = TypeVar("Item")


class Wanted(NamedTuple):
    """A request for an image, and the cell of the shared memory for it."""

    path: str
    position: float  # of the window along the longer side, 0 to 1
    cell: int
    views: Sequence[int] = ()  # which of `data.views`, and the identity of the image they need
    digest: bytes = b""


class Answer(NamedTuple):
    """What a worker wrote into the cell, or why it could not."""

    length: int  # bytes
    form: Form
    size: tuple[int, int] = (0, 0)  # height and width of a whole image
    why: str = ""  # the file is unreadable


class Workers:
    """`count` processes and the shared memory: `cells` of `size` bytes, one for each image."""

    def __init__(self, count: int, cells: int, size: int) -> None:
        with shared_file(cells * size) as file:
            self.memory = mmap.mmap(file.fileno(), cells * size)
            here = str(Path(__file__).parents[2])  # so that the workers find this package
            environment = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")])),
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
                **KEEP_MEMORY,
            }
            call = f"image_workers.main({file.fileno()}, {size})"
            work = f"from comatch.data import image_workers; {call}"
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
        self.closed = False
        self.idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        for process in self.processes:
            self.idle.put(process)

    def ask(self, wanted: Sequence[Wanted], side: int, form: Form = "square") -> list[Answer]:
        """Read images into their cells; several threads may call this at once.

            square  [3, side, side]
            whole   [H, W, 3], decoded
            jpeg    the file itself, if it is a complete JPEG without EXIF rotation
            views   [V, 3, side, side], the views that are asked for

        Images that do not fit into their cells, and files that are no such JPEG, become squares.
        """
        waiting = deque(pieces(wanted, REQUEST))
        asked: deque[subprocess.Popen[bytes]] = deque()
        answers: list[Answer] = []
        try:
            while waiting or asked:
                process = None
                if waiting:
                    with suppress(queue.Empty):  # all are busy; wait only if none is busy for us
                        process = self.idle.get(block=not asked)
                if process:
                    asked.append(process)
                    self._ask(process, (waiting.popleft(), side, form))
                else:
                    answers += self._answer(asked[0])
                    self.idle.put(asked.popleft())
        except BaseException:
            self.closed = True
            raise
        finally:
            for process in asked:  # other threads may be waiting for it
                self.idle.put(process)
        return answers

    def _ask(self, process: "subprocess.Popen[bytes]", question: object) -> None:
        if self.closed:  # the pipes may hold answers to other requests
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
        """End the processes: they stop when their pipes are closed."""
        self.closed = True
        for process in self.processes:
            with suppress(OSError):
                cast(IO[bytes], process.stdin).close()
        for process in self.processes:
            process.wait()
            cast(IO[bytes], process.stdout).close()


def default_workers() -> int:
    """One for each core, divided by the ranks on this machine."""
    return max(1, (os.cpu_count() or 1) // launch.on_this_machine())


def pieces(items: Sequence[Item], length: int) -> list[Sequence[Item]]:
    return [items[i : i + length] for i in range(0, len(items), length)]


def shared_file(room: int) -> IO[bytes]:
    """A file without a name, in memory where the system supports it."""
    if hasattr(os, "memfd_create"):
        file: IO[bytes] = os.fdopen(os.memfd_create("comatch"), "r+b")
    else:
        file = tempfile.TemporaryFile()  # noqa: SIM115
    file.truncate(room)
    return file


def send(pipe: IO[bytes] | None, message: object) -> None:
    with suppress(BrokenPipeError):  # the missing answer is reported
        pickle.dump(message, cast(IO[bytes], pipe))
        cast(IO[bytes], pipe).flush()


def receive(pipe: IO[bytes] | None) -> Any:
    """The next message, or None if the other process has ended."""
    try:
        return pickle.load(cast(IO[bytes], pipe))
    except (EOFError, pickle.UnpicklingError):
        return None


# -------------------------------------------------------------------------- in the other process


def main(file: int, size: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent handles them
        signal.signal(number, signal.SIG_IGN)
    warnings.simplefilter("ignore")  # why a file is unreadable is part of the answer
    memory = memoryview(mmap.mmap(file, 0))
    while (question := receive(sys.stdin.buffer)) is not None:
        wanted, side, form = question
        answers = [
            read_into_cell(one, memory[one.cell * size : (one.cell + 1) * size], side, form)
            for one in wanted
        ]
        send(sys.stdout.buffer, answers)


def read_into_cell(wanted: Wanted, cell: memoryview, side: int, form: Form) -> Answer:
    if form == "jpeg" and (length := read_jpeg(wanted.path, cell)):
        return Answer(length, "jpeg")
    if form == "views":
        return read_views_into_cell(wanted, cell, side)
    from comatch.data.images import ImageError, read_image, read_whole  # slow to import

    path = Path(wanted.path)
    try:
        whole = read_whole(path, side, len(cell)) if form == "whole" else None
        pixels = read_image(path, side, wanted.position) if whole is None else whole
    except ImageError as error:
        return Answer(0, "square", why=str(error))
    cell[: pixels.nbytes] = pixels.reshape(-1).data
    if whole is None:
        return Answer(pixels.nbytes, "square")
    return Answer(whole.nbytes, "whole", whole.shape[:2])


def read_views_into_cell(wanted: Wanted, cell: memoryview, side: int) -> Answer:
    from comatch.data.images import ImageError
    from comatch.data.views import read_views

    try:
        pixels = read_views(Path(wanted.path), wanted.digest, wanted.views, side)
    except ImageError as error:
        return Answer(0, "views", why=str(error))
    cell[: pixels.nbytes] = pixels.reshape(-1).data
    return Answer(pixels.nbytes, "views")


def read_jpeg(path: str, cell: memoryview) -> int:
    """Read a JPEG for the GPU's decoder; return its length, or 0 if Pillow must decode it.

    A truncated file lacks the end marker, its last two bytes. The decoder would accept it.
    """
    if not os.path.isfile(path):  # opening a pipe would block
        return 0
    try:
        with open(path, "rb", buffering=0) as file:
            length = file.readinto(cell)
            if length == len(cell):  # the file may be longer
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
