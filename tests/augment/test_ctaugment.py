"""CTAugment: operations against Pillow at every strength, and weights against loops."""

import pytest
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from comatch.augment import ctaugment
from comatch.augment.ctaugment import BINS, DEPTH, OPERATIONS, CTAugment, Drawn

GREY = (128, 128, 128)
EVERY = [(kind, bin) for kind in range(len(OPERATIONS)) for bin in range(BINS)]


def moved(image, *matrix):
    return image.transform(
        image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR, fillcolor=GREY
    )


def covered(image, side, y, x):
    image = image.copy()
    top, left = y - side // 2, x - side // 2
    if side:  # Pillow clips at the border
        image.paste(GREY, (left, top, left + side, top + side))
    return image


def by_hand(image, name, bin, y, x):
    """The operation of the paper's appendix on one Pillow image."""
    level, size = bin / 16, image.width
    swing, share = 0.6 * level - 0.3, 0.5 + 0.5 * level
    bits = [1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8][bin]

    def towards(other):
        return Image.blend(image, other(image), level)

    return {
        "identity": lambda: image,
        "autocontrast": lambda: towards(ImageOps.autocontrast),
        "blur": lambda: towards(lambda p: p.filter(ImageFilter.BLUR)),
        "brightness": lambda: ImageEnhance.Brightness(image).enhance(level),
        "colour": lambda: ImageEnhance.Color(image).enhance(level),
        "contrast": lambda: ImageEnhance.Contrast(image).enhance(level),
        "cutout": lambda: covered(image, round(level * size / 2), y, x),
        "equalize": lambda: towards(ImageOps.equalize),
        "invert": lambda: towards(ImageOps.invert),
        "posterize": lambda: ImageOps.posterize(image, bits),
        "rescale": lambda: moved(
            image, share, 0, (1 - share) / 2 * size, 0, share, (1 - share) / 2 * size
        ),
        "rotate": lambda: image.rotate(90 * level - 45, Image.Resampling.BILINEAR, fillcolor=GREY),
        "sharpness": lambda: ImageEnhance.Sharpness(image).enhance(level),
        "shear_x": lambda: moved(image, 1, swing, 0, 0, 1, 0),
        "shear_y": lambda: moved(image, 1, 0, 0, swing, 1, 0),
        "smooth": lambda: towards(lambda p: p.filter(ImageFilter.SMOOTH)),
        "solarize": lambda: ImageOps.solarize(image, 256 * level),
        "translate_x": lambda: moved(image, 1, 0, swing * size, 0, 1, 0),
        "translate_y": lambda: moved(image, 1, 0, 0, 0, 1, swing * size),
    }[name]()


@pytest.mark.parametrize("size", [8, 32])
def test_every_operation_and_strength_agrees_with_pillow(tiles, by_pillow, size):
    torch.manual_seed(0)
    images = tiles(size)[torch.arange(len(EVERY)) % 32]
    kind, bin = torch.tensor(EVERY).T
    centre = torch.randint(size, (len(EVERY), 2))
    ours = ctaugment.operate(images, kind, bin, centre)

    def reference(image, k, b, y, x):
        return by_hand(image, OPERATIONS[k], b, y, x)

    expected = by_pillow(images, reference, kind, bin, *centre.T)
    for result, image, (k, _) in zip(ours, expected, EVERY, strict=True):
        # Pillow truncates fractions: of the stretched image, and again of the blend.
        level = 2 if OPERATIONS[k] == "autocontrast" else 1
        assert (result - image).abs().max() < level + 0.02, OPERATIONS[k]


def test_only_the_identity_changes_nothing(photographs):
    photos = photographs(32)[20:21].float()
    assert len(OPERATIONS) == len(set(OPERATIONS)) == 19
    for i, name in enumerate(OPERATIONS):
        n = BINS * 8
        images = photos.expand(n, -1, -1, -1)
        bins, centre = torch.arange(n) % BINS, torch.full((n, 2), 16)
        changed = ctaugment.operate(images, torch.full((n,), i), bins, centre) - images
        assert (changed.abs().max() < 0.01) == (name == "identity"), name


