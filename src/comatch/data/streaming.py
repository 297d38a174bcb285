"""Images that are read while training: those of which there are too many to hold.

An image on its way to a batch is squared: its shorter side becomes 256 pixels where views have
224, and along the longer one a window of the same length is cut out, at a place that is drawn anew
each time. Views are cropped from that square on the device, as they are from resident images.
Evaluation takes the middle 224 of the middle window, as the paper does. What is lost against crops
from the whole image: none is wider than the image is tall, and one that enlarges a small part
begins with fewer pixels.

Batches are prepared ahead of the step that takes them, a fixed number of them, so memory is bounded
however many images there are. What is drawn follows from the seed and the step alone: a run that
goes on needs no state but which images could not be read.
"""

import warnings
import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from comatch import distributed
from comatch.data.reader import CHUNK, LANES, Chunk, Reader, example, pinned
from comatch.data.resident import Draw, Resident
from comatch.errors import UserError
from comatch.types import AllImages, Files, Images, Part

FEW_BAD = 3  # images that cannot be read are no reason to stop, however few there are


def side_for(image_size: int) -> int:
    """Of the square that views of this size are cropped from: 256 for 224."""
    return round(image_size * 256 / 224)


Pixels = TypeVar("Pixels", Tensor, np.ndarray)


def middle(images: Pixels, size: int) -> Pixels:  # [..., R, R] -> [..., size, size]
    margin = (images.shape[-1] - size) // 2
    return images[..., margin : margin + size, margin : margin + size]


