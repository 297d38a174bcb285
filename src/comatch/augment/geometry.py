"""Operations that move pixels: flips, crops, affine maps and cutout.

Coordinates are in pixels from the top left corner of the image, as in Pillow: the centre of the
first pixel is at (0.5, 0.5).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def sample_flip(n: int, device: torch.device) -> Tensor:
    return torch.rand(n, device=device) < 0.5  # [N]


def flip(images: Tensor, flags: Tensor) -> Tensor:
    """Mirror left and right where the flag is set."""
    return torch.where(flags[:, None, None, None], images.flip(-1), images)


def sample_pad_crop(n: int, pad: int, device: torch.device, spare: int = 0) -> Tensor:
    """Rows (top, left) in 0 .. 2 pad - 1. As in the authors' code, 2 pad is never drawn.

    `spare` is added to the range: the number of pixels by which the image exceeds the crop.
    """
    return torch.randint(0, max(1, 2 * pad + spare), (n, 2), device=device)  # [N, 2]


def pad_crop(images: Tensor, offsets: Tensor, pad: int, size: int | None = None) -> Tensor:
    """Reflect the image `pad` pixels beyond its border, then crop `size` pixels at the offset.

    The default size is that of the image.
    """
    n, channels, height, width = images.shape
    tall, wide = (size or height), (size or width)
    top, left = (offsets - pad).unbind(1)
    rows = _reflect(top[:, None] + torch.arange(tall, device=images.device), height)  # [N, tall]
    cols = _reflect(left[:, None] + torch.arange(wide, device=images.device), width)  # [N, wide]
    images = images.gather(2, rows[:, None, :, None].expand(n, channels, tall, width))
    return images.gather(3, cols[:, None, None, :].expand(n, channels, tall, wide))


def _reflect(index: Tensor, size: int) -> Tensor:
    """-1 becomes 1 and `size` becomes `size - 2`: the border itself is not repeated."""
    index = index.maximum(-index)  # not abs(), which torch 2.11 cannot compile in an index
    return index.minimum(2 * (size - 1) - index)


def sample_resized_crop(
    n: int,
    height: int,
    width: int,
    min_area: float,
    device: torch.device,
    tries: int = 10,
    max_area: float = 1.0,
) -> Tensor:
    """Rows (top, left, height, width) of boxes with this share of the image's area.

    Area and aspect ratio (3/4 .. 4/3, uniform in the logarithm) of a box are drawn until it fits
    into the image. All tries are drawn at once, and the first that fits is used; if none fits, it
    is the largest central box.
    """
    share = min_area + (max_area - min_area) * torch.rand(n, tries, device=device)
    area = height * width * share
    ratio = ((2 * torch.rand(n, tries, device=device) - 1) * math.log(4 / 3)).exp()
    central_tall = min(height, round(width * 4 / 3))
    central_wide = min(width, round(height * 4 / 3))
    tall = F.pad((area / ratio).sqrt().round(), (0, 1), value=central_tall)  # [N, tries + 1]
    wide = F.pad((area * ratio).sqrt().round(), (0, 1), value=central_wide)

    fits = (tall >= 1) & (tall <= height) & (wide >= 1) & (wide <= width)
    first = fits.int().argmax(1, keepdim=True)  # [N, 1]
    tall, wide = tall.gather(1, first), wide.gather(1, first)

    place = torch.rand(n, 2, device=device)
    top = (place[:, :1] * (height - tall + 1)).floor()
    left = (place[:, 1:] * (width - wide + 1)).floor()
    none_fits = first == tries
    top = torch.where(none_fits, (height - tall).div(2, rounding_mode="floor"), top)
    left = torch.where(none_fits, (width - wide).div(2, rounding_mode="floor"), left)
    return torch.cat((top, left, tall, wide), 1).long()  # [N, 4]


def resized_crop(images: Tensor, boxes: Tensor, size: int | None = None) -> Tensor:
    """Scale each image's box (top, left, height, width) to `size`, or to that of the image."""
    top, left, tall, wide = boxes.unbind(1)
    x = _spread(left, wide, size or images.shape[-1])[:, None, :]  # [N, 1, W]
    y = _spread(top, tall, size or images.shape[-2])[:, :, None]  # [N, H, 1]
    return _bilinear(images, x, y)


