"""Operations on the colours of pixels, defined as in Pillow.

Half of them are a `blend`: interpolation from a degenerate image (black, grey, blurred) to the
image itself, and extrapolation if the factor exceeds 1. Pillow's images are 8-bit, so histograms
and greys are computed in whole grey levels here too.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


def autocontrast(images: Tensor) -> Tensor:
    """Stretch each channel to 0 .. 255; a channel of a single value stays as it is."""
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    return torch.where(high > low, (images - low) * (255 / (high - low)), images)


def equalize(images: Tensor) -> Tensor:
    """Spread each channel's values so that all grey levels are about equally frequent.

    Pillow's formula: a value becomes (number of smaller pixels + step / 2) / step, in integers,
    where step = (number of pixels below the maximum) / 255. A step of 0 leaves the channel
    unchanged: that is so for nearly all images of 16 x 16 pixels and for all smaller ones.
    """
    # Clamped, because a compiled kernel also reads memory beside the batch.
    values = images.round().clamp(0, 255).long().flatten(2)  # [N, 3, H W]
    counts = torch.zeros(*values.shape[:2], 256, dtype=torch.int32, device=values.device)
    ones = torch.ones(1, 1, 1, dtype=torch.int32, device=values.device)
    counts = counts.scatter_add(2, values, ones.expand_as(values))  # [N, 3, 256]
    smaller = counts.cumsum(2, dtype=torch.int32) - counts
    step = smaller.gather(2, values.amax(2, keepdim=True)) // 255  # [N, 3, 1]
    table = ((smaller + step // 2) // step.clamp(min=1)).clamp(max=255).to(images.dtype)
    equal = table.gather(2, values).view_as(images)
    return torch.where(step[..., None] > 0, equal, images)


def invert(images: Tensor) -> Tensor:
    return 255 - images


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Invert values at or above the threshold."""
    return torch.where(images < _column(threshold), images, invert(images))


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the highest `bits` of the eight bits of every value."""
    step = _column(1 << (8 - bits))
    return (images.round() / step).floor() * step


def blend(images: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    """From `other` (factor 0) to the image (factor 1) and beyond, within 0 .. 255."""
    return torch.lerp(other, images, _column(factor)).clamp(0, 255)


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    return blend(images, torch.zeros_like(images), factor)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    return blend(images, mean_grey(images), factor)


def saturation(images: Tensor, factor: Tensor) -> Tensor:
    return blend(images, grey(images), factor)


def sharpness(images: Tensor, factor: Tensor) -> Tensor:
    return blend(images, smooth(images), factor)


def grey(images: Tensor) -> Tensor:
    """Luma after ITU-R 601-2, with the integer weights of Pillow's `convert("L")`."""
    red, green, blue = images.split(1, dim=1)
    return _whole((19595 * red + 38470 * green + 7471 * blue) / 65536)  # [N, 1, H, W]


def mean_grey(images: Tensor) -> Tensor:
    return _whole(grey(images).mean((2, 3), keepdim=True))  # [N, 1, 1, 1]


def smooth(images: Tensor) -> Tensor:
    """The mean of each pixel (weight 5) and its neighbours (weight 1); the border is kept."""
    rows = images[..., :-2, :] + images[..., 1:-1, :] + images[..., 2:, :]
    block = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]  # sums of 3 x 3
    smoothed = images.clone()
    smoothed[..., 1:-1, 1:-1] = _whole((block + 4 * images[..., 1:-1, 1:-1]) / 13)
    return smoothed


def blur(images: Tensor) -> Tensor:
    """The mean of the sixteen pixels at distance two of each pixel; the border is kept."""
    inner = images[..., 1:-1, 1:-1]
    square = F.avg_pool2d(images, 5, stride=1, divisor_override=1)  # sums of 5 x 5
    ring = square - F.avg_pool2d(inner, 3, stride=1, divisor_override=1)
    blurred = images.clone()
    blurred[..., 2:-2, 2:-2] = _whole(ring / 16)
    return blurred


