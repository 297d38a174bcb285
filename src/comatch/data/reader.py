"""From files to squares of pixels on a device, ahead of the time when they are needed.

The shorter side of an image becomes `side` pixels, and along the longer one a window of the same
length is cut out. Files are read by processes (`workers`). For a CPU, Pillow does all of it there.
For a GPU there are two ways, and the one that was faster lately is taken:

    jpeg    files stay as they are, and the GPU decodes a whole chunk: the fastest, but it stands
            still while other work keeps the GPU busy
    whole   Pillow decodes in the processes, which takes cores but nothing of the GPU

Either way a chunk is squared in one kernel. What cannot go either way (too large, damaged; for the
GPU's decoder also other formats, CMYK, what its EXIF turns) is squared by Pillow. All give the same
images but for what decoders differ in.
"""

import io
import itertools
import os
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor
from torch.cuda import Stream

from comatch.data.image_workers import Answer, Form, Wanted, Workers, default_workers
from comatch.errors import UserError
from comatch.types import Files

CHUNK = 256  # images that are decoded together: the GPU's decoder wants many
LANES = 3  # chunks at a time: one is read, one decoded, one squared
LARGE = 3 * 2**18  # bytes of a cell for a GPU: what is larger, file or image, comes as a square
AGAIN = (4, 1024)  # chunks until the slower way is tried again: at first, and at most
TRIES = 100  # files in a row that give no image before it is an error


class Chunk(NamedTuple):
    """Some images, ready on the device."""

    images: Tensor  # [n, 3, R, R] uint8
    rows: list[int]  # [n] which of the files these are
    files: Files
    bad: dict[int, str]  # rows that gave no image, and why


class Lane(NamedTuple):
    """What a chunk needs on its way."""

    cells: range  # its part of the memory, a cell for each image
    stream: Stream | None  # on which it is squared


class Faster:
    """Of several ways to do the same, the one that was fastest lately; now and then another."""

    def __init__(self, ways: Iterable[Form]) -> None:
        self.ways = list(ways)
        self.seconds: dict[Form, float] = {}  # that an image took
        self.turns = itertools.count(1)
        self.pause, self.due = AGAIN[0], AGAIN[0]

    def choose(self) -> Form:
        turn = next(self.turns)
        for way in self.ways:
            if way not in self.seconds:
                return way
        first, *others = sorted(self.ways, key=self.seconds.__getitem__)
        if not others or turn < self.due:
            return first
        self.pause = min(2 * self.pause, AGAIN[1])
        self.due = turn + self.pause
        return others[0]

    def note(self, way: Form, images: int, seconds: float) -> None:
        now = seconds / max(1, images)
        before = self.seconds.get(way, now)
        self.seconds[way] = min(now, (before + now) / 2)  # slow may be chance, fast is not


