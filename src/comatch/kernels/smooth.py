"""Memory-smoothed pseudo-labels without storing the affinities, in Triton.

    q = sum_k exp((z . z_k - 1) / t) p_k  /  sum_k exp((z . z_k - 1) / t)

Embeddings have length one, so no exponent is above zero and the softmax needs no maximum. So the
sums over parts of the bank are computed in parallel and added.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, KEYS = 64, 64
MIN_TEMPERATURE = 0.03  # below, exp(-2 / t) underflows
MAX_CLASSES = 128
PROGRAMS = 264  # two for each multiprocessor of an H100 or H200


@triton.jit
def _sums(
    z, bank_z, bank_p, above, below, m, k, share,
    SCALE: tl.constexpr, C: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    DEPTH: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column, depth = tl.arange(0, WIDTH), tl.arange(0, DEPTH)
    query = tl.load(
        z + row[:, None] * D + depth[None, :], (row < m)[:, None] & (depth < D)[None, :], 0
    )
    numerator = tl.zeros([ROWS, WIDTH], tl.float32)
    denominator = tl.zeros([ROWS], tl.float32)
    begin = tl.program_id(1) * share
    end = tl.minimum(begin + share, k)
    for start in range(begin, end, KEYS):
        place = start + tl.arange(0, KEYS)
        key = tl.load(
            bank_z + place[None, :] * D + depth[:, None],
            (place < end)[None, :] & (depth < D)[:, None], 0,
        )  # fmt: skip
        likeness = tl.dot(query, key, input_precision="tf32x3")
        affinity = tl.where((place < end)[None, :], tl.exp((likeness - 1) * SCALE), 0)
        value = tl.load(
            bank_p + place[:, None] * C + column[None, :],
            (place < end)[:, None] & (column < C)[None, :], 0,
        )  # fmt: skip
        numerator = tl.dot(affinity, value, numerator, input_precision="tf32x3")
        denominator += tl.sum(affinity, 1)
    line = tl.program_id(1) * m + row
    tl.store(
        above + line[:, None] * C + column[None, :],
        numerator, (row < m)[:, None] & (column < C)[None, :],
    )  # fmt: skip
    tl.store(below + line, denominator, row < m)


def fits(z: Tensor, bank_p: Tensor, t: float) -> bool:
    """Whether the kernel can be used: no gradient, float32, and not too many classes."""
    gradient = torch.is_grad_enabled() and z.requires_grad
    full = z.dtype == bank_p.dtype == torch.float32
    return (
        z.is_cuda
        and full
        and not gradient
        and t >= MIN_TEMPERATURE
        and bank_p.shape[1] <= MAX_CLASSES
    )


def neighbours(z: Tensor, bank_z: Tensor, bank_p: Tensor, t: float) -> Tensor:
    """The mean of the bank's probabilities [K, C], weighted by affinity to each z: [M, C]."""
    z = z.contiguous()
    (m, depth), (k, classes) = z.shape, bank_p.shape
    tiles = triton.cdiv(m, ROWS)
    parts = max(1, min(triton.cdiv(k, KEYS), PROGRAMS // tiles))
    share = triton.cdiv(triton.cdiv(k, parts), KEYS) * KEYS
    parts = triton.cdiv(k, share)
    above = torch.empty(parts, m, classes, dtype=torch.float32, device=z.device)
    below = torch.empty(parts, m, dtype=torch.float32, device=z.device)
    _sums[(tiles, parts)](
        z, bank_z, bank_p, above, below, m, k, share, 1 / t, classes, depth,
        max(16, triton.next_power_of_2(classes)), max(16, triton.next_power_of_2(depth)),
        ROWS, KEYS, num_stages=2,
    )  # fmt: skip
    return above.sum(0) / below.sum(0)[:, None]
