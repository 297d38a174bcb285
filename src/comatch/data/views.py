"""Augmented views of a photograph, drawn from its content.

A view is a crop at the resolution of an encoder. It depends only on the bytes of the image, on the
number of the view and on the size: so its features can be computed once and kept.

    0           the central square
    1           the same, flipped
    2, 4, ...   weak: a crop of 35 to 100 % of the area, flipped at random
    3, 5, ...   strong: a crop of 20 to 100 %, flipped at random, colour jitter, sometimes grey

This module does not import PyTorch, so that worker processes start fast.
"""

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance

from comatch.data.images import ImageError, bounded, read_rgb, square

VERSION = 1  # of these definitions: features of another one are computed again
PLAIN, FLIPPED = 0, 1
MOST = 26  # views of an image
WEAK, STRONG = "weak", "strong"
AREA = {WEAK: 0.35, STRONG: 0.2}  # smallest share of the image in a crop
RATIO = 4 / 3  # of the sides of a crop, at most
JITTER, HUE = 0.4, 0.1
JITTER_CHANCE, GREY_CHANCE = 0.8, 0.2

Digest = bytes


def digest_of(content: bytes) -> Digest:
    """The identity of an image, by its content."""
    return hashlib.blake2b(content, digest_size=16).digest()


def kind(view: int) -> str:
    return STRONG if view > FLIPPED and view % 2 else WEAK


def of_kind(wanted: str, number: int) -> list[int]:
    """The views of this kind among the first `number`."""
    return [view for view in range(number) if kind(view) == wanted]


def read_views(path: Path, digest: Digest, views: Sequence[int], size: int) -> np.ndarray:
    """Views [V, 3, size, size] uint8 of an image file, or an `ImageError`.

    A file that has changed since its digest was taken is an error: views are kept by the digest.
    """
    image = read_rgb(path, size)
    if digest_of(path.read_bytes()) != digest:
        raise ImageError("changed while it was read")
    return render(image, digest, views, size)


def views_of_array(
    pixels: np.ndarray, digest: Digest, views: Sequence[int], size: int
) -> np.ndarray:  # [3, H, W] -> [V, 3, size, size]
    image = Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    return render(bounded(image, size), digest, views, size)


def render(image: Image.Image, digest: Digest, views: Sequence[int], size: int) -> np.ndarray:
    return np.stack([render_one(image, digest, view, size) for view in views])


def render_one(image: Image.Image, digest: Digest, view: int, size: int) -> np.ndarray:
    """One view [3, size, size] uint8 of an image in RGB."""
    if view in (PLAIN, FLIPPED):
        plain = square(image, size)
        return plain if view == PLAIN else plain[..., ::-1]
    random = np.random.default_rng([*digest, view])
    box = crop_box(image.size, AREA[kind(view)], random)
    crop = image.resize((size, size), Image.Resampling.BILINEAR, box)
    if random.random() < 0.5:
        crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if kind(view) == STRONG:
        if random.random() < JITTER_CHANCE:
            crop = jitter(crop, random)
        if random.random() < GREY_CHANCE:
            crop = crop.convert("L").convert("RGB")
    return np.asarray(crop).transpose(2, 0, 1)


def crop_box(
    size: tuple[int, int], least: float, random: np.random.Generator
) -> tuple[float, float, float, float]:
    """A random box of `least` to 1 of the area, as in torchvision's RandomResizedCrop."""
    width, height = size
    for _ in range(10):
        area = width * height * random.uniform(least, 1)
        ratio = math.exp(random.uniform(-math.log(RATIO), math.log(RATIO)))
        w, h = math.sqrt(area * ratio), math.sqrt(area / ratio)
        if w <= width and h <= height:
            left, top = random.uniform(0, width - w), random.uniform(0, height - h)
            return left, top, left + w, top + h
    # The image is too long for a crop of that area: the largest one in the middle.
    w, h = min(width, height * RATIO), min(height, width * RATIO)
    left, top = (width - w) / 2, (height - h) / 2
    return left, top, left + w, top + h


def jitter(image: Image.Image, random: np.random.Generator) -> Image.Image:
    """Brightness, contrast, saturation and hue, in a random order."""
    changes = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color, None)
    for number in random.permutation(len(changes)):
        change = changes[number]
        if change is None:
            image = shift_hue(image, random.uniform(-HUE, HUE))
        else:
            image = change(image).enhance(random.uniform(1 - JITTER, 1 + JITTER))
    return image


def shift_hue(image: Image.Image, shift: float) -> Image.Image:
    hue, saturation, value = image.convert("HSV").split()
    shifted = np.asarray(hue) + np.uint8(round(shift * 255) % 256)
    return Image.merge("HSV", (Image.fromarray(shifted), saturation, value)).convert("RGB")