def _spread(start: Tensor, extent: Tensor, size: int) -> Tensor:
    """The centres of `size` equal parts of a stretch of pixels: [N, size].

    They stay between the centres of its outermost pixels: a crop must not see its surroundings.
    """
    start, extent = start[:, None], extent[:, None]
    centres = (torch.arange(size, device=start.device) + 0.5) * (extent / size)
    return start + centres.clamp(min=0.5).minimum(extent - 0.5)


def affine(images: Tensor, matrix: Tensor, fill: float) -> Tensor:
    """Pillow's `transform(AFFINE, BILINEAR)`: the matrix maps new coordinates to old ones.

    The pixel centred at (x, y) is read at `matrix @ (x, y, 1)`; points outside give `fill`.
    """
    height, width = images.shape[-2:]
    x = torch.arange(width, device=images.device) + 0.5  # [W]
    y = torch.arange(height, device=images.device)[:, None] + 0.5  # [H, 1]
    a, b, c, d, e, f = matrix.flatten(1)[:, :, None, None].unbind(1)  # [N, 1, 1] each
    old_x = a * x + b * y + c  # [N, H, W]
    old_y = d * x + e * y + f
    outside = (old_x < 0) | (old_x >= width) | (old_y < 0) | (old_y >= height)
    return _bilinear(images, old_x, old_y).masked_fill(outside[:, None], fill)


def _bilinear(images: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Read the images at points; border pixels are extended beyond their centres."""
    height, width = images.shape[-2:]
    x, y = torch.broadcast_tensors(x / width, y / height)
    grid = torch.stack((x, y), -1) * 2 - 1  # [N, H, W, 2] in -1 .. 1
    return F.grid_sample(images, grid, "bilinear", padding_mode="border", align_corners=False)


def rotation(degrees: Tensor, height: int, width: int) -> Tensor:
    """The matrices [N, 2, 3] that rotate images anticlockwise about their centre."""
    cos, sin = degrees.deg2rad().cos(), degrees.deg2rad().sin()
    x, y = width / 2, height / 2
    return _matrix(cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y)


def shear_x(amounts: Tensor) -> Tensor:
    one, zero = torch.ones_like(amounts), torch.zeros_like(amounts)
    return _matrix(one, amounts, zero, zero, one, zero)


def shear_y(amounts: Tensor) -> Tensor:
    one, zero = torch.ones_like(amounts), torch.zeros_like(amounts)
    return _matrix(one, zero, zero, amounts, one, zero)


def translate_x(pixels: Tensor) -> Tensor:
    one, zero = torch.ones_like(pixels), torch.zeros_like(pixels)
    return _matrix(one, zero, pixels, zero, one, zero)


def translate_y(pixels: Tensor) -> Tensor:
    one, zero = torch.ones_like(pixels), torch.zeros_like(pixels)
    return _matrix(one, zero, zero, zero, one, pixels)


def zoom(shares: Tensor, height: int, width: int) -> Tensor:
    """The matrices that enlarge the centre, this share of the sides, to the whole image."""
    zero = torch.zeros_like(shares)
    x, y = (1 - shares) * width / 2, (1 - shares) * height / 2
    return _matrix(shares, zero, x, zero, shares, y)


def _matrix(*entries: Tensor) -> Tensor:
    return torch.stack(entries, 1).unflatten(1, (2, 3))  # [N, 2, 3]


def sample_cutout(n: int, height: int, width: int, device: torch.device) -> Tensor:
    """Rows (y, x): a pixel anywhere in the image."""
    y = torch.randint(height, (n,), device=device)
    x = torch.randint(width, (n,), device=device)
    return torch.stack((y, x), 1)  # [N, 2]


def cutout(images: Tensor, centres: Tensor, size: int | Tensor, fill: float) -> Tensor:
    """Cover a square of `size` pixels around the centre with `fill`.

    The size is one for all images, or [N].
    """
    height, width = images.shape[-2:]
    size = size[:, None] if isinstance(size, Tensor) else size
    top, left = (centres - size // 2).unbind(1)
    rows = torch.arange(height, device=images.device) - top[:, None]  # [N, H] from the square's top
    cols = torch.arange(width, device=images.device) - left[:, None]
    in_rows, in_cols = (rows >= 0) & (rows < size), (cols >= 0) & (cols < size)
    covered = in_rows[:, :, None] & in_cols[:, None, :]  # [N, H, W]
    return images.masked_fill(covered[:, None], fill)