def sample_sigmas(n: int, device: torch.device) -> Tensor:
    """Deviations of a Gaussian blur in pixels: 0.1 to 2."""
    return 0.1 + 1.9 * torch.rand(n, device=device)  # [N]


def gaussian_blur(images: Tensor, sigmas: Tensor) -> Tensor:
    """A blur of its own strength for each image; the kernel is a tenth of the side wide (SimCLR).

    Shifted copies of the whole batch are summed: first along rows, then along columns.
    """
    radius = max(1, round(images.shape[-1] / 20))
    offsets = torch.arange(-radius, radius + 1, device=images.device)
    weights = (-0.5 * (offsets / sigmas[:, None]).square()).exp()
    weights = weights / weights.sum(1, keepdim=True)  # [N, 2 radius + 1]
    for dim, pad in ((3, (radius, radius, 0, 0)), (2, (0, 0, radius, radius))):
        padded, side = F.pad(images, pad, mode="reflect"), images.shape[dim]
        images = torch.stack(
            [
                _column(weight) * padded.narrow(dim, i, side)
                for i, weight in enumerate(weights.unbind(1))
            ]
        ).sum(0)
    return images


def hue(images: Tensor, shift: Tensor) -> Tensor:
    """Shift the hue by a share of the colour circle; HSV saturation and value are kept."""
    red, green, blue = images.split(1, dim=1)
    value = images.amax(1, keepdim=True)  # [N, 1, H, W]
    chroma = value - images.amin(1, keepdim=True)
    sixths = torch.where(value == green, 2 * chroma + blue - red, 4 * chroma + red - green)
    sixths = torch.where(value == red, green - blue, sixths) / chroma.clamp(min=1e-6)
    angle = sixths / 6 + _column(shift)

    # A channel has its minimum within one sixth of the circle around its complementary colour (cyan
    # at 3/6, magenta at 5/6, yellow at 7/6), and its maximum from two sixths on.
    opposite = torch.arange(3.0, 8.0, 2.0, device=images.device) / 6
    away = angle - opposite[:, None, None]  # [N, 3, H, W]
    away = 6 * (away - away.round()).abs()
    return value - chroma * (2 - away).clamp(0, 1)


BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)


class Jitter(NamedTuple):
    """A random change of all four properties, in a random order."""

    order: Tensor  # [N, 4] the properties, first to last
    amounts: Tensor  # [N, 4] by property: three factors and the hue shift


def sample_jitter(
    n: int,
    strength: float,
    hue_strength: float,
    device: torch.device,
    saturation: float | None = None,
) -> Jitter:
    """Factors in 1 - strength .. 1 + strength, shifts in -hue_strength .. hue_strength.

    The factor of saturation may have a strength of its own.
    """
    order = torch.rand(n, 4, device=device).argsort(1)
    swing = 2 * torch.rand(n, 4, device=device) - 1
    strengths = (strength, strength, strength if saturation is None else saturation)
    factors = [1 + s * swing[:, i : i + 1] for i, s in enumerate(strengths)]
    return Jitter(order, torch.cat((*factors, hue_strength * swing[:, HUE:]), 1))


def jitter(images: Tensor, params: Jitter) -> Tensor:
    """torchvision's ColorJitter, with a random order for each image.

    Each of four rounds does one blend and one hue shift for the whole batch. For an image that has
    another property in this round, the factor is 1 or the shift 0.
    """
    for kind in params.order.unbind(1):  # [N]
        amount = params.amounts.gather(1, kind[:, None])[:, 0]  # [N]
        other = grey(images) * _column(kind == SATURATION)  # brightness: black
        other = other + mean_grey(images) * _column(kind == CONTRAST)
        images = blend(images, other, amount.masked_fill(kind == HUE, 1))
        images = hue(images, amount * (kind == HUE))
    return images


def _column(values: Tensor) -> Tensor:
    """One value for each image, shaped to broadcast to the images."""
    return values[:, None, None, None]  # [N, 1, 1, 1]


def _whole(values: Tensor) -> Tensor:
    """The nearest whole grey level; halves round up as in Pillow, not to even as in `round`."""
    return (values + 0.5).floor()
