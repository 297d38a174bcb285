"""Whole policies: what they draw, how often, and eager, compiled and captured runs."""

from dataclasses import replace

import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from comatch.augment import colour, geometry, policies
from comatch.augment.policies import OPERATIONS, Operation, Views, build
from comatch.errors import UserError

CPU = torch.device("cpu")
NAMES = ("weak", "strong", "contrast")
PLAIN = Views(flip=False, pad=0, min_area=1.0, cutout=0.0)


def moved(*matrix):
    grey = (128, 128, 128)
    return lambda p: p.transform(
        p.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR, fillcolor=grey
    )


def by_hand(name: str, sign: int, size: int):
    """The operation as a function of one Pillow image."""
    shift = sign * 10 / 32 * size
    return {
        "identity": lambda p: p,
        "autocontrast": ImageOps.autocontrast,
        "equalize": ImageOps.equalize,
        "rotate": lambda p: p.rotate(
            30 * sign, Image.Resampling.BILINEAR, fillcolor=(128, 128, 128)
        ),
        "solarize": lambda p: ImageOps.solarize(p, 256),
        "colour": lambda p: ImageEnhance.Color(p).enhance(1.9),
        "contrast": lambda p: ImageEnhance.Contrast(p).enhance(1.9),
        "brightness": lambda p: ImageEnhance.Brightness(p).enhance(1.9),
        "sharpness": lambda p: ImageEnhance.Sharpness(p).enhance(1.9),
        "shear_x": moved(1, 0.3 * sign, 0, 0, 1, 0),
        "shear_y": moved(1, 0, 0, 0.3 * sign, 1, 0),
        "translate_x": moved(1, 0, shift, 0, 1, 0),
        "translate_y": moved(1, 0, 0, 0, 1, shift),
        "posterize": lambda p: ImageOps.posterize(p, 4),
    }[name]


@pytest.mark.parametrize("size", [8, 16, 32, 96])
def test_each_operation_agrees_with_pillow(tiles, by_pillow, size):
    """Every operation with both signs in one batch, on a photograph and on a hard case."""
    cases = [
        (kind, sign, tile)
        for kind in range(len(OPERATIONS))
        for sign in (-1, 1)
        for tile in (kind, 24 + kind % 8)
    ]
    kind, sign, tile = torch.tensor(cases).T
    images = tiles(size)[tile]
    ours = policies.operate(images, Operation(kind, sign.float()), 128)
    for image, result, (k, s, _) in zip(images, ours, cases, strict=True):
        expected = by_pillow(image[None], by_hand(OPERATIONS[k], s, size))[0]
        assert (result - expected).abs().max() < 1.02, OPERATIONS[k]


def test_interpolation_noise_is_not_stretched_to_full_contrast():
    """A flat image after a rotation is flat to 1e-5 levels, which autocontrast must not see."""
    drawn = Operation(torch.arange(14), torch.ones(14))
    flat = torch.full((14, 3, 32, 32), 100.0)
    noisy = flat + 1e-4 * torch.randn_like(flat)
    difference = policies.operate(noisy, drawn, 128) - policies.operate(flat, drawn, 128)
    assert difference.abs().max() < 0.01


def test_operations_are_drawn_uniformly_and_applied_half_the_time():
    torch.manual_seed(0)
    kind, sign = policies.sample_operation(56_000, CPU)
    share = kind.bincount() / 56_000
    assert len(share) == 14
    assert abs(share[0] - 15 / 28) < 0.01  # drawn, or another drawn and not applied
    assert (share[1:] - 1 / 28).abs().max() < 0.004
    assert set(sign.tolist()) == {-1.0, 1.0}
    for k in range(14):
        assert sign[kind == k].mean().abs() < 0.1  # the sign does not depend on the operation


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("weak_crop", ["pad", "resized"])
def test_views_may_be_smaller_than_images(photographs, name, weak_crop):
    images = photographs(36)
    views = build(name, Views(weak_crop=weak_crop, size=32))(images)
    assert views.shape == (len(images), 3, 32, 32)
    assert views.min() >= -0.01
    assert views.max() <= 255.01