def test_two_operations_are_applied_in_order(photographs):
    images = photographs(32).float()
    torch.manual_seed(0)
    drawn = ctaugment.sample(images, torch.ones(len(OPERATIONS), BINS))
    first, second = ([column[:, i] for column in drawn] for i in range(DEPTH))
    expected = ctaugment.operate(ctaugment.operate(images, *first), *second)
    assert torch.equal(ctaugment.augment(images, drawn), expected)


@pytest.mark.parametrize("size", [8, 16, 32])
def test_augmented_images_are_valid(tiles, size):
    torch.manual_seed(0)
    cta, images = CTAugment(), tiles(size).repeat(8, 1, 1, 1)
    before = images.clone()
    for view in (cta(images), cta.probe(images)[0]):
        assert view.shape == images.shape
        assert view.dtype == images.dtype
        assert view.isfinite().all()
        assert view.min() > -0.01
        assert view.max() < 255.01
        assert not torch.equal(view, images)
    assert torch.equal(images, before)
    assert cta(images.double()).dtype == torch.float64


def test_weights_against_a_loop():
    """One update for each probe of a bin, all with the mean of its matches."""
    torch.manual_seed(0)
    cta = CTAugment(decay=0.9).double()
    weights = torch.ones(len(OPERATIONS), BINS).tolist()
    for _ in range(5):
        kind, bin = torch.randint(3, (40, DEPTH)), torch.randint(4, (40, DEPTH))
        match = torch.rand(40, dtype=torch.float64)
        probed = {}
        for kinds, bins, m in zip(kind.tolist(), bin.tolist(), match.tolist(), strict=True):
            for cell in zip(kinds, bins, strict=True):
                probed.setdefault(cell, []).append(m)
        for (k, b), matches in probed.items():
            for _ in matches:
                weights[k][b] = 0.9 * weights[k][b] + 0.1 * sum(matches) / len(matches)
        cta.push(kind, bin, match)
        expected = torch.tensor(weights, dtype=torch.float64)
        torch.testing.assert_close(cta.weights, expected, rtol=1e-12, atol=1e-12)
    assert (cta.weights[3:] == 1).all(), "bins without a probe keep their weight"
    assert (cta.weights[:3, :4] < 1).all()


def test_the_order_of_probes_does_not_matter():
    torch.manual_seed(0)
    kind, bin, match = torch.randint(2, (64, 2)), torch.randint(2, (64, 2)), torch.rand(64)
    one, other = CTAugment(), CTAugment()
    one.push(kind, bin, match)
    order = torch.rand(64).argsort()
    other.push(kind[order], bin[order], match[order])
    torch.testing.assert_close(one.weights, other.weights, rtol=1e-6, atol=1e-7)


def drawn_shares(cta, n=200_000, probe=False):
    """The share of each bin among the draws of its operation."""
    images = torch.zeros(1, 3, 8, 8).expand(n, -1, -1, -1)
    chances = torch.ones_like(cta.weights) if probe else cta.chances()
    kind, bin, centre = ctaugment.sample(images, chances)
    assert kind.shape == bin.shape == (n, DEPTH)
    assert centre.shape == (n, DEPTH, 2)
    counts = (kind * BINS + bin).flatten().bincount(minlength=len(OPERATIONS) * BINS)
    counts = counts.view(len(OPERATIONS), BINS).double()
    each = counts.sum(1) / (n * DEPTH)
    assert (each * len(OPERATIONS) - 1).abs().max() < 0.05, "operations are drawn uniformly"
    return counts / counts.sum(1, keepdim=True)


def test_at_first_strengths_are_drawn_uniformly():
    torch.manual_seed(0)
    assert (drawn_shares(CTAugment()) * BINS - 1).abs().max() < 0.2


def test_strengths_are_drawn_by_weight_above_the_threshold():
    torch.manual_seed(0)
    cta = CTAugment(threshold=0.8)
    cta.weights.copy_(0.4 + 0.6 * torch.rand_like(cta.weights))
    cta.weights[4] = 0.2  # equal weights are uniform, however low
    cta.weights[5] = torch.arange(1.0, 18.0) / 100
    expected = []
    for row in cta.weights.tolist():
        kept = [weight if weight >= 0.8 * max(row) else 0.0 for weight in row]
        expected.append([weight / sum(kept) for weight in kept])
    expected = torch.tensor(expected, dtype=torch.float64)
    shares = drawn_shares(cta)
    assert torch.equal(shares > 0, expected > 0)
    assert 0 < (expected == 0).double().mean() < 1
    assert (shares - expected).abs().max() < 0.015
    assert (shares[5, :13] == 0).all()  # 13 of 17 is below 0.8


