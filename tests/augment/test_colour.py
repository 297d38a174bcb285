"""Batched operations against Pillow or torchvision, one image at a time."""

import itertools
import math

import pytest
import torch
from PIL import ImageEnhance, ImageFilter, ImageOps
from torchvision.transforms.v2 import functional as tvf

from comatch.augment import colour

CPU = torch.device("cpu")
ONE_LEVEL = 1.001  # Pillow truncates the fraction, and computes in another precision


def spread(images, low, high):
    """A different value for each image."""
    return torch.linspace(low, high, len(images))


@pytest.mark.parametrize("size", [8, 16, 32, 96])
def test_autocontrast_agrees_with_pillow(tiles, by_pillow, size):
    images = tiles(size)
    expected = by_pillow(images, ImageOps.autocontrast)
    assert (colour.autocontrast(images) - expected).abs().max() < ONE_LEVEL


@pytest.mark.parametrize("size", [8, 16, 32, 96])
def test_equalize_equals_pillow(tiles, by_pillow, size):
    images = tiles(size)
    ours = colour.equalize(images)
    assert torch.equal(ours, by_pillow(images, ImageOps.equalize))
    assert torch.equal(ours, images) == (size == 8)  # too few pixels for Pillow's formula


def test_equalize_of_16_pixels_where_the_step_is_one(by_pillow):
    ramp = torch.arange(256.0).view(1, 1, 16, 16).expand(1, 3, 16, 16)
    images = torch.cat((ramp, (ramp / 2).floor(), ramp.flip(-1)))
    assert torch.equal(colour.equalize(images), by_pillow(images, ImageOps.equalize))


def test_solarize_equals_pillow(tiles, by_pillow):
    images = tiles(32)
    thresholds = spread(images, 0, 256).round()
    expected = by_pillow(images, lambda p, t: ImageOps.solarize(p, int(t)), thresholds)
    assert torch.equal(colour.solarize(images, thresholds), expected)


def test_posterize_equals_pillow(tiles, by_pillow):
    images = tiles(32)
    bits = 1 + torch.arange(len(images)) % 8
    expected = by_pillow(images, ImageOps.posterize, bits)
    assert torch.equal(colour.posterize(images, bits), expected)
    assert torch.equal(colour.posterize(images - 1e-4, bits), expected)  # interpolation noise


@pytest.mark.parametrize("size", [8, 32, 96])
@pytest.mark.parametrize(
    ("ours", "pillows"),
    [
        (colour.brightness, ImageEnhance.Brightness),
        (colour.contrast, ImageEnhance.Contrast),
        (colour.saturation, ImageEnhance.Color),
        (colour.sharpness, ImageEnhance.Sharpness),
    ],
)
def test_blends_agree_with_pillow(tiles, by_pillow, ours, pillows, size):
    images = tiles(size)
    factors = spread(images, 0, 2)
    expected = by_pillow(images, lambda p, factor: pillows(p).enhance(factor), factors)
    assert (ours(images, factors) - expected).abs().max() < ONE_LEVEL


@pytest.mark.parametrize("size", [8, 32, 96])
@pytest.mark.parametrize(
    ("ours", "pillows"),
    [
        (colour.invert, ImageOps.invert),
        (colour.smooth, lambda p: p.filter(ImageFilter.SMOOTH)),
        (colour.blur, lambda p: p.filter(ImageFilter.BLUR)),
    ],
)
def test_filters_equal_pillow(tiles, by_pillow, ours, pillows, size):
    images = tiles(size)
    assert torch.equal(ours(images), by_pillow(images, pillows))


def test_grey_equals_pillow(tiles, by_pillow):
    images = tiles(96)
    expected = by_pillow(images, lambda p: p.convert("L"))
    assert torch.equal(colour.grey(images).expand_as(images), expected)


def test_hue_agrees_with_torchvision(tiles):
    images = tiles(32)
    shifts = spread(images, -0.5, 0.5)
    expected = [
        tvf.adjust_hue(i / 255, s.item()) * 255 for i, s in zip(images, shifts, strict=True)
    ]
    assert (colour.hue(images, shifts) - torch.stack(expected)).abs().max() < 0.01


def test_hue_by_a_third_swaps_the_channels(tiles):
    images = tiles(32)
    third = torch.full((len(images),), 1 / 3)
    assert (colour.hue(images, third) - images.roll(1, dims=1)).abs().max() < 0.01


def test_jitter_agrees_with_torchvision_in_every_order(tiles):
    """All 24 orders in one batch, a different set of amounts for each image."""
    images = tiles(32)[:24]
    torch.manual_seed(0)
    params = colour.sample_jitter(24, 0.4, 0.1, CPU)
    params = params._replace(order=torch.tensor(list(itertools.permutations(range(4)))))
    adjust = (tvf.adjust_brightness, tvf.adjust_contrast, tvf.adjust_saturation, tvf.adjust_hue)
    expected = []
    for image, order, amounts in zip(images, *params, strict=True):
        for kind in order:
            image = adjust[kind](image / 255, amounts[kind].item()) * 255
        expected.append(image)
    # Our grey is rounded to whole levels as in Pillow, torchvision's is not. Of that half level at
    # most 0.4 enters a blend, and later blends enlarge it by at most 1.4 x 1.4.
    assert (colour.jitter(images, params) - torch.stack(expected)).abs().max() <= 1


def test_jitter_is_uniform():
    order, amounts = colour.sample_jitter(24_000, 0.4, 0.1, CPU)
    orders = (order * torch.tensor([64, 16, 4, 1])).sum(1).unique(return_counts=True)[1]
    assert len(orders) == math.factorial(4)
    assert (orders / 1000 - 1).abs().max() < 0.15
    for column, (low, high) in zip(amounts.T, [(0.6, 1.4)] * 3 + [(-0.1, 0.1)], strict=True):
        tenths = ((column - low) / (high - low) * 10).long().clamp(0, 9).bincount()
        assert column.min() >= low - 1e-6
        assert column.max() <= high + 1e-6
        assert (tenths / 2400 - 1).abs().max() < 0.1
    correlation = amounts.T.corrcoef() - torch.eye(4)
    assert correlation.abs().max() < 0.03
