"""Batched operations against Pillow or torchvision, one image at a time."""

import pytest
import torch
import torchvision.transforms.v2 as tv
from PIL import Image
from torchvision.transforms.v2 import functional as tvf

from comatch.augment import geometry

CPU = torch.device("cpu")


def test_flip_mirrors_only_flagged_images(tiles):
    images = tiles(32)
    flags = torch.arange(len(images)) % 3 == 0
    flipped = geometry.flip(images, flags)
    assert torch.equal(flipped[flags], images[flags].flip(-1))
    assert torch.equal(flipped[~flags], images[~flags])


@pytest.mark.parametrize(("size", "pad"), [(32, 4), (8, 4), (16, 0), (96, 12)])
def test_pad_crop_is_a_reflecting_pad_and_a_crop(tiles, size, pad):
    images = tiles(size)
    offsets = torch.randint(0, 2 * pad + 1, (len(images), 2))
    padded = tvf.pad(images, [pad] * 4, padding_mode="reflect")
    expected = [p[:, t : t + size, s : s + size] for p, (t, s) in zip(padded, offsets, strict=True)]
    assert torch.equal(geometry.pad_crop(images, offsets, pad), torch.stack(expected))


def test_pad_crop_of_another_size(tiles):
    images = tiles(12)[:2]
    offsets = torch.tensor([[0, 5], [6, 1]])
    padded = tvf.pad(images, [2] * 4, padding_mode="reflect")
    crops = geometry.pad_crop(images, offsets, 2, 10)
    assert torch.equal(crops[0], padded[0, :, 0:10, 5:15])
    assert torch.equal(crops[1], padded[1, :, 6:16, 1:11])
    drawn = geometry.sample_pad_crop(1000, 2, CPU, spare=2)
    assert (drawn.min(), drawn.max()) == (0, 5)


def test_pad_crop_offsets_are_uniform():
    offsets = geometry.sample_pad_crop(40_000, 4, CPU)
    pairs = (offsets[:, 0] * 8 + offsets[:, 1]).bincount()
    assert len(pairs) == 64  # 8 x 8: independent rows and columns, and 8 never occurs
    assert (pairs / 40_000 - 1 / 64).abs().max() < 0.004


def affine_by_pillow(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform(
        image.size,
        Image.Transform.AFFINE,
        matrix,
        Image.Resampling.BILINEAR,
        fillcolor=(128, 128, 128),
    )


def assert_within_one_level(ours, pillows):
    # Pillow truncates the fraction, which is below 1. 0.01 is for rounding: our float32 coordinates
    # are off by some 1e-5 pixels, and neighbours differ by up to 255.
    assert (ours - pillows).abs().max() < 1.01


@pytest.mark.parametrize("size", [16, 32, 96])
def test_affine_agrees_with_pillow(tiles, by_pillow, size):
    images = tiles(size)
    torch.manual_seed(1)
    matrix = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]) + torch.randn(len(images), 2, 3) / 4
    matrix[:, :, 2] *= size
    expected = by_pillow(images, affine_by_pillow, *matrix.flatten(1).T)
    assert_within_one_level(geometry.affine(images, matrix, 128), expected)


@pytest.mark.parametrize("size", [16, 32, 96])
def test_rotation_agrees_with_pillow(tiles, by_pillow, size):
    images = tiles(size)
    degrees = torch.linspace(-170, 190, len(images))
    expected = by_pillow(
        images,
        lambda p, angle: p.rotate(angle, Image.Resampling.BILINEAR, fillcolor=(128, 128, 128)),
        degrees,
    )
    assert_within_one_level(
        geometry.affine(images, geometry.rotation(degrees, size, size), 128), expected
    )


@pytest.mark.parametrize(
    ("matrix_of", "pillows"),
    [
        (geometry.shear_x, lambda p, v: affine_by_pillow(p, 1, v, 0, 0, 1, 0)),
        (geometry.shear_y, lambda p, v: affine_by_pillow(p, 1, 0, 0, v, 1, 0)),
        (geometry.translate_x, lambda p, v: affine_by_pillow(p, 1, 0, v, 0, 1, 0)),
        (geometry.translate_y, lambda p, v: affine_by_pillow(p, 1, 0, 0, 0, 1, v)),
    ],
)
@pytest.mark.parametrize("reach", [0.3, 7.0])
def test_shear_and_translation_agree_with_pillow(tiles, by_pillow, matrix_of, pillows, reach):
    images = tiles(32)
    amounts = torch.linspace(-reach, reach, len(images))
    ours = geometry.affine(images, matrix_of(amounts), 128)
    assert_within_one_level(ours, by_pillow(images, pillows, amounts))