class Reader:
    """Turns files into squares on a device, in processes and threads of its own."""

    def __init__(self, side: int, device: torch.device, workers: int | None = None) -> None:
        self.side, self.device = side, device
        gpu = device.type == "cuda" and squares_there(side, device)
        self.decode = gpu_decoder(device) if gpu else None
        ways: list[Form] = ["jpeg", "whole"] if self.decode else ["whole"] if gpu else ["square"]
        self.faster = Faster(ways)
        cell = max(3 * side**2, LARGE if gpu else 0)  # bytes
        self.workers = Workers(workers or default_workers(), LANES * CHUNK, cell)
        self.cells = torch.frombuffer(self.workers.memory, dtype=torch.uint8).view(-1, cell)
        self.threads = ThreadPoolExecutor(LANES, "comatch-reader")
        # Torchvision takes memory of the current stream and writes to it on a stream of its own. So
        # that stream runs nothing else: its memory is really free when it is taken.
        self.decoding: Stream | None = None
        self.unpin = pin(self, self.cells, device) if device.type == "cuda" else None
        streams: list[Stream | None] = [None] * LANES
        if device.type == "cuda":
            self.decoding = torch.cuda.Stream(device)
            streams = [torch.cuda.Stream(device, priority=-1) for _ in range(LANES)]
        parts = [range(i * CHUNK, (i + 1) * CHUNK) for i in range(LANES)]
        self.lanes = deque(Lane(*lane) for lane in zip(parts, streams, strict=True))

    def submit(
        self, files: Files, rows: Sequence[int], places: Sequence[float], replace: bool = False
    ) -> Future[Chunk]:
        """Begins with these rows, each with the window's place along the longer side, 0 to 1.

        At most `CHUNK` of them. A file that gives no image is left out; or the next one that does
        takes its place.
        """
        return self.threads.submit(self._prepare, files, rows, places, replace)

    def read(self, files: Files, rows: Sequence[int]) -> int:
        """Only reads the files, and says how many they are."""
        self._ask(self.lanes[0], files, dict(enumerate(rows)), [0.5] * len(rows), "jpeg")
        return len(rows)

    def close(self, wait: bool = False) -> None:
        """Gives up what was submitted; if asked to, waits until the threads have ended."""
        self.threads.shutdown(wait, cancel_futures=True)
        self.workers.close()
        if wait and self.unpin:  # otherwise a thread may still be copying
            self.unpin()

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close(wait=True)

    def _prepare(
        self, files: Files, rows: Sequence[int], places: Sequence[float], replace: bool
    ) -> Chunk:
        lane, way, began = self.lanes.pop(), self.faster.choose(), time.perf_counter()
        try:
            wanted = dict(enumerate(rows))
            answers = self._ask(lane, files, wanted, places, way)
            jpegs = {i: self._bytes(lane, i, a) for i, a in answers.items() if a.form == "jpeg"}
            with on(self.decoding):
                decoded = self._decode(jpegs)
            refused = {i: rows[i] for i in jpegs if i not in decoded}
            answers |= self._ask(lane, files, refused, places)
            bad: dict[int, str] = {}
            for i in [i for i, answer in answers.items() if answer.why]:
                bad |= self._replace(lane, files, i, wanted, places, answers, replace)
            good = {i: answer for i, answer in answers.items() if not answer.why}
            pixels = {i: self._bytes(lane, i, a) for i, a in good.items() if a.form == "square"}
            with on(lane.stream):
                if decoded and lane.stream and self.decoding:
                    lane.stream.wait_stream(self.decoding)
                decoded |= self._fetch(lane, {i: a for i, a in good.items() if a.form == "whole"})
                images = self._put_together(decoded, pixels, places)
                if lane.stream:  # after this, what was decoded may make room for other images
                    done = torch.cuda.Event(blocking=True)
                    done.record()
                    done.synchronize()
            self.faster.note(way, len(rows), time.perf_counter() - began)
            return Chunk(images, [wanted[i] for i in sorted([*decoded, *pixels])], files, bad)
        finally:
            self.lanes.append(lane)

    def _ask(
        self,
        lane: Lane,
        files: Files,
        rows: dict[int, int],
        places: Sequence[float],
        form: Form = "square",
    ) -> dict[int, Answer]:
        """Has rows of the files read into the cells of their place in the chunk."""
        root = os.fspath(files.root)
        wanted = [
            Wanted(os.path.join(root, files.names[row]), places[i], lane.cells[i])
            for i, row in rows.items()
        ]
        return dict(zip(rows, self.workers.ask(wanted, self.side, form), strict=True))

    def _bytes(self, lane: Lane, i: int, answer: Answer) -> Tensor:
        return self.cells[lane.cells[i], : answer.length]

    def _decode(self, encoded: dict[int, Tensor]) -> dict[int, Tensor]:
        """What the GPU's decoder makes of them. It takes all or none: one is found by halving."""
        if not encoded or self.decode is None:
            return {}
        try:
            return dict(zip(encoded, self.decode(list(encoded.values())), strict=True))
        except RuntimeError:
            if len(encoded) == 1:  # which is for Pillow to judge
                return {}
        places = list(encoded)
        halves = places[: len(places) // 2], places[len(places) // 2 :]
        first, second = (self._decode({i: encoded[i] for i in half}) for half in halves)
        return first | second

    def _fetch(self, lane: Lane, whole: dict[int, Answer]) -> dict[int, Tensor]:
        """Whole images [3, H, W], all copied to the device at once."""
        if not whole:
            return {}
        first = lane.cells.start
        copied = self.cells[first : first + max(whole) + 1].to(self.device, non_blocking=True)
        return {
            i: copied[i, : answer.length].view(*answer.size, 3).permute(2, 0, 1)
            for i, answer in whole.items()
        }

    def _replace(
        self,
        lane: Lane,
        files: Files,
        i: int,
        rows: dict[int, int],
        places: Sequence[float],
        answers: dict[int, Answer],
        replace: bool,
    ) -> dict[int, str]:
        """Notes that a file gave no image; if another is to take its place, finds that."""
        bad = {rows[i]: answers[i].why}
        for _ in range(min(TRIES, len(files)) - 1 if replace else 0):
            rows[i] = (rows[i] + 1) % len(files)
            answers[i] = self._ask(lane, files, {i: rows[i]}, places)[i]
            if not answers[i].why:
                return bad
            bad[rows[i]] = answers[i].why
        if replace:
            raise UserError(f"{len(bad)} images in a row give none ({example(files, bad)})")
        return bad

    def _put_together(
        self, decoded: dict[int, Tensor], pixels: dict[int, Tensor], places: Sequence[float]
    ) -> Tensor:
        """Squares of what the GPU has decoded and of what has come as pixels, in order."""
        at = {i: n for n, i in enumerate(sorted([*decoded, *pixels]))}
        shape = (3, self.side, self.side)
        images = torch.empty(len(at), *shape, dtype=torch.uint8, device=self.device)
        if decoded:
            from comatch.kernels import squares  # Triton is there only where a GPU is

            where = [places[i] for i in decoded]
            squares.fit(list(decoded.values()), where, images, [at[i] for i in decoded])
        if pixels:
            others = torch.stack(list(pixels.values())).view(-1, *shape)
            images[[at[i] for i in pixels]] = pinned(others, self.device).to(self.device)
        return images


def on(stream: Stream | None) -> AbstractContextManager[object]:
    return torch.cuda.stream(stream) if stream else nullcontext()


def example(files: Files, bad: dict[int, str]) -> str:
    row, why = min(bad.items())
    return f"{files.names[row]}: {why}"


def pinned(values: Tensor, device: torch.device) -> Tensor:
    """In memory that a GPU can fetch from without anybody waiting."""
    return values.pin_memory() if device.type == "cuda" else values


# ------------------------------------------------------------------------------ on the GPU


def squares_there(side: int, device: torch.device) -> bool:
    """Whether the GPU squares images itself. Trying it compiles the kernel before time counts."""
    try:
        from comatch.kernels import squares

        tiny = torch.zeros(1, 3, side, side, dtype=torch.uint8, device=device)
        squares.fit([tiny[0]], [0.5], tiny, [0])
        return True
    except (ImportError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        warnings.warn(f"images are squared on the CPU: the GPU cannot ({reason})", stacklevel=2)
        return False


def pin(owner: object, memory: Tensor, device: torch.device) -> Callable[[], object] | None:
    """Makes this memory that a GPU can fetch from by itself, until its owner is gone or we undo it.

    If that cannot be, fetching is slower. Memory that is given back while it is still pinned makes
    a later one at the same place fail; so it is kept until then.
    """
    cuda = torch.cuda.cudart()
    if int(cuda.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)) != 0:
        with suppress(RuntimeError):  # CUDA tells it once more, to whoever asks for something next
            torch.zeros((), device=device)
        return None
    undo = weakref.finalize(owner, lambda: cuda.cudaHostUnregister(memory.data_ptr()))
    undo.atexit = False  # the driver may be gone by then
    return undo


def gpu_decoder(device: torch.device) -> Callable[[list[Tensor]], list[Tensor]] | None:
    """Torchvision's decoder of JPEGs on a GPU, if it works here."""
    try:
        from torchvision.io import ImageReadMode, decode_jpeg

        def decode(encoded: list[Tensor]) -> list[Tensor]:
            images: list[Tensor] = decode_jpeg(encoded, ImageReadMode.RGB, device)
            return images

        file = io.BytesIO()
        Image.new("RGB", (16, 16)).save(file, "JPEG")
        decode([torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)])
        return decode
    except (ImportError, RuntimeError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        warnings.warn(
            f"JPEGs are decoded on the CPU: the GPU's decoder cannot be used ({reason})",
            stacklevel=2,
        )
        return None