def test_probes_are_drawn_uniformly_for_any_weights():
    torch.manual_seed(0)
    cta = CTAugment()
    cta.weights.copy_(torch.rand_like(cta.weights))
    assert (drawn_shares(cta, probe=True) * BINS - 1).abs().max() < 0.2
    images = torch.zeros(30_000, 3, 1, 1).expand(-1, -1, 6, 6)
    _, drawn = cta.probe(images)
    assert (drawn.bin.flatten().bincount(minlength=BINS) * BINS / 60_000 - 1).abs().max() < 0.1


@pytest.mark.parametrize("weight", [0.0, 1e-30])
def test_zero_weights_give_finite_images(photographs, weight):
    cta = CTAugment()
    cta.weights.fill_(weight)
    assert cta.chances().isfinite().all()
    assert cta(photographs(16).float()).isfinite().all()


def test_strengths_with_wrong_predictions_are_dropped():
    """The simulated network is right if the image is not too dark."""
    torch.manual_seed(0)
    cta = CTAugment()
    images = torch.full((256, 3, 8, 8), 200.0)
    for _ in range(300):
        views, drawn = cta.probe(images)
        cta.push(drawn.kind, drawn.bin, (views.mean((1, 2, 3)) > 100).float())
    used = dict(zip(OPERATIONS, (cta.chances() > 0).tolist(), strict=True))
    assert used["brightness"][-8:] == [True] * 8  # 100 is half of 200
    assert not any(used["brightness"][:6])
    assert all(used["rotate"])
    assert all(used["identity"])


def test_the_weights_are_the_whole_state():
    cta = CTAugment()
    assert list(cta.state_dict()) == ["weights"]
    assert not list(cta.parameters())
    place = cta.weights.data_ptr()
    cta.push(torch.zeros(2, 2).long(), torch.zeros(2, 2).long(), torch.zeros(2))
    assert cta.weights.data_ptr() == place, "written in place"


def everything(cta, images):
    views, (kind, bin, _) = cta.probe(images)
    return cta(images), views, kind, bin


def test_it_compiles_to_one_graph(photographs):
    torch.compiler.reset()
    cta, images = CTAugment(), photographs(16).float()
    cta.weights.copy_(torch.rand_like(cta.weights))
    compiled = torch.compile(everything, fullgraph=True, backend="aot_eager")
    torch.manual_seed(0)
    expected = everything(cta, images)
    torch.manual_seed(0)
    for ours, theirs in zip(compiled(cta, images), expected, strict=True):
        assert (ours - theirs).abs().max() < 1e-3


@pytest.mark.cuda
def test_it_can_be_captured_in_a_cuda_graph(photographs):
    """Each replay of the graph draws new random numbers and updates the weights."""
    cta, images = CTAugment().cuda(), photographs(32).float().cuda()

    def step():
        views, (kind, bin, _) = cta.probe(images)
        cta.push(kind, bin, views.mean((1, 2, 3)) / 255)
        return cta(images)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        views = step()
    graph.replay()
    once, weights = views.clone(), cta.weights.clone()
    graph.replay()
    assert once.isfinite().all()
    assert not torch.equal(once, views)
    assert not torch.equal(weights, cta.weights)


@pytest.mark.cuda
def test_the_gpu_gives_the_same_images(photographs):
    torch.manual_seed(0)
    images = photographs(32).float()
    drawn = ctaugment.sample(images, torch.ones(len(OPERATIONS), BINS))
    there = ctaugment.augment(images.cuda(), Drawn(*(column.cuda() for column in drawn)))
    difference = (there.cpu() - ctaugment.augment(images, drawn)).abs()
    assert (difference > 0.05).double().mean() < 1e-3  # a level that is rounded differently