def test_a_smaller_view_without_crop_is_the_resized_image(photographs):
    images = photographs(36)
    plain = replace(PLAIN, weak_crop="resized", size=32)
    expected = torch.nn.functional.interpolate(images.float(), (32, 32), mode="bilinear")
    box = torch.tensor([[0, 0, 36, 36]]).expand(len(images), 4)
    assert (geometry.resized_crop(images.float(), box, 32) - expected).abs().max() < 0.01
    assert (build("weak", plain)(images) - expected).abs().max() < 0.01


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [8, 16, 32, 96])
@pytest.mark.parametrize("views", [Views(), Views(weak_crop="resized", flip=False)])
def test_a_view_is_a_float_image_of_the_same_size(photographs, name, size, views):
    images = photographs(size)
    before = images.clone()
    view = build(name, views)(images)
    assert view.shape == images.shape
    assert view.dtype == torch.float32
    assert view.min() > -0.01
    assert view.max() < 255.01
    assert torch.equal(images, before)
    assert not torch.equal(view, images.float())


@pytest.mark.parametrize("name", NAMES)
def test_a_view_depends_on_the_seed(photographs, name):
    images, view = photographs(32), build(name, Views())
    runs = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        runs.append(view(images))
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


@pytest.mark.parametrize("name", NAMES)
def test_each_image_has_its_own_draws(photographs, name):
    torch.manual_seed(0)
    images = photographs(32)[:1].expand(64, -1, -1, -1)
    distinct = build(name, Views())(images).flatten(1).unique(dim=0)
    assert len(distinct) > 40


@pytest.mark.parametrize("name", NAMES)
def test_a_view_never_mixes_images(name):
    """Half of the images are black and must stay black."""
    images = torch.zeros(30, 3, 16, 16, dtype=torch.uint8)
    images[::2, 0] = 200
    views = replace(Views(), cutout=0.0, fill=0.0)
    view = build(name, views)(images)
    assert view[1::2].abs().max() == 0
    assert (view[::2].flatten(1).amax(1) > 0).all()


def test_weak_shifts_by_up_to_four_pixels_and_flips_half(photographs):
    torch.manual_seed(0)
    image = photographs(32)[20]
    view = build("weak", Views())(image.expand(256, -1, -1, -1))
    padded = torch.nn.functional.pad(image[None].float(), [4] * 4, mode="reflect")[0]
    crops = padded.unfold(1, 32, 1).unfold(2, 32, 1)[:, :8, :8].flatten(1, 2).transpose(0, 1)
    straight = (view[:, None] == crops).flatten(2).all(2).sum(1)  # [256] equal crops out of 64
    mirrored = (view.flip(-1)[:, None] == crops).flatten(2).all(2).sum(1)
    assert (straight + mirrored == 1).all()
    assert 0.4 < mirrored.float().mean() < 0.6


def test_without_crop_and_flip_the_weak_view_is_the_image(photographs):
    images = photographs(32)
    assert torch.equal(build("weak", PLAIN)(images), images.float())
    resized = build("weak", replace(PLAIN, weak_crop="resized"))(images)  # at least all of it
    assert (resized - images).abs().max() < 0.01
    assert not torch.equal(build("weak", replace(PLAIN, flip=True))(images), images.float())


def test_the_cutout_of_strong_has_half_the_side(monkeypatch):
    torch.manual_seed(0)
    nothing = Operation(torch.zeros(4000, dtype=torch.long), torch.ones(4000))
    monkeypatch.setattr(policies, "sample_operation", lambda n, device: nothing)
    images = torch.zeros(4000, 3, 16, 16, dtype=torch.uint8)
    covered = build("strong", replace(PLAIN, cutout=0.5))(images)[:, 0] == 128
    area = covered.flatten(1).sum(1)
    sides = torch.tensor([min(c + 4, 16) - max(c - 4, 0) for c in range(16)]).float()
    assert area.min() == 16  # in the corner
    assert area.max() == 64
    assert abs(area.float().mean() - sides.mean() ** 2) < 1


