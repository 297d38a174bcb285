"""Batch norm and activation with as few passes over memory as possible, in Triton.

Tensors of any image size are [rows, C] in channels-last memory. With n = scale x + shift, where
scale = gamma / sqrt(var + eps) and shift = beta - mean scale:

    forward    moments          sums of x and x^2 (of x + other, which it also writes)
               apply            a = leaky(n)
    backward   backward_sums    sums of dn and dn x, with dn = leaky'(n) da
               backward_apply   dx = k1 dn + k2 x + k3 (+ other)

Each program computes partial sums, which are added in a fixed order, so results are reproducible. A
pass reads memory in the opposite order to the pass before: the last data is still in the cache.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 4096  # elements that a program processes at a time
PROGRAMS = 528  # that compute sums: 4 for each multiprocessor of an H100 or H200


@triton.jit
def _place(block, rows, C: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """Offsets of the elements of a block of ROWS rows, and which of them exist."""
    row = block * ROWS + tl.arange(0, ROWS)[:, None]
    channel = tl.arange(0, WIDTH)[None, :]
    return row.to(tl.int64) * C + channel, (row < rows) & (channel < C)


@triton.jit
def _per_channel(table, line, C: tl.constexpr, WIDTH: tl.constexpr):
    channel = tl.arange(0, WIDTH)[None, :]
    return tl.load(table + line * C + channel, channel < C, 0)


@triton.jit
def store_parts(parts, one, two, C: tl.constexpr, WIDTH: tl.constexpr):
    channel = tl.arange(0, WIDTH)
    at = parts + tl.program_id(0) * 2 * C + channel
    tl.store(at, tl.sum(one, 0), channel < C)
    tl.store(at + C, tl.sum(two, 0), channel < C)


@triton.jit
def _moments(
    x, other, total, parts, rows, blocks,
    ADD: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    one = tl.zeros([ROWS, WIDTH], tl.float32)
    two = tl.zeros([ROWS, WIDTH], tl.float32)
    for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
        at, there = _place(blocks - 1 - block, rows, C, WIDTH, ROWS)
        value = tl.load(x + at, there, 0).to(tl.float32)
        if ADD:
            value += tl.load(other + at, there, 0).to(tl.float32)
            tl.store(total + at, value.to(total.dtype.element_ty), there)
        one += value
        two += value * value
    store_parts(parts, one, two, C, WIDTH)


@triton.jit
def _apply(
    x, coef, out, rows,
    SLOPE: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    scale, shift = _per_channel(coef, 0, C, WIDTH), _per_channel(coef, 1, C, WIDTH)
    at, there = _place(tl.program_id(0), rows, C, WIDTH, ROWS)
    n = tl.load(x + at, there, 0).to(tl.float32) * scale + shift
    tl.store(out + at, tl.where(n > 0, n, SLOPE * n).to(out.dtype.element_ty), there)


@triton.jit
def _backward_sums(
    da, x, coef, parts, rows, blocks,
    SLOPE: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    scale, shift = _per_channel(coef, 0, C, WIDTH), _per_channel(coef, 1, C, WIDTH)
    one = tl.zeros([ROWS, WIDTH], tl.float32)
    two = tl.zeros([ROWS, WIDTH], tl.float32)
    for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
        at, there = _place(blocks - 1 - block, rows, C, WIDTH, ROWS)
        value = tl.load(x + at, there, 0).to(tl.float32)
        dn = tl.load(da + at, there, 0).to(tl.float32)
        dn = tl.where(value * scale + shift > 0, dn, SLOPE * dn)
        one += dn
        two += dn * value
    store_parts(parts, one, two, C, WIDTH)


@triton.jit
def _beside(at, C: tl.constexpr, SIZE: tl.constexpr, STRIDE: tl.constexpr):
    """Offsets in a tensor of every STRIDE-th pixel, and which of the pixels it has."""
    pixel, channel = at // C, at % C
    row, column = pixel // SIZE, pixel % SIZE  # of all images: their height divides by STRIDE
    place = (row // STRIDE * (SIZE // STRIDE) + column // STRIDE) * C + channel
    return place, (row % STRIDE == 0) & (column % STRIDE == 0)


@triton.jit
def _backward_apply(
    d, x, other, coef, k, out, rows,
    ACT: tl.constexpr, ADD: tl.constexpr, SIZE: tl.constexpr, STRIDE: tl.constexpr,
    SLOPE: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    if not ACT:  # `backward_sums`, which goes backwards, did not run before
        block = tl.num_programs(0) - 1 - block
    at, there = _place(block, rows, C, WIDTH, ROWS)
    value = tl.load(x + at, there, 0).to(tl.float32)
    dn = tl.load(d + at, there, 0).to(tl.float32)
    if ACT:
        n = value * _per_channel(coef, 0, C, WIDTH) + _per_channel(coef, 1, C, WIDTH)
        dn = tl.where(n > 0, dn, SLOPE * dn)
    k1, k2 = _per_channel(k, 0, C, WIDTH), _per_channel(k, 1, C, WIDTH)
    dx = k1 * dn + k2 * value + _per_channel(k, 2, C, WIDTH)
    if ADD and STRIDE == 1:
        dx += tl.load(other + at, there, 0).to(tl.float32)
    elif ADD:
        place, kept = _beside(at, C, SIZE, STRIDE)
        dx += tl.load(other + place, there & kept, 0).to(tl.float32)
    tl.store(out + at, dx.to(out.dtype.element_ty), there)


@triton.jit
def _add_parts(parts, count, C: tl.constexpr, LANES: tl.constexpr, MANY: tl.constexpr):
    """The two sums of LANES channels, in double precision because they will be subtracted."""
    channel = tl.program_id(0) * LANES + tl.arange(0, LANES)
    one = tl.zeros([MANY, LANES], tl.float64)
    two = tl.zeros([MANY, LANES], tl.float64)
    for begin in range(0, count, MANY):
        row = begin + tl.arange(0, MANY)[:, None]
        at, there = parts + row * 2 * C + channel[None, :], (row < count) & (channel < C)[None, :]
        one += tl.load(at, there, 0).to(tl.float64)
        two += tl.load(at + C, there, 0).to(tl.float64)
    return channel, tl.sum(one, 0), tl.sum(two, 0)


@triton.jit
def _statistics(
    parts, count, rows, gamma, beta, coef, stats,
    EPS: tl.constexpr, C: tl.constexpr, LANES: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    channel, one, two = _add_parts(parts, count, C, LANES, MANY)
    there = channel < C
    mean = one / rows
    var = tl.maximum(two / rows - mean * mean, 0)
    tl.store(stats + channel, mean.to(tl.float32), there)
    tl.store(stats + C + channel, var.to(tl.float32), there)
    scale = tl.load(gamma + channel, there, 0) / tl.sqrt((var + EPS).to(tl.float32))
    shift = tl.load(beta + channel, there, 0) - mean.to(tl.float32) * scale
    tl.store(coef + channel, scale, there)
    tl.store(coef + C + channel, shift, there)


@triton.jit
def _coefficients(
    parts, count, rows, gamma, stats, k, dgamma, dbeta,
    EPS: tl.constexpr, C: tl.constexpr, LANES: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    channel, one, two = _add_parts(parts, count, C, LANES, MANY)
    there = channel < C
    mean = tl.load(stats + channel, there, 0).to(tl.float64)
    rstd = 1 / tl.sqrt(tl.load(stats + C + channel, there, 1) + EPS).to(tl.float64)
    along = (two - mean * one) * rstd  # sum of dn x^, with x^ = (x - mean) rstd
    tl.store(dgamma + channel, along.to(tl.float32), there)
    tl.store(dbeta + channel, one.to(tl.float32), there)
    # dx = gamma rstd (dn - mean(dn) - x^ mean(dn x^)), as coefficients of dn, of x, and a constant
    k1 = tl.load(gamma + channel, there, 0).to(tl.float64) * rstd
    k2 = -k1 * rstd * along / rows
    tl.store(k + channel, k1.to(tl.float32), there)
    tl.store(k + C + channel, k2.to(tl.float32), there)
    tl.store(k + 2 * C + channel, (-k1 * one / rows - k2 * mean).to(tl.float32), there)


@triton.jit
def _add(parts, out, count, size, MANY: tl.constexpr, LANES: tl.constexpr):
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    total = tl.zeros([MANY, LANES], tl.float32)
    for begin in range(0, count, MANY):
        row = begin + tl.arange(0, MANY)[:, None]
        total += tl.load(parts + row * size + lane, (row < count) & (lane < size)[None, :], 0)
    tl.store(out + lane, tl.sum(total, 0), lane < size)


def add_parts(parts: Tensor) -> Tensor:
    """The sum over the first dimension."""
    out = torch.empty_like(parts[0])
    _add[(triton.cdiv(out.numel(), 32),)](parts, out, len(parts), out.numel(), 64, 32)
    return out


def _sizes(x: Tensor) -> tuple[int, int, int, int]:
    """Rows, channels, the power of two that holds these, and the rows of a block."""
    channels = x.shape[1]
    width = triton.next_power_of_2(channels)
    return x.numel() // channels, channels, width, max(1, TILE // width)


def table(beside: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=beside.device)


def moments(x: Tensor, other: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """x (+ other), and its partial sums [programs, 2, C]."""
    rows, channels, width, take = _sizes(x)
    blocks = triton.cdiv(rows, take)
    programs = min(PROGRAMS, blocks)
    parts = table(x, programs, 2, channels)
    total = x if other is None else torch.empty_like(x)
    _moments[(programs,)](
        x, other, total, parts, rows, blocks, other is not None, channels, width, take
    )
    return total, parts


def statistics(
    parts: Tensor, rows: int, gamma: Tensor, beta: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Scale and shift [2, C] of the norm, and mean and variance [2, C] of its input."""
    count, _, channels = parts.shape
    many = min(1024, triton.next_power_of_2(count))
    coef, stats = table(parts, 2, channels), table(parts, 2, channels)
    _statistics[(triton.cdiv(channels, 4),)](
        parts, count, rows, gamma, beta, coef, stats, eps, channels, 4, many
    )
    return coef, stats