@pytest.mark.parametrize(("height", "width"), [(32, 32), (24, 32)])
def test_zoom_agrees_with_pillow(tiles, by_pillow, height, width):
    images = tiles(32)[:, :, :height, :width]
    shares = torch.linspace(0.3, 1.2, len(images))

    def enlarged(image, share):
        left, top = (1 - share) / 2 * width, (1 - share) / 2 * height
        return affine_by_pillow(image, share, 0, left, 0, share, top)

    ours = geometry.affine(images, geometry.zoom(shares, height, width), 128)
    assert_within_one_level(ours, by_pillow(images, enlarged, shares))


def test_the_identity_map_changes_nothing(tiles):
    images = tiles(32)
    identity = geometry.rotation(torch.zeros(len(images)), 32, 32)
    assert (geometry.affine(images, identity, 0) - images).abs().max() < 1e-2


@pytest.mark.parametrize("size", [8, 32, 96])
def test_resized_crop_agrees_with_torchvision(tiles, size):
    images = tiles(size)
    torch.manual_seed(2)
    boxes = geometry.sample_resized_crop(len(images), size, size, 0.05, CPU)
    boxes[0] = torch.tensor([0, 0, size, size])
    boxes[1] = torch.tensor([size - 1, 3, 1, 1])
    expected = [
        tvf.resized_crop(image, *box, [size, size])
        for image, box in zip(images, boxes.tolist(), strict=True)
    ]
    assert (geometry.resized_crop(images, boxes) - torch.stack(expected)).abs().max() < 0.01


@pytest.mark.parametrize("min_area", [0.2, 0.9])
def test_crops_have_torchvisions_distribution(min_area):
    torch.manual_seed(3)
    ours = geometry.sample_resized_crop(20_000, 32, 32, min_area, CPU)
    theirs = tv.RandomResizedCrop(32, scale=(min_area, 1))
    rows = [theirs.make_params([torch.zeros(3, 32, 32)]) for _ in range(4_000)]
    expected = torch.tensor([[r["top"], r["left"], r["height"], r["width"]] for r in rows])

    top, left, tall, wide = ours.unbind(1)
    assert (ours >= 0).all()
    assert (top + tall <= 32).all()
    assert (left + wide <= 32).all()
    ours, expected = ours.float(), expected.float()
    error = expected.std(0) / 4_000**0.5 + ours.std(0) / 20_000**0.5
    assert ((ours.mean(0) - expected.mean(0)).abs() < 4 * error).all()
    assert (ours.std(0) / expected.std(0) - 1).abs().max() < 0.06
    area, expected_area = ours[:, 2] * ours[:, 3], expected[:, 2] * expected[:, 3]
    assert abs(area.mean() / expected_area.mean() - 1) < 0.02


@pytest.mark.parametrize(
    ("height", "width", "box"),
    [(32, 32, [0, 0, 32, 32]), (20, 60, [0, 16, 20, 27]), (60, 20, [16, 0, 27, 20])],
)
def test_without_a_fitting_crop_it_is_the_largest_central_one(height, width, box):
    assert geometry.sample_resized_crop(2, height, width, 0.2, CPU, tries=0).tolist() == [box, box]


@pytest.mark.parametrize(("size", "side"), [(32, 16), (32, 5), (8, 4), (96, 48), (16, 0)])
def test_cutout_covers_a_square_clipped_at_the_border(tiles, size, side):
    images = tiles(size)
    centres = geometry.sample_cutout(len(images), size, size, CPU)
    centres[0], centres[1] = torch.tensor([0, 0]), torch.tensor([size - 1, size // 2])
    expected = images.clone()
    for image, (y, x) in zip(expected, centres.tolist(), strict=True):
        top, left = y - side // 2, x - side // 2
        image[:, max(top, 0) : top + side, max(left, 0) : left + side] = 128
    assert torch.equal(geometry.cutout(images, centres, side, 128), expected)


def test_cutout_with_a_size_for_each_image(tiles):
    images = tiles(32)
    centres = geometry.sample_cutout(len(images), 32, 32, CPU)
    sizes = torch.arange(len(images)) % 20
    rows = zip(images, centres, sizes.tolist(), strict=True)
    expected = [geometry.cutout(i[None], c[None], s, 128) for i, c, s in rows]
    assert torch.equal(geometry.cutout(images, centres, sizes, 128), torch.cat(expected))


def test_cutout_centres_are_uniform():
    centres = geometry.sample_cutout(40_000, 8, 8, CPU)
    pairs = (centres[:, 0] * 8 + centres[:, 1]).bincount()
    assert len(pairs) == 64
    assert (pairs / 40_000 - 1 / 64).abs().max() < 0.004
