"""From image files to squares of pixels on a device, in the background.

The shorter side of an image becomes `side` pixels, and a window of the same length is cut from the
longer side. Worker processes read the files (`image_workers`). For a CPU, Pillow does all of the
work in the workers. For a GPU there are two forms in which workers pass an image on, and the reader
takes the one that was faster recently:

    jpeg    the file itself; the GPU decodes a whole chunk. The fastest form, except while other
            work keeps the GPU busy
    whole   the decoded image; Pillow decodes in the workers, on the CPU

In both cases one kernel resizes and crops the whole chunk. Pillow resizes and crops the images for
which neither form works: too large, damaged, and for the GPU's decoder other formats, CMYK and
images rotated by EXIF. The results differ only as decoders differ.
"""

import io
import itertools
import os
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
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

CHUNK = 256  # images decoded together: the GPU's decoder is efficient for many
LANES = 3  # chunks in work: one is read, one decoded, one resized
LARGE = 3 * 2**18  # bytes of a cell for a GPU; a larger file or image is passed as a square
RETRY_AFTER = (4, 1024)  # chunks until the slower form is tried again: at first, at most
TRIES = 100  # consecutive unreadable files that are an error


class Chunk(NamedTuple):
    """Images on the device."""

    images: Tensor  # [n, 3, R, R] uint8
    rows: list[int]  # [n] which of the files these are
    files: Files
    bad: dict[int, str]  # unreadable rows, and why


class Lane(NamedTuple):
    """The resources of one chunk in work."""

    cells: range  # its part of the shared memory, one cell for each image
    stream: Stream | None  # resizes and crops


class FastestForm:
    """Chooses the form that was fastest recently; sometimes another, to measure it again."""

    def __init__(self, forms: Iterable[Form]) -> None:
        self.forms = list(forms)
        self.seconds: dict[Form, float] = {}  # for one image
        self.turns = itertools.count(1)
        self.pause, self.due = RETRY_AFTER[0], RETRY_AFTER[0]

    def choose(self) -> Form:
        turn = next(self.turns)
        for form in self.forms:
            if form not in self.seconds:
                return form
        first, *others = sorted(self.forms, key=self.seconds.__getitem__)
        if not others or turn < self.due:
            return first
        self.pause = min(2 * self.pause, RETRY_AFTER[1])
        self.due = turn + self.pause
        return others[0]

    def record(self, form: Form, images: int, seconds: float) -> None:
        now = seconds / max(1, images)
        before = self.seconds.get(form, now)
        self.seconds[form] = min(now, (before + now) / 2)  # a slow one may be chance


