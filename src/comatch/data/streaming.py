"""Images that are read from disk during training, because they do not fit into memory.

Each image is resized and cropped to a square: for views of 224 pixels, its shorter side becomes 256
pixels, and a window of 256 pixels is cut from the longer side, at a random position each time.
Views are cropped from that square on the device, as from images in memory. Evaluation takes the
central 224 pixels of the central window, as the paper does. Compared with crops of the whole image,
no crop is wider than the image is tall, and an enlarged small crop has fewer pixels.

A fixed number of batches is read in advance, so memory use does not depend on the number of images.
The draws depend only on the seed and the step. The only state of a resumed run is which images
could not be read.
"""

import warnings
import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from comatch import distributed
from comatch.data.feed import Augment, Draw, Feed
from comatch.data.order import Schedule, slice_of
from comatch.data.reader import CHUNK as READ_CHUNK
from comatch.data.reader import Chunk, Reader, example, pinned
from comatch.errors import UserError
from comatch.types import AllImages, Files, Images, Part

CHUNK = 512  # images that the network encodes at once
TOLERATED = 3  # unreadable images that are no error, however few images there are


def side_for(image_size: int) -> int:
    """Side of the square from which views of this size are cropped: 256 for 224."""
    return round(image_size * 256 / 224)


Pixels = TypeVar("Pixels", Tensor, np.ndarray)


def middle(images: Pixels, size: int) -> Pixels:  # [..., R, R] -> [..., size, size]
    """The central crop."""
    margin = (images.shape[-1] - size) // 2
    return images[..., margin : margin + size, margin : margin + size]


class Streaming(Feed):
    """Labelled and unlabelled images on disk. Without labelled ones, batches have none.

    Each batch is copied into the same buffers, so a captured step finds it at the same address.
    """

    unreadable: Tensor  # [X + U] files that could not be read
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
        augment: Augment,
        *,
        image_size: int,
        side: int | None = None,
        device: torch.device,
        seed: int = 0,
        workers: int | None = None,
        ahead: int = 2,
    ) -> None:
        super().__init__(augment)
        self.parts, self.seed, self.ahead = (labelled, unlabelled), seed, ahead
        self.image_size, self.workers = image_size, workers
        drawn = (batch if len(labelled) else 0, batch * mu)
        self.shuffle_x = Schedule(len(labelled), drawn[0], seed, 0)
        self.shuffle_u = Schedule(len(unlabelled), drawn[1], seed, 1)
        self.sizes = [len(distributed.share(n)) for n in drawn]
        side = side or side_for(image_size)
        pixels = torch.zeros(sum(self.sizes), 3, side, side, dtype=torch.uint8, device=device)
        self.register_buffer("images", pixels, persistent=False)
        for name, size in zip(("y", "rows", "truth"), (*self.sizes, self.sizes[1]), strict=True):
            numbers = torch.zeros(size, dtype=torch.long, device=device)
            self.register_buffer(name, numbers, persistent=False)
        both = torch.zeros(len(labelled) + len(unlabelled), dtype=torch.bool)
        self.register_buffer("unreadable", both)
        self.reader = Reader(side, device, workers)
        self.pending: deque[list[Future[Chunk]]] = deque()  # batches of the next steps
        self.copied: deque[torch.cuda.Event] = deque()
        self.next_step = 0  # the step of the first pending batch
        weakref.finalize(self, self.reader.close)

    def before_step(self, step: int) -> None:
        """Copy the batch of this step into the buffers, and start to read the next ones."""
        if step != self.next_step:  # the run was resumed or restarted
            for future in (future for batch in self.pending for future in batch):
                future.cancel()
            self.pending.clear()
            self.next_step = step
        while len(self.pending) <= self.ahead:
            self.pending.append(self._submit(self.next_step + len(self.pending)))
        chunks = [future.result() for future in self.pending.popleft()]
        self.next_step += 1
        self._record_unreadable(chunks)
        self._fill(chunks)

    def draw(self) -> Draw:
        x, u = self.images.split(self.sizes)
        return Draw(x, self.y, u, self.rows, self.truth)

    def counts(self) -> dict[str, float]:
        """The number of images that any rank could not read so far."""
        mine = self.unreadable.nonzero().flatten().tolist()
        rows = sorted({row for rows in distributed.collect(mine) for row in rows})
        self.unreadable[rows] = True
        return {"unreadable": len(rows)}

    def everything(self) -> AllImages:
        x, u = map(self._plain, self.parts)
        return AllImages(x, self.parts[0].labels.to(self.images.device), u)

    def _plain(self, files: Files) -> Iterator[Tensor]:
        """All images without augmentation, one for each row: unreadable ones are replaced."""
        for chunk in self.reader.read_all(files, replace=True):
            if chunk.images.is_cuda:
                chunk.images.record_stream(torch.cuda.current_stream())
            yield self.augment.plain(middle(chunk.images, self.image_size).to(self.images.device))

    def inputs(self, part: Part) -> Iterator[tuple[Tensor, Tensor]]:
        device = self.images.device
        return plain_inputs(part, self.augment, self.image_size, device, self.workers)

    def _submit(self, step: int) -> list[Future[Chunk]]:
        random = np.random.default_rng([self.seed, 2, step])
        futures = []
        for files, order in zip(self.parts, (self.shuffle_x, self.shuffle_u), strict=True):
            rows = order.at(step).tolist()
            positions = random.random(order.batch)[slice_of(order.batch)].tolist()
            for begin in range(0, len(rows), READ_CHUNK):
                some = slice(begin, begin + READ_CHUNK)
                futures.append(self.reader.submit(files, rows[some], positions[some], replace=True))
        return futures

    def _record_unreadable(self, chunks: list[Chunk]) -> None:
        """Record the images that could not be read. Too many of them are an error."""
        for chunk in chunks:
            first = 0 if chunk.files is self.parts[0] else len(self.parts[0])
            for row in chunk.bad:
                self.unreadable[first + row] = True
            most = max(TOLERATED, len(self.unreadable) // 100)
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
            # Each step that the host launches ahead of the GPU holds a batch: limit their number.
            self.copied.append(torch.cuda.Event())
            self.copied[-1].record()
            if len(self.copied) > self.ahead:
                self.copied.popleft().synchronize()


def plain_inputs(
    part: Part,
    augment: Augment,
    image_size: int,
    device: torch.device,
    workers: int | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """All images of a part as inputs of the network, without augmentation, and their labels."""
    for images, labels in in_pieces(part, image_size, device, workers):
        for some, known in zip(images.split(CHUNK), labels.split(CHUNK), strict=True):
            yield augment.plain(some.to(device)), known


def in_pieces(
    part: Part,
    image_size: int,
    device: torch.device,
    workers: int | None = None,
    side: int | None = None,
    some: bool = True,
) -> Iterator[tuple[Tensor, Tensor]]:
    """All images of a part [n, 3, image_size, image_size] and their labels [n], in order.

    Images in memory are one piece. Images on disk come in chunks: the central crop of the square,
    whose side is `side` or follows from `image_size`. Unreadable ones are left out with a warning;
    with `some`, it is an error if all are unreadable.
    """
    if isinstance(part, Images):
        yield part.images, part.labels
        return
    bad: dict[int, str] = {}
    with Reader(side or side_for(image_size), device, workers) as reader:
        for chunk in reader.read_all(part):
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