class Order:
    """Rows in random order, each used once before any is used again; known for any step.

    If there are fewer rows than a batch takes, several shuffles follow each other within it. Ranks
    share the order, and each takes its part of a batch.
    """

    def __init__(self, rows: int, batch: int, *seeds: int) -> None:
        self.rows, self.batch, self.seeds = rows, batch, seeds
        self.batches = max(1, rows // max(1, batch))  # in one pass
        self.turn, self.order = -1, np.empty(0, dtype=np.int64)

    def at(self, step: int) -> np.ndarray:  # [batch]
        turn, place = divmod(step, self.batches)
        if turn != self.turn:
            random = np.random.default_rng([*self.seeds, turn])
            rounds = -(-self.batches * self.batch // max(1, self.rows))
            shuffles = [random.permutation(self.rows) for _ in range(rounds)]
            self.turn, self.order = turn, np.concatenate([np.empty(0, np.int64), *shuffles])
        return self.order[place * self.batch : (place + 1) * self.batch][slice_of(self.batch)]


def slice_of(batch: int) -> slice:
    """This rank's part of a batch."""
    mine = distributed.share(batch)
    return slice(mine.start, mine.stop)


class Streaming(nn.Module):
    """Labelled and unlabelled images on a disk, with the face of `Resident`.

    A batch is put into buffers that stay where they are, so a captured step reads each new one.
    """

    unreadable: Tensor  # [X + U] files that gave no image
    images: Tensor  # [B + muB, 3, R, R] uint8
    y: Tensor
    rows: Tensor
    truth: Tensor

    def __init__(
        self,
        labelled: Files,
        unlabelled: Files,
        batch: int,
        mu: int,
        *,
        side: int,
        device: torch.device,
        seed: int = 0,
        workers: int | None = None,
        ahead: int = 2,
    ) -> None:
        super().__init__()
        self.parts, self.seed, self.ahead = (labelled, unlabelled), seed, ahead
        self.shuffle_x = Order(len(labelled), batch, seed, 0)
        self.shuffle_u = Order(len(unlabelled), batch * mu, seed, 1)
        self.sizes = [len(distributed.share(n)) for n in (batch, batch * mu)]
        pixels = torch.zeros(sum(self.sizes), 3, side, side, dtype=torch.uint8, device=device)
        self.register_buffer("images", pixels, persistent=False)
        for name, size in zip(("y", "rows", "truth"), (*self.sizes, self.sizes[1]), strict=True):
            numbers = torch.zeros(size, dtype=torch.long, device=device)
            self.register_buffer(name, numbers, persistent=False)
        both = torch.zeros(len(labelled) + len(unlabelled), dtype=torch.bool)
        self.register_buffer("unreadable", both)
        self.reader = Reader(side, device, workers)
        self.pending: deque[list[Future[Chunk]]] = deque()  # of the next steps
        self.copied: deque[torch.cuda.Event] = deque()
        self.next = 0  # step whose batch is the first of the pending ones
        weakref.finalize(self, self.reader.close)

    def before_step(self, step: int) -> None:
        """Puts the batch of this step into the buffers, and sends for the next ones."""
        if step != self.next:  # a run that goes on, or begins again
            for future in (future for batch in self.pending for future in batch):
                future.cancel()
            self.pending.clear()
            self.next = step
        while len(self.pending) <= self.ahead:
            self.pending.append(self._send_for(self.next + len(self.pending)))
        chunks = [future.result() for future in self.pending.popleft()]
        self.next += 1
        self._note(chunks)
        self._fill(chunks)

    def draw(self) -> Draw:
        x, u = self.images.split(self.sizes)
        return Draw(x, self.y, u, self.rows, self.truth)

    def everything(self) -> AllImages:
        raise UserError(
            "this method looks at all images at once, and streamed ones never are in memory at "
            "once: use --set stream=no, or another method"
        )

    def counts(self) -> dict[str, float]:
        """How many images could not be read so far, by any rank."""
        mine = self.unreadable.nonzero().flatten().tolist()
        rows = sorted({row for rows in distributed.collect(mine) for row in rows})
        self.unreadable[rows] = True
        return {"unreadable": len(rows)}

    def _send_for(self, step: int) -> list[Future[Chunk]]:
        random = np.random.default_rng([self.seed, 2, step])
        futures = []
        for files, order in zip(self.parts, (self.shuffle_x, self.shuffle_u), strict=True):
            rows = order.at(step).tolist()
            places = random.random(order.batch)[slice_of(order.batch)].tolist()
            for begin in range(0, len(rows), CHUNK):
                some = slice(begin, begin + CHUNK)
                futures.append(self.reader.submit(files, rows[some], places[some], replace=True))
        return futures

    def _note(self, chunks: list[Chunk]) -> None:
        """Images that could not be read are remembered; too many of them are an error."""
        for chunk in chunks:
            first = 0 if chunk.files is self.parts[0] else len(self.parts[0])
            for row in chunk.bad:
                self.unreadable[first + row] = True
            most = max(FEW_BAD, len(self.unreadable) // 100)
            if chunk.bad and (count := int(self.unreadable.sum())) > most:
                row, why = next(iter(chunk.bad.items()))
                raise UserError(
                    f"{count} of {len(self.unreadable)} images cannot be read, more than one in "
                    f"a hundred ({chunk.files.names[row]}: {why}): mend or remove them"
                )

    def _fill(self, chunks: list[Chunk]) -> None:
        rows = torch.tensor([row for chunk in chunks for row in chunk.rows], dtype=torch.long)
        x, u = rows.split(self.sizes)
        fresh = ((self.y, self.parts[0].labels[x]), (self.rows, u))
        for buffer, values in (*fresh, (self.truth, self.parts[1].labels[u])):
            buffer.copy_(pinned(values, buffer.device), non_blocking=True)
        begin = 0
        for chunk in chunks:
            if chunk.images.is_cuda:
                chunk.images.record_stream(torch.cuda.current_stream())
            self.images[begin : begin + len(chunk.images)].copy_(chunk.images)
            begin += len(chunk.images)
        if self.images.is_cuda:
            # The host may be ahead of the GPU by so many steps: each holds a batch until it is due.
            self.copied.append(torch.cuda.Event())
            self.copied[-1].record()
            if len(self.copied) > self.ahead:
                self.copied.popleft().synchronize()


Feed = Resident | Streaming


def in_pieces(
    part: Part,
    image_size: int,
    device: torch.device,
    workers: int | None = None,
    side: int | None = None,
    some: bool = True,
) -> Iterator[tuple[Tensor, Tensor]]:
    """All images of a part [n, 3, image_size, image_size] and their labels [n], in order.

    Those that stay files come in pieces, the middle of their square (of this side, or of what is
    usual for the size), without those that cannot be read. That none can is an error, unless it
    need not be `some`.
    """
    if isinstance(part, Images):
        yield part.images, part.labels
        return
    begins = deque(range(0, len(part), CHUNK))
    pending: deque[Future[Chunk]] = deque()
    bad: dict[int, str] = {}
    with Reader(side or side_for(image_size), device, workers) as reader:
        while begins or pending:
            while begins and len(pending) <= LANES:
                begin = begins.popleft()
                rows = range(begin, min(begin + CHUNK, len(part)))
                pending.append(reader.submit(part, rows, [0.5] * len(rows)))
            chunk = pending.popleft().result()
            bad |= chunk.bad
            if chunk.images.is_cuda:
                chunk.images.record_stream(torch.cuda.current_stream())
            if chunk.rows:
                yield middle(chunk.images, image_size), part.labels[chunk.rows]
    if some and len(bad) == len(part):
        raise UserError(f"none of {len(part)} images can be read ({example(part, bad)})")
    if bad:
        why = example(part, bad)
        warnings.warn(f"{len(bad)} images cannot be read and are left out ({why})", stacklevel=2)
