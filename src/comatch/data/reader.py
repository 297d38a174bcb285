"""From files to squares of pixels on a device, ahead of the time when they are needed.

The shorter side of a picture becomes `side` pixels, and along the longer one a window of the same
length is cut out. Files are read by processes (`workers`). On a GPU whole chunks are decoded there
and squared in one kernel. What its decoder does not take (another format, CMYK, turned by its EXIF,
cut off) goes the way of a CPU, where Pillow does all of it in the processes. Both give the same
pictures but for what decoders differ in.
"""

import io
import os
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor
from torch.cuda import Stream

from comatch.data.workers import Answer, Wanted, Workers, default_workers
from comatch.errors import UserError
from comatch.types import Files

CHUNK = 256  # pictures that are decoded together: the GPU's decoder wants many
LANES = 3  # chunks at a time: one is read, one decoded, one squared
LARGE = 2**19  # bytes: a longer JPEG is decoded by Pillow, which need not make all its pixels
TRIES = 100  # files in a row that give no picture before it is an error


class Chunk(NamedTuple):
    """Some pictures, ready on the device."""

    images: Tensor  # [n, 3, R, R] uint8
    rows: list[int]  # [n] which of the files these are
    files: Files
    bad: dict[int, str]  # rows that gave no picture, and why


class Lane(NamedTuple):
    """What a chunk needs on its way."""

    cells: range  # its part of the memory, a cell for each picture
    stream: Stream | None  # on which it is squared


class Reader:
    """Turns files into squares on a device, in processes and threads of its own."""

    def __init__(self, side: int, device: torch.device, workers: int | None = None) -> None:
        self.side, self.device = side, device
        self.decode = gpu_decoder(device) if device.type == "cuda" else None
        cell = max(3 * side**2, LARGE if self.decode else 0)  # bytes
        self.workers = Workers(workers or default_workers(), LANES * CHUNK, cell)
        self.cells = torch.frombuffer(self.workers.memory, dtype=torch.uint8).view(-1, cell)
        self.threads = ThreadPoolExecutor(LANES, "comatch-reader")
        # Torchvision takes memory of the current stream and writes to it on a stream of its own. So
        # that stream runs nothing else: its memory is really free when it is taken.
        self.decoding: Stream | None = None
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

        At most `CHUNK` of them. A file that gives no picture is left out; or the next one that does
        takes its place.
        """
        return self.threads.submit(self._prepare, files, rows, places, replace)

    def read(self, files: Files, rows: Sequence[int]) -> int:
        """Only reads the files, and says how many they are."""
        self._ask(self.lanes[0], files, dict(enumerate(rows)), [0.5] * len(rows), jpegs=True)
        return len(rows)

    def close(self, wait: bool = False) -> None:
        """Gives up what was submitted; if asked to, waits until the threads have ended."""
        self.threads.shutdown(wait, cancel_futures=True)
        self.workers.close()

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _prepare(
        self, files: Files, rows: Sequence[int], places: Sequence[float], replace: bool
    ) -> Chunk:
        lane = self.lanes.pop()
        try:
            wanted = dict(enumerate(rows))
            answers = self._ask(lane, files, wanted, places, jpegs=self.decode is not None)
            jpegs = {i: self._bytes(lane, i, a) for i, a in answers.items() if a.jpeg}
            with on(self.decoding):
                decoded = self._decode(jpegs)
            refused = {i: rows[i] for i in jpegs if i not in decoded}
            answers |= self._ask(lane, files, refused, places)
            bad: dict[int, str] = {}
            for i in [i for i, answer in answers.items() if answer.why]:
                bad |= self._replace(lane, files, i, wanted, places, answers, replace)
            pixels = {
                i: self._bytes(lane, i, a) for i, a in answers.items() if not a.jpeg and a.length
            }
            with on(lane.stream):
                if lane.stream and self.decoding:
                    lane.stream.wait_stream(self.decoding)
                images = self._put_together(decoded, pixels, places)
                if lane.stream:  # after this, what was decoded may make room for other pictures
                    done = torch.cuda.Event(blocking=True)
                    done.record()
                    done.synchronize()
            return Chunk(images, [wanted[i] for i in sorted([*decoded, *pixels])], files, bad)
        finally:
            self.lanes.append(lane)

    def _ask(
        self,
        lane: Lane,
        files: Files,
        rows: dict[int, int],
        places: Sequence[float],
        jpegs: bool = False,
    ) -> dict[int, Answer]:
        """Has rows of the files read into the cells of their place in the chunk."""
        root = os.fspath(files.root)
        wanted = [
            Wanted(os.path.join(root, files.names[row]), places[i], lane.cells[i])
            for i, row in rows.items()
        ]
        return dict(zip(rows, self.workers.ask(wanted, self.side, jpegs), strict=True))

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
        """Notes that a file gave no picture; if another is to take its place, finds that."""
        bad = {rows[i]: answers[i].why}
        for _ in range(min(TRIES, len(files)) - 1 if replace else 0):
            rows[i] = (rows[i] + 1) % len(files)
            answers[i] = self._ask(lane, files, {i: rows[i]}, places)[i]
            if not answers[i].why:
                return bad
            bad[rows[i]] = answers[i].why
        if replace:
            raise UserError(f"{len(bad)} pictures in a row give none ({example(files, bad)})")
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


def gpu_decoder(device: torch.device) -> Callable[[list[Tensor]], list[Tensor]] | None:
    """Torchvision's decoder of JPEGs on a GPU, if it works here."""
    try:
        from torchvision.io import ImageReadMode, decode_jpeg

        def decode(encoded: list[Tensor]) -> list[Tensor]:
            pictures: list[Tensor] = decode_jpeg(encoded, ImageReadMode.RGB, device)
            return pictures

        file = io.BytesIO()
        Image.new("RGB", (16, 16)).save(file, "JPEG")
        decode([torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)])
        from comatch.kernels import squares  # noqa: F401  what is decoded there is squared there

        return decode
    except (ImportError, RuntimeError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        warnings.warn(
            f"JPEGs are decoded on the CPU: the GPU's decoder cannot be used ({reason})",
            stacklevel=2,
        )
        return None
