"""The shortcut of a block whose shape changes: a 1x1 convolution with a stride, in Triton.

It reads the strided pixels directly, and applies norm and activation to them if its input is the
activated one, so no intermediate tensor is written.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from comatch.kernels.norm import PROGRAMS, add_parts, store_parts, table

PIXELS = 128


@triton.jit
def _source(pixel, SIZE: tl.constexpr, STRIDE: tl.constexpr):
    """The pixel of the input for a pixel of the output, which is SIZE pixels wide."""
    row = pixel // SIZE * STRIDE  # of all images; an image's rows are a multiple of STRIDE
    return row * SIZE * STRIDE + pixel % SIZE * STRIDE


@triton.jit
def _input(
    x, coef, block, pixels, SIZE: tl.constexpr, STRIDE: tl.constexpr, IN: tl.constexpr,
    ACT: tl.constexpr, SLOPE: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    """[PIXELS, IN]: the input of the convolution for a block of its output."""
    pixel = block * PIXELS + tl.arange(0, PIXELS)[:, None]
    channel = tl.arange(0, IN)[None, :]
    at = _source(pixel, SIZE, STRIDE).to(tl.int64) * IN + channel
    value = tl.load(x + at, pixel < pixels, 0).to(tl.float32)
    if ACT:
        n = value * tl.load(coef + channel) + tl.load(coef + IN + channel)
        value = tl.where(n > 0, n, SLOPE * n).to(x.dtype.element_ty).to(tl.float32)
    return tl.where(pixel < pixels, value, 0)


@triton.jit
def _forward(
    x, coef, weight, y, pixels, SIZE: tl.constexpr, STRIDE: tl.constexpr, IN: tl.constexpr,
    OUT: tl.constexpr, ACT: tl.constexpr, SLOPE: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    seen = _input(x, coef, tl.program_id(0), pixels, SIZE, STRIDE, IN, ACT, SLOPE, PIXELS)
    channel = tl.arange(0, OUT)[None, :]
    w = tl.load(weight + channel * IN + tl.arange(0, IN)[:, None]).to(tl.float32)
    value = tl.dot(seen, w)  # in TF32: more precise than bf16, and memory is the bottleneck
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)[:, None]
    at = pixel.to(tl.int64) * OUT + channel
    tl.store(y + at, value.to(y.dtype.element_ty), pixel < pixels)


@triton.jit
def _backward_weight(
    dy, x, coef, parts, pixels, blocks, SIZE: tl.constexpr, STRIDE: tl.constexpr,
    IN: tl.constexpr, OUT: tl.constexpr, ACT: tl.constexpr, SLOPE: tl.constexpr,
    PIXELS: tl.constexpr,
):  # fmt: skip
    channel = tl.arange(0, OUT)
    w = tl.zeros([OUT, IN], tl.float32)
    for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
        pixel = block * PIXELS + tl.arange(0, PIXELS)[:, None]
        at = pixel.to(tl.int64) * OUT + channel[None, :]
        gradient = tl.load(dy + at, pixel < pixels, 0).to(tl.float32)
        seen = _input(x, coef, block, pixels, SIZE, STRIDE, IN, ACT, SLOPE, PIXELS)
        w = tl.dot(tl.trans(gradient), seen, w)
    at = tl.program_id(0) * OUT * IN + channel[:, None] * IN + tl.arange(0, IN)[None, :]
    tl.store(parts + at, w)


@triton.jit
def _merge(
    d, dout, weight, x, coef, out, parts, pixels, blocks, IN: tl.constexpr, OUT: tl.constexpr,
    CONV: tl.constexpr, SLOPE: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    channel, wide = tl.arange(0, IN)[None, :], tl.arange(0, OUT)
    scale, shift = tl.load(coef + channel), tl.load(coef + IN + channel)
    one = tl.zeros([PIXELS, IN], tl.float32)
    two = tl.zeros([PIXELS, IN], tl.float32)
    for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
        pixel = block * PIXELS + tl.arange(0, PIXELS)[:, None]
        there = pixel < pixels
        back = tl.load(dout + pixel.to(tl.int64) * OUT + wide[None, :], there, 0).to(tl.float32)
        if CONV:
            back = tl.dot(back, tl.load(weight + wide[:, None] * IN + channel).to(tl.float32))
        at = pixel.to(tl.int64) * IN + channel
        value = tl.load(x + at, there, 0).to(tl.float32)
        dn = tl.where(value * scale + shift > 0, back, SLOPE * back)
        dn += tl.load(d + at, there, 0).to(tl.float32)
        tl.store(out + at, dn.to(out.dtype.element_ty), there)
        one += dn
        two += dn * value
    store_parts(parts, one, two, IN, IN)


def _sizes(y: Tensor) -> tuple[int, int, int]:
    """Pixels of all images, and the numbers of blocks and programs that process them."""
    pixels = y.numel() // y.shape[1]
    blocks = triton.cdiv(pixels, PIXELS)
    return pixels, blocks, min(PROGRAMS, blocks)


def forward(x: Tensor, coef: Tensor | None, weight: Tensor, stride: int, slope: float) -> Tensor:
    """The convolution of x, or with `coef` of leaky(scale x + shift)."""
    n, into, size, _ = x.shape
    out = len(weight)
    y = torch.empty(
        (n, out, size // stride, size // stride), dtype=x.dtype, device=x.device,
        memory_format=torch.channels_last,
    )  # fmt: skip
    pixels, blocks, _ = _sizes(y)
    _forward[(blocks,)](
        x, coef, weight, y, pixels, size // stride, stride, into, out, coef is not None, slope,
        PIXELS,
    )  # fmt: skip
    return y


def backward_weight(
    dy: Tensor, x: Tensor, coef: Tensor | None, stride: int, slope: float
) -> Tensor:
    """The gradient of the weight [out, in, 1, 1], in float32."""
    into, out = x.shape[1], dy.shape[1]
    pixels, blocks, programs = _sizes(dy)
    programs = min(programs, PROGRAMS // 2)  # their partial sums are large
    parts = table(x, programs, out, into, 1, 1)
    _backward_weight[(programs,)](
        dy, x, coef, parts, pixels, blocks, dy.shape[-1], stride, into, out, coef is not None,
        slope, PIXELS,
    )  # fmt: skip
    return add_parts(parts)


def backward_input(dy: Tensor, weight: Tensor) -> Tensor:
    """The gradient of the pixels that the forward read."""
    n, out, height, width = dy.shape
    rows = dy.permute(0, 2, 3, 1).reshape(-1, out)
    dx = rows @ weight.view(out, -1).to(dy.dtype)
    return dx.view(n, height, width, -1).permute(0, 3, 1, 2)


def merge(
    d: Tensor, dout: Tensor, weight: Tensor | None, x: Tensor, coef: Tensor, slope: float
) -> tuple[Tensor, Tensor]:
    """The gradient before the activation: `d` plus that of a shortcut from after the activation.

    Also returns its partial sums [programs, 2, C], as `norm.backward_sums` does.
    """
    pixels, blocks, programs = _sizes(x)
    into = x.shape[1]
    total, parts = torch.empty_like(x), table(x, programs, 2, into)
    _merge[(programs,)](
        d, dout, weight, x, coef, total, parts, pixels, blocks, into, dout.shape[1],
        weight is not None, slope, PIXELS,
    )  # fmt: skip
    return total, parts