def apply(x: Tensor, coef: Tensor, slope: float) -> Tensor:
    rows, channels, width, take = _sizes(x)
    out = torch.empty_like(x)
    _apply[(triton.cdiv(rows, take),)](x, coef, out, rows, slope, channels, width, take)
    return out


def backward_sums(da: Tensor, x: Tensor, coef: Tensor, slope: float) -> Tensor:
    """Partial sums [programs, 2, C] of dn and dn x."""
    rows, channels, width, take = _sizes(x)
    blocks = triton.cdiv(rows, take)
    programs = min(PROGRAMS, blocks)
    parts = table(x, programs, 2, channels)
    _backward_sums[(programs,)](da, x, coef, parts, rows, blocks, slope, channels, width, take)
    return parts


def coefficients(
    parts: Tensor, rows: int, gamma: Tensor, stats: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """k1, k2, k3 [3, C] of the backward, and the gradients of gamma and beta."""
    count, _, channels = parts.shape
    many = min(1024, triton.next_power_of_2(count))
    k, dgamma, dbeta = table(parts, 3, channels), table(parts, channels), table(parts, channels)
    _coefficients[(triton.cdiv(channels, 4),)](
        parts, count, rows, gamma, stats, k, dgamma, dbeta, eps, channels, 4, many
    )
    return k, dgamma, dbeta


def backward_apply(
    d: Tensor, x: Tensor, coef: Tensor | None, k: Tensor, slope: float, other: Tensor | None = None
) -> Tensor:
    """With `coef`, `d` is the gradient after the activation; without, the one before it.

    `other` may be a gradient of every STRIDE-th pixel of each row and column.
    """
    rows, channels, width, take = _sizes(x)
    size = x.shape[-1]
    stride = 1 if other is None else size // other.shape[-1]
    dx = torch.empty_like(x)
    _backward_apply[(triton.cdiv(rows, take),)](
        d, x, other, coef, k, dx, rows,
        coef is not None, other is not None, size, stride, slope, channels, width, take,
    )  # fmt: skip
    return dx


@triton.jit
def _spread(values, out, pixels, C: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    channel = tl.arange(0, WIDTH)[None, :]
    image = tl.program_id(0)
    value = tl.load(values + image * C + channel, channel < C, 0) / pixels
    for begin in range(0, pixels, ROWS):
        pixel = begin + tl.arange(0, ROWS)[:, None]
        at = (image * pixels + pixel).to(tl.int64) * C + channel
        there = (pixel < pixels) & (channel < C)
        tl.store(out + at, tl.broadcast_to(value, [ROWS, WIDTH]).to(out.dtype.element_ty), there)


def spread(values: Tensor, like: Tensor) -> Tensor:
    """The gradient of a mean over each image: [N, C] divided among all pixels."""
    n, channels, height, width = like.shape
    out = torch.empty_like(like)
    wide = triton.next_power_of_2(channels)
    _spread[(n,)](values.contiguous(), out, height * width, channels, wide, max(1, 2048 // wide))
    return out
