"""Images that occur more than once, found by their pixels at the working resolution."""

from collections import defaultdict
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

SIDE = 16  # of the thumbnails; smaller images are not searched for near-duplicates
ALIKE = 0.995  # correlation of two thumbnails
MOST_PAIRS = 2 * 10**8  # of thumbnails that are compared: a few seconds on a CPU
CHUNK = 256


class Near(NamedTuple):
    """Images that nearly equal one of another set."""

    pairs: list[tuple[int, int]]  # row here, the most similar row there
    searched: int  # images of this set that were compared


def identical(images: Tensor, *others: Tensor) -> list[tuple[int, int]]:  # [N, 3, S, S] each
    """Pairs of row and first row with the same pixels, counted through all the tensors.

    Some pixels of each image are a key. Only images with the same key are compared as a whole.
    """
    rows: dict[bytes, list[tuple[int, Tensor]]] = defaultdict(list)
    pairs, number = [], 0
    for part in (images, *others):
        step = max(1, part.shape[-1] // SIDE)
        keys = part[:, :, ::step, ::step].flatten(1).numpy()
        for key, image in zip(keys, part, strict=True):
            same = rows[key.tobytes()]
            first = next((row for row, other in same if torch.equal(image, other)), None)
            if first is None:
                same.append((number, image))
            else:
                pairs.append((number, first))
            number += 1
    return pairs


def nearly_equal(images: Tensor, others: Tensor) -> Near:  # [N, 3, S, S], [M, 3, S, S]
    """Images that look like one of the others: recompressed, resized, a little brighter."""
    if min(len(images), len(others)) == 0 or images.shape[-1] < SIDE:
        return Near([], 0)
    step = -(-len(images) * len(others) // MOST_PAIRS)
    rows = torch.arange(0, len(images), step)
    there = thumbnails(others)
    pairs = []
    for some in rows.split(CHUNK):
        best = (thumbnails(images[some]) @ there.T).max(1)
        pairs += [
            (row, other)
            for row, other, value in zip(
                some.tolist(), best.indices.tolist(), best.values.tolist(), strict=True
            )
            if value >= ALIKE
        ]
    return Near(pairs, len(rows))


def near_pairs(images: Tensor) -> list[tuple[int, int]]:  # [N, 3, S, S]
    """Pairs (first, later) of images of one set that look nearly the same.

    Each image is paired with the most similar one before it.
    """
    if len(images) < 2 or images.shape[-1] < SIDE:
        return []
    small, pairs = thumbnails(images), []
    for rows in torch.arange(1, len(images)).split(CHUNK):
        similar = small[rows] @ small[: int(rows[-1])].T
        later = torch.arange(similar.shape[1]) >= rows[:, None]
        best = similar.masked_fill(later, -1.0).max(1)
        alike = (best.values >= ALIKE).nonzero().flatten()
        pairs += [(int(best.indices[i]), int(rows[i])) for i in alike.tolist()]
    return pairs


def thumbnails(images: Tensor) -> Tensor:  # [N, 3, S, S] uint8 -> [N, SIDE * SIDE]
    """A perceptual hash: small grey images without their mean, of length 1; flat ones are zero."""
    step = max(1, images.shape[-1] // (4 * SIDE))
    small = []
    for some in images.split(CHUNK):
        grey = some[:, :, ::step, ::step].float().mean(1, keepdim=True)
        grey = F.adaptive_avg_pool2d(grey, SIDE).flatten(1)
        small.append(F.normalize(grey - grey.mean(1, keepdim=True), eps=1.0))
    return torch.cat(small)
