"""Renders augmented views of images in the background, for the encoder to encode."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from comatch.data import views
from comatch.data.image_workers import Wanted, Workers, default_workers
from comatch.data.images import ImageError
from comatch.data.views import Digest
from comatch.types import Images, Part

CHUNK = 16  # images
LANES = 3  # chunks in work
FEW = 100  # images that are rendered faster than worker processes start


class Rendered(NamedTuple):
    """Views of some images; `bad` has the rows that cannot be read, and why."""

    rows: list[int]  # [n]
    pixels: np.ndarray  # [n, V, 3, size, size] uint8
    bad: dict[int, str]


Render = Callable[[int, list[int]], Rendered]  # (lane, rows)


def render(
    part: Part, rows: Sequence[int], digests: Sequence[Digest], numbers: Sequence[int], size: int
) -> Iterator[Rendered]:
    """These views of the rows of a part, whose digests are known, chunk by chunk and in order.

    Files are read by worker processes if there are many of them.
    """
    if isinstance(part, Images) or len(rows) < FEW:
        yield from in_background(in_threads(part, digests, numbers, size), rows)
        return
    workers = Workers(default_workers(), LANES * CHUNK, len(numbers) * 3 * size**2)
    try:
        yield from in_background(in_workers(workers, part, digests, numbers, size), rows)
    finally:
        workers.close()


def in_background(work: Render, rows: Sequence[int]) -> Iterator[Rendered]:
    """The results of `work` on chunks of the rows, computed ahead by one thread a lane."""
    chunks = deque(list(rows[i : i + CHUNK]) for i in range(0, len(rows), CHUNK))
    free, pending = deque(range(LANES)), deque[tuple[int, Future[Rendered]]]()
    with ThreadPoolExecutor(LANES, "comatch-views") as pool:
        try:
            while chunks or pending:
                while chunks and free:
                    lane = free.popleft()
                    pending.append((lane, pool.submit(work, lane, chunks.popleft())))
                lane, future = pending.popleft()
                yield future.result()  # the caller copies the pixels before it goes on
                free.append(lane)
        finally:
            for _, future in pending:
                future.cancel()


def in_workers(
    workers: Workers, part: Part, digests: Sequence[Digest], numbers: Sequence[int], size: int
) -> Render:
    assert not isinstance(part, Images)
    shape = (len(numbers), 3, size, size)
    cells = np.frombuffer(workers.memory, np.uint8).reshape(LANES * CHUNK, *shape)

    def work(lane: int, rows: list[int]) -> Rendered:
        first = lane * CHUNK
        wanted = [
            Wanted(str(part.root / part.names[row]), 0.5, first + i, numbers, digests[row])
            for i, row in enumerate(rows)
        ]
        answers = workers.ask(wanted, size, "views")
        good = [i for i, answer in enumerate(answers) if not answer.why]
        bad = {row: a.why for row, a in zip(rows, answers, strict=True) if a.why}
        here = cells[first : first + len(rows)]
        return Rendered([rows[i] for i in good], here if not bad else here[good], bad)

    return work


def in_threads(part: Part, digests: Sequence[Digest], numbers: Sequence[int], size: int) -> Render:
    def work(lane: int, rows: list[int]) -> Rendered:
        found, bad = {}, {}
        for row in rows:
            try:
                if isinstance(part, Images):
                    pixels = part.images[row].numpy()
                    found[row] = views.views_of_array(pixels, digests[row], numbers, size)
                else:
                    path = part.root / part.names[row]
                    found[row] = views.read_views(path, digests[row], numbers, size)
            except ImageError as error:
                bad[row] = str(error)
        empty = np.empty((0, len(numbers), 3, size, size), np.uint8)
        return Rendered(list(found), np.stack(list(found.values())) if found else empty, bad)

    return work
