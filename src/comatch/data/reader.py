"""From files to squares of pixels on a device, in threads.

The shorter side of a picture becomes `side` pixels, and along the longer one a window of the same
length is cut out. On a GPU whole chunks are decoded there and squared in two matrix products. What
its decoder does not take (another format, CMYK, turned by its EXIF, cut off) goes the way of a CPU,
where Pillow does all of it. Both give the same pictures but for what decoders differ in.
"""

import io
import os
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.cuda import Stream

from comatch.data.folder import PictureError, read_picture
from comatch.errors import UserError
from comatch.types import Files

CHUNK = 256  # pictures that are decoded together: the GPU's decoder wants many
LANES = 3  # chunks at a time: one is read, one decoded, one squared
IN_ONE = 64  # pictures that are squared together
LARGE = 1024  # pixels: a picture with a longer side is squared alone, lest all are padded to it
TRIES = 100  # files in a row that give no picture before it is an error

Item = TypeVar("Item")
Result = TypeVar("Result")


class Chunk(NamedTuple):
    """Some pictures, ready on the device once `done` has happened there."""

    images: Tensor  # [n, 3, R, R] uint8
    rows: list[int]  # [n] which of the files these are
    files: Files
    bad: dict[int, str]  # rows that gave no picture, and why
    done: torch.cuda.Event | None