def test_contrast_jitters_80_percent_and_greys_20_percent(photographs):
    torch.manual_seed(0)
    image = photographs(8)[20]
    view = build("contrast", PLAIN)(image.expand(4000, -1, -1, -1))  # no crop, no flip
    grey = (view == view[:, :1]).flatten(1).all(1)
    own_grey = (view - colour.grey(image[None].float())).abs().flatten(1).amax(1) < 1e-2
    own = (view - image).abs().flatten(1).amax(1) < 1e-2
    assert abs(grey.float().mean() - 0.2) < 0.02
    assert abs(own.float().mean() - 0.2 * 0.8) < 0.02
    assert abs(own_grey.float().mean() - 0.2 * 0.2) < 0.02


def test_normalise_gives_zero_mean_and_unit_deviation(photographs):
    images = photographs(32).float()
    mean, std = images.mean((0, 2, 3)) / 255, images.std((0, 2, 3)) / 255
    normal = policies.normalise(images, mean, std)
    assert normal.mean((0, 2, 3)).abs().max() < 1e-4
    assert (normal.std((0, 2, 3)) - 1).abs().max() < 1e-4


def test_denormalise_is_the_inverse(photographs):
    images = photographs(32).float()
    mean, std = torch.tensor([0.1, 0.5, 0.9]), torch.tensor([0.2, 0.3, 1.0])
    back = policies.denormalise(policies.normalise(images, mean, std), mean, std)
    assert (back - images).abs().max() < 1e-3


def test_an_unknown_view_is_an_error_with_a_suggestion():
    with pytest.raises(UserError, match="did you mean 'strong'"):
        build("stronk", Views())


def test_a_new_policy_is_one_function(photographs, monkeypatch):
    monkeypatch.setattr(policies, "POLICIES", dict(policies.POLICIES))

    @policies.policy
    def negative(images, views):
        return 255 - images

    images = photographs(8)
    assert torch.equal(build("negative", Views())(images), 255 - images.float())


@pytest.mark.parametrize("name", NAMES)
def test_a_policy_compiles_to_one_graph(photographs, name):
    """With fullgraph, a branch on a value or a wait for the device would fail."""
    torch.compiler.reset()
    images, view = photographs(16), build(name, Views())
    compiled = torch.compile(view, fullgraph=True, backend="aot_eager")
    torch.manual_seed(0)
    expected = view(images)
    torch.manual_seed(0)
    assert (compiled(images) - expected).abs().max() < 1e-3


@pytest.fixture
def tape(monkeypatch):
    """Records random numbers on the CPU and replays them on another device."""
    rand, randint = torch.rand, torch.randint
    drawn = []

    class Tape:
        def record(self):
            def keep(draw):
                def kept(*args, device=None, **options):
                    drawn.append(draw(*args, **options))
                    return drawn[-1]

                return kept

            monkeypatch.setattr(torch, "rand", keep(rand))
            monkeypatch.setattr(torch, "randint", keep(randint))

        def replay(self, device):
            there = [numbers.to(device) for numbers in drawn]
            position = iter(())

            def rewind():
                nonlocal position
                position = iter(there)

            def play(*args, **options):
                return next(position)

            monkeypatch.setattr(torch, "rand", play)
            monkeypatch.setattr(torch, "randint", play)
            return rewind

    return Tape()


def capture(view, images):
    """One CUDA graph of the view, warmed up outside as capturing requires: (graph, its output)."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        view(images)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = view(images)
    return graph, output


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("name", NAMES)
def test_a_captured_policy_agrees_with_the_cpu(photographs, tape, name):
    images, view = photographs(32), build(name, Views())
    tape.record()
    expected = view(images)
    rewind = tape.replay("cuda")

    def rewound(images):
        rewind()
        return view(images)

    graph, output = capture(rewound, images.cuda())
    output.zero_()
    graph.replay()
    difference = (output.cpu() - expected).abs()
    # Values near a half may be rounded differently, which posterize makes 16 levels.
    assert (difference > 1.01).float().mean() < 5e-3


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("compiled", [False, True])
def test_each_replay_of_a_captured_policy_draws_new_numbers(photographs, name, compiled):
    torch.compiler.reset()
    images, view = photographs(32).cuda(), build(name, Views())
    if compiled:
        view = torch.compile(view, fullgraph=True)
    graph, output = capture(view, images)
    graph.replay()
    first = output.clone()
    graph.replay()
    assert not torch.equal(first, output)
    assert output.min() > -0.01
    assert output.max() < 255.01
