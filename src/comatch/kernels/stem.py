"""The first convolution, in Triton: library kernels are slow for three channels.

It is a matrix product with the 27 values around each pixel, padded to 32.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from comatch.kernels.norm import PROGRAMS, add_parts, store_parts, table

PIXELS = 128


@triton.jit
def _rounded(value):
    """Round to bf16, which the TF32 of the matrix product represents exactly."""
    return value.to(tl.bfloat16).to(tl.float32)


@triton.jit
def _patches(x, block, pixels, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """[BLOCK, 32]: for each pixel its 3 x 3 x 3 neighbourhood (tap, channel), then zeros."""
    pixel = block * BLOCK + tl.arange(0, BLOCK)[:, None]
    item = tl.arange(0, 32)[None, :]
    tap, channel = item // 3, item % 3
    row = pixel // SIZE % SIZE + tap // 3 - 1
    column = pixel % SIZE + tap % 3 - 1
    there = (item < 27) & (pixel < pixels)
    there = there & (row >= 0) & (row < SIZE) & (column >= 0) & (column < SIZE)
    at = (pixel // (SIZE * SIZE) * SIZE + row) * SIZE + column
    return _rounded(tl.load(x + at * 3 + channel, there, 0))


@triton.jit
def _forward(
    x, weight, y, parts, pixels, blocks,
    SIZE: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    item, channel = tl.arange(0, 32)[:, None], tl.arange(0, C)[None, :]
    w = _rounded(tl.load(weight + channel * 27 + item, item < 27, 0))  # [32, C]
    one = tl.zeros([BLOCK, C], tl.float32)
    two = tl.zeros([BLOCK, C], tl.float32)
    for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
        value = tl.dot(_patches(x, block, pixels, SIZE, BLOCK), w)
        pixel = block * BLOCK + tl.arange(0, BLOCK)[:, None]
        tl.store(y + pixel * C + channel, value.to(tl.bfloat16), pixel < pixels)
        one += value
        two += value * value
    store_parts(parts, one, two, C, C)


@triton.jit
def _backward(
    x, dy, parts, pixels, blocks, SIZE: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr
):
    item, channel = tl.arange(0, 32)[:, None], tl.arange(0, C)[None, :]
    w = tl.zeros([32, C], tl.float32)
    for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
        pixel = block * BLOCK + tl.arange(0, BLOCK)[:, None]
        gradient = tl.load(dy + pixel * C + channel, pixel < pixels, 0).to(tl.float32)
        w = tl.dot(tl.trans(_patches(x, block, pixels, SIZE, BLOCK)), gradient, w)
    tl.store(parts + tl.program_id(0) * 27 * C + channel * 27 + item, w, item < 27)


def forward(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """conv(x) for float32 images [N, 3, S, S], and its partial sums [programs, 2, C]."""
    n, _, size, _ = x.shape
    weight = weight.contiguous(memory_format=torch.channels_last)
    channels, pixels = weight.shape[0], n * size * size
    blocks = triton.cdiv(pixels, PIXELS)
    programs = min(PROGRAMS, blocks)
    y = torch.empty(
        (n, channels, size, size), dtype=torch.bfloat16, device=x.device,
        memory_format=torch.channels_last,
    )  # fmt: skip
    parts = table(x, programs, 2, channels)
    _forward[(programs,)](x, weight, y, parts, pixels, blocks, size, channels, PIXELS)
    return y, parts


def backward_weight(dy: Tensor, x: Tensor) -> Tensor:
    """The gradient of the weight [C, 3, 3, 3], in float32."""
    n, _, size, _ = x.shape
    channels, pixels = dy.shape[1], n * size * size
    blocks = triton.cdiv(pixels, PIXELS)
    programs = min(PROGRAMS, blocks)
    parts = table(x, programs, channels, 3, 3, 3)
    _backward[(programs,)](x, dy, parts, pixels, blocks, size, channels, PIXELS)
    return add_parts(parts).permute(0, 3, 1, 2)