class Reader:
    """Turns files into squares on a device, in threads of its own."""

    def __init__(self, side: int, device: torch.device, workers: int | None = None) -> None:
        self.side, self.device = side, device
        self.workers = workers or os.cpu_count() or 1
        self.threads = ThreadPoolExecutor(self.workers, "comatch-reader")
        self.lanes = ThreadPoolExecutor(LANES, "comatch-decoder")
        self.decode = gpu_decoder(device) if device.type == "cuda" else None
        # Torchvision takes memory of the current stream and writes to it on a stream of its own. So
        # that stream runs nothing else: its memory is really free when it is taken.
        self.decoding: Stream | None = None
        self.squaring: deque[Stream | None] = deque([None] * LANES)  # one for each lane
        if device.type == "cuda":
            self.decoding = torch.cuda.Stream(device)
            self.squaring = deque(torch.cuda.Stream(device, priority=-1) for _ in range(LANES))

    def submit(
        self, files: Files, rows: Sequence[int], places: Sequence[float], replace: bool = False
    ) -> Future[Chunk]:
        """Begins with these rows, each with the window's place along the longer side, 0 to 1.

        A file that gives no picture is left out; or the next one that does takes its place.
        """
        return self.lanes.submit(self._prepare, files, rows, places, replace)

    def close(self, wait: bool = False) -> None:
        """Gives up what was submitted; if asked to, waits until the threads have ended."""
        for pool in (self.lanes, self.threads):
            pool.shutdown(wait, cancel_futures=True)

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, files: Files, rows: Sequence[int]) -> list[Tensor | None]:
        """The bytes of files, as far as they are JPEGs for the GPU's decoder."""
        return self._spread(lambda row: read_jpeg(os.path.join(files.root, files.names[row])), rows)

    def _prepare(
        self, files: Files, rows: Sequence[int], places: Sequence[float], replace: bool
    ) -> Chunk:
        squaring = self.squaring.pop()
        try:
            with on(self.decoding):
                encoded = self.read(files, rows) if self.decode else []
                decoded = self._decode({i: d for i, d in enumerate(encoded) if d is not None})
            rest = [i for i in range(len(rows)) if i not in decoded]
            by_cpu = self._by_pillow(files, rows, places, rest, replace)
            with on(squaring):
                if squaring and self.decoding:
                    squaring.wait_stream(self.decoding)
                chunk = self._put_together(files, rows, places, decoded, by_cpu)
                if squaring:
                    for picture in decoded.values():
                        picture.record_stream(squaring)
                    chunk = chunk._replace(done=squaring.record_event())
            return chunk
        finally:
            self.squaring.append(squaring)

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

    def _by_pillow(
        self,
        files: Files,
        rows: Sequence[int],
        places: Sequence[float],
        wanted: Sequence[int],
        replace: bool,
    ) -> dict[int, "Found"]:
        def find(i: int) -> Found:
            row, bad = rows[i], dict[int, str]()
            for _ in range(min(TRIES, len(files)) if replace else 1):
                try:
                    path = files.root / files.names[row]
                    return Found(row, read_picture(path, self.side, places[i]), bad)
                except PictureError as error:
                    bad[row] = str(error)
                    row = (row + 1) % len(files)
            if replace:
                raise UserError(f"{len(bad)} pictures in a row give none ({example(files, bad)})")
            return Found(row, None, bad)

        return dict(zip(wanted, self._spread(find, wanted), strict=True))

    def _put_together(
        self,
        files: Files,
        rows: Sequence[int],
        places: Sequence[float],
        decoded: dict[int, Tensor],
        by_cpu: dict[int, "Found"],
    ) -> Chunk:
        read = {i: found for i, found in by_cpu.items() if found.pixels is not None}
        kept = sorted([*decoded, *read])
        at = {i: n for n, i in enumerate(kept)}
        shape = (len(kept), 3, self.side, self.side)
        images = torch.empty(shape, dtype=torch.uint8, device=self.device)
        large = [i for i, picture in decoded.items() if max(picture.shape) > LARGE]
        usual = [i for i in decoded if i not in large]
        for some in (*pieces(usual, IN_ONE), *pieces(large, 1)):
            squares = fit([decoded[i] for i in some], self.side, [places[i] for i in some])
            where = pinned(torch.tensor([at[i] for i in some]), self.device)
            images.index_copy_(0, where.to(self.device, non_blocking=True), squares)
        for i, found in read.items():
            images[at[i]].copy_(pinned(torch.from_numpy(found.pixels), self.device), True)
        final = [by_cpu[i].row if i in by_cpu else rows[i] for i in kept]
        bad = {row: why for found in by_cpu.values() for row, why in found.bad.items()}
        return Chunk(images, final, files, bad, None)

    def _spread(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """The work on all items, in the threads: a few items at once, since asking costs too."""
        piece = max(1, min(16, len(items) // (4 * self.workers)))

        def several(some: Sequence[Item]) -> list[Result]:
            return [work(item) for item in some]

        jobs = [self.threads.submit(several, some) for some in pieces(items, piece)]
        return [result for job in jobs for result in job.result()]


def on(stream: Stream | None) -> AbstractContextManager[object]:
    return torch.cuda.stream(stream) if stream else nullcontext()


class Found(NamedTuple):
    """What became of a file: a picture, perhaps of a later row."""

    row: int
    pixels: np.ndarray | None  # [3, R, R] uint8
    bad: dict[int, str]


def example(files: Files, bad: dict[int, str]) -> str:
    row, why = min(bad.items())
    return f"{files.names[row]}: {why}"


def pieces(items: Sequence[Item], length: int) -> list[Sequence[Item]]:
    return [items[i : i + length] for i in range(0, len(items), length)]


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
        return decode
    except (ImportError, RuntimeError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        warnings.warn(
            f"JPEGs are decoded on the CPU: the GPU's decoder cannot be used ({reason})",
            stacklevel=2,
        )
        return None


def read_jpeg(path: str) -> Tensor | None:
    """The bytes of a file if the GPU's decoder may have it: a whole JPEG that stands upright.

    A file that was cut off lacks its last two bytes, which the decoder would not mind.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            data = bytearray(os.fstat(file.fileno()).st_size)
            file.readinto(data)
    except OSError:
        return None
    if not (data.startswith(b"\xff\xd8\xff") and data.endswith(b"\xff\xd9")):
        return None
    if data.find(b"Exif\0\0", 0, 4096) >= 0 and _turned(path):
        return None
    return torch.frombuffer(data, dtype=torch.uint8)


def _turned(path: str) -> bool:
    with suppress(Exception), Image.open(path, formats=["JPEG"]) as image:
        return image.getexif().get(0x0112, 1) != 1
    return True


def fit(pictures: list[Tensor], side: int, places: Sequence[float]) -> Tensor:
    """Squares [N, 3, side, side] of pictures [3, H, W] of any size: as `square`, many at once.

    Pillow's bilinear filter is a weighted sum along rows, rounded, then one along columns: two
    matrix products for all pictures together, each padded to the largest.
    """
    device = pictures[0].device
    kind = torch.half if device.type == "cuda" else torch.float  # a pixel is exact in either
    sizes = torch.tensor([picture.shape[1:] for picture in pictures], dtype=torch.float)  # [N, 2]
    height, width = (int(most) for most in sizes.amax(0))
    padded = torch.zeros(len(pictures), height, 3, width, dtype=kind, device=device)
    for target, picture in zip(padded, pictures, strict=True):
        target[: picture.shape[1], :, : picture.shape[2]].copy_(picture.transpose(0, 1))
    shorter = sizes.amin(1)
    begin = (sizes - shorter[:, None]) * torch.tensor(places, dtype=torch.float)[:, None]
    facts = torch.cat([sizes, begin, shorter[:, None] / side], 1)  # [N, 5]
    tall, wide, top, left, scale = pinned(facts, device).to(device, non_blocking=True).unbind(1)
    across = _weights(width, wide, left, scale, side).to(kind)  # [N, side, W]
    down = _weights(height, tall, top, scale, side).to(kind)  # [N, side, H]
    narrow = (padded.flatten(1, 2) @ across.transpose(1, 2) + 0.5).floor()  # [N, 3 H, side]
    squares = down @ narrow.view(-1, height, 3 * side)  # [N, side, 3 side]
    squares = squares.view(-1, side, 3, side).transpose(1, 2)
    return (squares + 0.5).clamp(0, 255).byte()


def _weights(length: int, extent: Tensor, begin: Tensor, scale: Tensor, side: int) -> Tensor:
    """How much of each pixel of a line is in each of `side` new ones: [N, side, length]."""
    new = torch.arange(side, device=extent.device) + 0.5
    old = torch.arange(length, device=extent.device) + 0.5
    centre = begin[:, None] + new * scale[:, None]  # [N, side]
    distance = (old - centre[:, :, None]).abs() / scale.clamp(min=1)[:, None, None]
    weights = (1 - distance).clamp(min=0) * (old < extent[:, None, None])
    return weights / weights.sum(2, keepdim=True)