class Reader:
    """Reads files as squares on a device, with its own processes and threads."""

    def __init__(self, side: int, device: torch.device, workers: int | None = None) -> None:
        self.side, self.device = side, device
        gpu = device.type == "cuda" and can_resize(side, device)
        self.decode = gpu_decoder(device) if gpu else None
        forms: list[Form] = ["jpeg", "whole"] if self.decode else ["whole"] if gpu else ["square"]
        self.fastest = FastestForm(forms)
        cell = max(3 * side**2, LARGE if gpu else 0)  # bytes
        self.workers = Workers(workers or default_workers(), LANES * CHUNK, cell)
        self.cells = torch.frombuffer(self.workers.memory, dtype=torch.uint8).view(-1, cell)
        self.threads = ThreadPoolExecutor(LANES, "comatch-reader")
        # Torchvision's decoder allocates on the current stream and writes on one of its own. The
        # current stream must run nothing else: then the allocated memory is no longer in use.
        self.decoding: Stream | None = None
        self.unpin = pin(self, self.cells, device) if device.type == "cuda" else None
        streams: list[Stream | None] = [None] * LANES
        if device.type == "cuda":
            self.decoding = torch.cuda.Stream(device)
            streams = [torch.cuda.Stream(device, priority=-1) for _ in range(LANES)]
        parts = [range(i * CHUNK, (i + 1) * CHUNK) for i in range(LANES)]
        self.lanes = deque(Lane(*lane) for lane in zip(parts, streams, strict=True))

    def submit(
        self, files: Files, rows: Sequence[int], positions: Sequence[float], replace: bool = False
    ) -> Future[Chunk]:
        """Start to read at most `CHUNK` rows; `positions` of the windows are between 0 and 1.

        An unreadable file is left out, or with `replace` the next readable one takes its place.
        """
        return self.threads.submit(self._prepare, files, rows, positions, replace)

    def read_all(self, files: Files, replace: bool = False) -> Iterator[Chunk]:
        """All images with their central windows, in order, read ahead in the background.

        With `replace`, another image stands in for one that cannot be read.
        """
        begins = deque(range(0, len(files), CHUNK))
        pending: deque[Future[Chunk]] = deque()
        while begins or pending:
            while begins and len(pending) <= LANES:
                begin = begins.popleft()
                rows = range(begin, min(begin + CHUNK, len(files)))
                pending.append(self.submit(files, rows, [0.5] * len(rows), replace))
            yield pending.popleft().result()

    def read(self, files: Files, rows: Sequence[int]) -> int:
        """Read the files without decoding them; return their number."""
        self._ask(self.lanes[0], files, dict(enumerate(rows)), [0.5] * len(rows), "jpeg")
        return len(rows)

    def close(self, wait: bool = False) -> None:
        """Cancel what was submitted; with `wait`, return once the threads have ended."""
        self.threads.shutdown(wait, cancel_futures=True)
        self.workers.close()
        if wait and self.unpin:  # without `wait`, a thread may still be copying
            self.unpin()

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close(wait=True)

    def _prepare(
        self, files: Files, rows: Sequence[int], positions: Sequence[float], replace: bool
    ) -> Chunk:
        lane, form, began = self.lanes.pop(), self.fastest.choose(), time.perf_counter()
        try:
            wanted = dict(enumerate(rows))
            answers = self._ask(lane, files, wanted, positions, form)
            jpegs = {i: self._bytes(lane, i, a) for i, a in answers.items() if a.form == "jpeg"}
            with on_stream(self.decoding):
                decoded = self._decode(jpegs)
            refused = {i: rows[i] for i in jpegs if i not in decoded}
            answers |= self._ask(lane, files, refused, positions)
            bad: dict[int, str] = {}
            for i in [i for i, answer in answers.items() if answer.why]:
                bad |= self._replace(lane, files, i, wanted, positions, answers, replace)
            good = {i: answer for i, answer in answers.items() if not answer.why}
            pixels = {i: self._bytes(lane, i, a) for i, a in good.items() if a.form == "square"}
            with on_stream(lane.stream):
                if decoded and lane.stream and self.decoding:
                    lane.stream.wait_stream(self.decoding)
                decoded |= self._fetch(lane, {i: a for i, a in good.items() if a.form == "whole"})
                images = self._put_together(decoded, pixels, positions)
                if lane.stream:  # wait: then the memory of the decoded images may be used again
                    done = torch.cuda.Event(blocking=True)
                    done.record()
                    done.synchronize()
            self.fastest.record(form, len(rows), time.perf_counter() - began)
            return Chunk(images, [wanted[i] for i in sorted([*decoded, *pixels])], files, bad)
        finally:
            self.lanes.append(lane)

    def _ask(
        self,
        lane: Lane,
        files: Files,
        rows: dict[int, int],
        positions: Sequence[float],
        form: Form = "square",
    ) -> dict[int, Answer]:
        """Let the workers read rows into the cells of their indices in the chunk."""
        root = os.fspath(files.root)
        wanted = [
            Wanted(os.path.join(root, files.names[row]), positions[i], lane.cells[i])
            for i, row in rows.items()
        ]
        return dict(zip(rows, self.workers.ask(wanted, self.side, form), strict=True))

    def _bytes(self, lane: Lane, i: int, answer: Answer) -> Tensor:
        return self.cells[lane.cells[i], : answer.length]

    def _decode(self, encoded: dict[int, Tensor]) -> dict[int, Tensor]:
        """JPEGs decoded on the GPU. It decodes all or none, so a bad one is found by bisection."""
        if not encoded or self.decode is None:
            return {}
        try:
            return dict(zip(encoded, self.decode(list(encoded.values())), strict=True))
        except RuntimeError:
            if len(encoded) == 1:  # Pillow will try it
                return {}
        indices = list(encoded)
        halves = indices[: len(indices) // 2], indices[len(indices) // 2 :]
        first, second = (self._decode({i: encoded[i] for i in half}) for half in halves)
        return first | second

    def _fetch(self, lane: Lane, whole: dict[int, Answer]) -> dict[int, Tensor]:
        """Whole images [3, H, W], copied to the device in one transfer."""
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
        positions: Sequence[float],
        answers: dict[int, Answer],
        replace: bool,
    ) -> dict[int, str]:
        """Record an unreadable file; with `replace`, read the next readable one instead."""
        bad = {rows[i]: answers[i].why}
        for _ in range(min(TRIES, len(files)) - 1 if replace else 0):
            rows[i] = (rows[i] + 1) % len(files)
            answers[i] = self._ask(lane, files, {i: rows[i]}, positions)[i]
            if not answers[i].why:
                return bad
            bad[rows[i]] = answers[i].why
        if replace:
            raise UserError(f"{len(bad)} images in a row give none ({example(files, bad)})")
        return bad

    def _put_together(
        self, decoded: dict[int, Tensor], pixels: dict[int, Tensor], positions: Sequence[float]
    ) -> Tensor:
        """Squares of the decoded images and the finished squares in one tensor, in order."""
        at = {i: n for n, i in enumerate(sorted([*decoded, *pixels]))}
        shape = (3, self.side, self.side)
        images = torch.empty(len(at), *shape, dtype=torch.uint8, device=self.device)
        if decoded:
            from comatch.kernels import squares  # Triton is installed only with CUDA

            where = [positions[i] for i in decoded]
            squares.fit(list(decoded.values()), where, images, [at[i] for i in decoded])
        if pixels:
            others = torch.stack(list(pixels.values())).view(-1, *shape)
            images[[at[i] for i in pixels]] = pinned(others, self.device).to(self.device)
        return images


