"""The views of methods that learn without labels."""

import math

import pytest
import torch

from comatch.augment import colour, policies
from comatch.augment.policies import Views

STILL = {"jitter": 0.0, "saturation": 0.0, "hue": 0.0, "flip": False}


def images(n=4, side=24):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (n, 3, side, side), generator=generator, dtype=torch.uint8)


def test_gaussian_blur_in_plain_loops():
    """A kernel as wide as a tenth of the side, of another strength for each image."""
    sigmas = torch.tensor([0.3, 1.5])
    x = images(2, 40).double()
    blurred = colour.gaussian_blur(x, sigmas)
    for i, (y, column) in ((0, (5, 7)), (1, (20, 33)), (1, (0, 0)), (1, (39, 1))):
        weights = {d: math.exp(-0.5 * (d / float(sigmas[i])) ** 2) for d in range(-2, 3)}
        total = sum(weights.values())
        expected = 0.0
        for dy, a in weights.items():
            for dx, b in weights.items():
                yy, xx = (abs(v) if v < 40 else 78 - v for v in (y + dy, column + dx))
                expected += a * b / total**2 * float(x[i, 1, yy, xx])
        assert blurred[i, 1, y, column].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("view", "setting"), [("contrast", "blur"), ("other", "other_blur")])
def test_blur_has_its_probability(view, setting):
    def roughness(probability):
        torch.manual_seed(0)
        views = Views(**STILL, min_area=1.0, **{setting: probability})
        out = policies.build(view, views)(images(64, 32))
        return (out[..., 1:] - out[..., :-1]).abs().mean((1, 2, 3))

    sharp, half, soft = (roughness(p) for p in (0.0, 0.5, 1.0))
    assert soft.mean() < half.mean() < sharp.mean()


def test_solarize_has_its_probability():
    torch.manual_seed(0)
    bright = torch.full((400, 3, 8, 8), 200, dtype=torch.uint8)
    views = Views(**STILL, min_area=1.0, other_solarize=0.25)
    out = policies.build("other", views)(bright)
    inverted = (out - 55).abs().amax((1, 2, 3)) < 1
    kept = (out - 200).abs().amax((1, 2, 3)) < 1
    assert bool((inverted | kept).all())
    assert 60 < int(inverted.sum()) < 140


def test_small_views_show_a_small_part_at_a_low_resolution():
    """An image whose value is its column: a crop of it spans the part that it shows."""
    torch.manual_seed(0)
    ramp = torch.arange(112).expand(64, 3, 112, 112).to(torch.uint8)
    out = policies.build("small", Views(**STILL))(ramp)
    assert out.shape == (64, 3, 48, 48)
    spans = out[:, 0].amax((1, 2)) - out[:, 0].amin((1, 2))
    assert spans.max() <= 112 * (0.14 * 4 / 3) ** 0.5 + 1
    assert spans.min() >= 112 * (0.05 * 3 / 4) ** 0.5 - 3


def test_a_jigsaw_puzzle_has_nine_patches_in_random_orders():
    """Each cell of the image has a grey of its own, so a patch tells which cell it is from."""
    torch.manual_seed(0)
    side = 96
    greys = 25 * torch.arange(9).view(3, 3)
    whole = greys.repeat_interleave(side // 3, 0).repeat_interleave(side // 3, 1)
    x = whole.expand(20, 3, side, side).to(torch.uint8)
    out = policies.build("jigsaw", Views(**STILL))(x)
    patch = round(64 * side / 224)
    assert out.shape == (20, 3, 3 * patch, 3 * patch)
    medians = out[:, 0].unflatten(2, (3, patch)).unflatten(1, (3, patch)).permute(0, 1, 3, 2, 4)
    medians = medians.flatten(3).median(3).values.flatten(1)
    orders = {tuple(row.argsort().tolist()) for row in medians}
    assert len(orders) > 15
    assert all(float(row.max() - row.min()) > 100 for row in medians)


def test_default_contrast_view_is_that_of_comatch():
    torch.manual_seed(0)
    out = policies.build("contrast", Views())(images())
    torch.manual_seed(0)
    x = images().float()
    x = policies._maybe_flip(policies._random_part(x, Views()), Views())
    drawn = colour.sample_jitter(4, 0.4, 0.1, x.device)
    x = torch.where(policies._chance(0.8, x), colour.jitter(x, drawn), x)
    x = torch.where(policies._chance(0.2, x), colour.grey(x), x)
    assert torch.equal(out, x)
