"""Resize and crop images of any size to squares of one size, in one kernel, in Triton.

Pillow's bilinear filter is a weighted mean along rows, rounded, then one along columns. A program
computes a line of one channel of one square. It reads the image at its address and with its
strides, so images need not be copied into one tensor and can have any memory format.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

LINE = 256  # pixels of a square's line that a program computes


@triton.jit
def _weight(pixel, centre, radius):
    """The weight of a pixel: one in the centre, falling to zero at the radius."""
    return tl.maximum(1 - tl.abs(pixel + 0.5 - centre) / radius, 0.0)


@triton.jit
def _fit(whence, facts, squares, side, LINE: tl.constexpr):
    n, colour, y = tl.program_id(0), tl.program_id(1) // side, tl.program_id(1) % side
    x = tl.program_id(2) * LINE + tl.arange(0, LINE)
    fact, layout = facts + n * 5, whence + n * 5
    tall, wide = tl.load(fact).to(tl.int32), tl.load(fact + 1).to(tl.int32)
    next_row, next_pixel = tl.load(layout + 3), tl.load(layout + 4)  # strides
    scale = tl.load(fact + 4)
    radius = tl.maximum(scale, 1.0)
    down = tl.load(fact + 2) + (y + 0.5) * scale
    across = tl.load(fact + 3) + (x + 0.5) * scale
    left = tl.floor(across - radius).to(tl.int32)
    plane = tl.load(layout).to(tl.pointer_type(tl.uint8)) + colour * tl.load(layout + 2)

    above = tl.zeros([LINE], tl.float32)
    below = 0.0
    top = tl.maximum(tl.floor(down - radius), 0.0).to(tl.int32)
    bottom = tl.minimum(tl.ceil(down + radius).to(tl.int32), tall)
    for row in range(top, bottom):
        value = tl.zeros([LINE], tl.float32)
        whole = tl.zeros([LINE], tl.float32)
        for step in range(0, 2 * tl.ceil(radius).to(tl.int32) + 1):
            column = left + step
            there = (column >= 0) & (column < wide) & (x < side)
            weight = tl.where(there, _weight(column, across, radius), 0.0)
            value += weight * tl.load(plane + row * next_row + column * next_pixel, there, 0)
            whole += weight
        weight_of_row = _weight(row, down, radius)
        above += weight_of_row * tl.floor(value / tl.maximum(whole, 1e-6) + 0.5)
        below += weight_of_row
    line = (tl.load(layout + 1) * 3 + colour) * side + y
    tl.store(squares + line * side + x, tl.floor(above / below + 0.5).to(tl.uint8), x < side)


def fit(
    images: list[Tensor], positions: Sequence[float], squares: Tensor, rows: Sequence[int]
) -> None:
    """Resize and crop images [3, H, W] of any size into these rows of squares [N, 3, R, R].

    The shorter side becomes R pixels. A position between 0 and 1 is that of the square along the
    longer side.
    """
    side, device = squares.shape[-1], squares.device
    sizes = torch.tensor([image.shape[1:] for image in images], dtype=torch.float)  # [n, 2]
    shorter = sizes.amin(1, keepdim=True)
    begin = (sizes - shorter) * torch.tensor(positions, dtype=torch.float)[:, None]
    facts = torch.cat([sizes, begin, shorter / side], 1)  # [n, 5]
    whence = [
        (image.data_ptr(), row, *image.stride()) for image, row in zip(images, rows, strict=True)
    ]
    grid = (len(images), 3 * side, triton.cdiv(side, LINE))
    _fit[grid](torch.tensor(whence).to(device), facts.to(device), squares, side, LINE)