def on_stream(stream: Stream | None) -> AbstractContextManager[object]:
    return torch.cuda.stream(stream) if stream else nullcontext()


def example(files: Files, bad: dict[int, str]) -> str:
    row, why = min(bad.items())
    return f"{files.names[row]}: {why}"


def pinned(values: Tensor, device: torch.device) -> Tensor:
    """In pinned memory if the device is a GPU, which can then copy asynchronously."""
    return values.pin_memory() if device.type == "cuda" else values


# ------------------------------------------------------------------------------ on the GPU


def can_resize(side: int, device: torch.device) -> bool:
    """Whether the GPU can resize and crop images. The trial also compiles the kernel."""
    try:
        from comatch.kernels import squares

        tiny = torch.zeros(1, 3, side, side, dtype=torch.uint8, device=device)
        squares.fit([tiny[0]], [0.5], tiny, [0])
        return True
    except (ImportError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        warnings.warn(f"images are resized on the CPU: the GPU cannot ({reason})", stacklevel=2)
        return False


def pin(owner: object, memory: Tensor, device: torch.device) -> Callable[[], object] | None:
    """Pin memory until its owner is deleted or the returned function is called.

    Return None if it cannot be pinned; copies are slower then. Memory must be unpinned before it is
    freed, or later memory at the same address cannot be used.
    """
    cuda = torch.cuda.cudart()
    if int(cuda.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)) != 0:
        with suppress(RuntimeError):  # CUDA reports the error again at the next call
            torch.zeros((), device=device)
        return None
    undo = weakref.finalize(owner, lambda: cuda.cudaHostUnregister(memory.data_ptr()))
    undo.atexit = False  # the driver may be gone by then
    return undo


def gpu_decoder(device: torch.device) -> Callable[[list[Tensor]], list[Tensor]] | None:
    """Torchvision's JPEG decoder on the GPU, or None with a warning."""
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
