"""Views of photographs: drawn from the content of the image and the number of the view."""

import numpy as np
import pytest
from PIL import Image

from comatch.data import views

DIGEST = views.digest_of(b"an image")
ALL = list(range(views.MOST))


def photo(width=90, height=60, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)


def test_views_depend_on_content_and_number_alone():
    together = views.render(photo(), DIGEST, ALL, 32)
    assert together.shape == (views.MOST, 3, 32, 32)
    for view in (0, 1, 7, 20):
        assert np.array_equal(views.render(photo(), DIGEST, [view], 32)[0], together[view])
    other = views.render(photo(), views.digest_of(b"another"), ALL, 32)
    same = [np.array_equal(one, two) for one, two in zip(together, other, strict=True)]
    assert same == [True, True] + [False] * (views.MOST - 2)
    assert len({view.tobytes() for view in together}) == views.MOST


def test_the_first_two_views_are_plain_and_flipped():
    plain, flipped = views.render(photo(), DIGEST, [0, 1], 32)
    assert np.array_equal(plain[..., ::-1], flipped)


def test_kinds_alternate():
    assert [views.kind(view) for view in range(6)] == ["weak"] * 3 + ["strong", "weak", "strong"]
    assert views.of_kind("strong", 8) == [3, 5, 7]
    weak, strong = (views.of_kind(kind, views.MOST) for kind in ("weak", "strong"))
    assert (len(weak), len(strong)) == (14, 12)


@pytest.mark.parametrize("size", [(90, 60), (60, 90), (500, 500)])
@pytest.mark.parametrize("least", [0.2, 0.35])
def test_crops_have_area_and_ratio_within_bounds(size, least):
    random = np.random.default_rng(0)
    width, height = size
    shares = []
    for _ in range(500):
        left, top, right, bottom = views.crop_box(size, least, random)
        assert 0 <= left < right <= width + 1e-9
        assert 0 <= top < bottom <= height + 1e-9
        ratio = (right - left) / (bottom - top)
        assert 1 / views.RATIO - 1e-9 <= ratio <= views.RATIO + 1e-9
        shares.append((right - left) * (bottom - top) / (width * height))
    assert least <= min(shares) < least + 0.05
    assert 0.8 < max(shares) <= 1 + 1e-9


@pytest.mark.parametrize("size", [(1, 3000), (3000, 1), (1, 1), (7, 4000)])
def test_extreme_shapes_have_views(size):
    assert views.render(photo(*size), DIGEST, ALL, 16).shape == (views.MOST, 3, 16, 16)


def test_strong_views_change_colours_and_some_are_grey():
    image = Image.new("RGB", (64, 64), (200, 60, 30))
    weak = views.render(image, DIGEST, views.of_kind("weak", views.MOST), 8)
    assert np.array_equal(np.unique(weak[:, 0]), [200])
    strong = np.concatenate(
        [
            views.render(image, views.digest_of(bytes([i])), views.of_kind("strong", views.MOST), 8)
            for i in range(20)
        ]
    )
    colours = strong[:, :, 4, 4].astype(int)
    grey = (np.ptp(colours, axis=1) == 0).mean()
    changed = (np.abs(colours - [200, 60, 30]).max(1) > 2).mean()
    assert 0.1 < grey < 0.3  # a chance of 0.2
    assert 0.75 < changed < 0.95  # 0.8 + 0.2 * 0.2


def test_a_shift_of_the_hue_by_a_third_turns_red_into_green():
    red = Image.new("RGB", (4, 4), (255, 0, 0))
    assert np.asarray(views.shift_hue(red, 1 / 3))[0, 0].argmax() == 1
    assert np.array_equal(np.asarray(views.shift_hue(red, 0)), np.asarray(red))
