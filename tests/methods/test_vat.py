"""VAT against its paper (Miyato et al., 2018, arXiv 1704.03976), image by image and with autograd.

The paper writes LDS(x) for the divergence under the perturbation r_vadv (equations 5 and 6) and
finds r_vadv by power iteration (section 3.3, algorithm 1). Batch norm uses the statistics of the
images that are classified together, here the unlabelled images of the batch.
"""

import copy
import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from comatch import methods
from comatch.methods.vat import unit
from comatch.nets import WideResNet
from comatch.types import Batch, Task

CLASSES, B, MUB = 3, 4, 7


def make(encoder=None, dtype=torch.float64, **settings):
    torch.manual_seed(0)
    config = methods.find("vat").Config(**settings)
    method = methods.build(config, encoder or WideResNet(10, 1), Task(CLASSES)).to(dtype)
    with torch.no_grad():
        method.net.classifier.weight.mul_(10)  # predictions that differ from each other
    return method


def batch(dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    x, u = (torch.randn(n, 3, 8, 8, generator=generator, dtype=dtype) for n in (B, MUB))
    y = torch.randint(CLASSES, (B,), generator=generator)
    return Batch(x, y, (u,), torch.arange(MUB))


def kl(p, q):
    """KL(p || q) of two lists of probabilities."""
    return sum(a * (math.log(a) - torch.log(b)) for a, b in zip(p, q, strict=True))


class Paper:
    """The paper's quantities for one network, of which a copy computes each prediction."""

    def __init__(self, net, u):
        self.net, self.u = net, u
        self.clean = F.softmax(copy.deepcopy(net)(u).logits, dim=1).tolist()  # constant

    def lds(self, r):
        """The mean of KL(p(y | u) || p(y | u + r)) over the images."""
        q = F.softmax(self.net(self.u + r).logits, dim=1)
        return sum(kl(p, row) for p, row in zip(self.clean, q, strict=True)) / len(self.u)

    def direction(self, start, xi, iterations):
        """Algorithm 1: d is replaced by the gradient at xi d, scaled to length one."""
        d = [row / row.norm() for row in start]
        for _ in range(iterations):
            r = torch.stack([xi * row for row in d]).requires_grad_()
            (slope,) = torch.autograd.grad(self.lds(r), r)
            d = [row / row.norm() for row in slope]
        return torch.stack(d)


@pytest.mark.parametrize("iterations", [1, 3])
def test_loss_and_gradient_follow_the_paper(iterations):
    settings = {"epsilon": 2.0, "xi": 0.01, "iterations": iterations}
    method = make(**settings, lambda_u=0.3, lambda_entropy=0.06)
    b = batch()
    torch.manual_seed(3)
    start = torch.randn_like(b.u[0])
    net = copy.deepcopy(method.net)
    direction = Paper(copy.deepcopy(net), b.u[0]).direction(start, 0.01, iterations)

    logits = net(torch.cat([b.x, *b.u])).logits  # the forward pass that all methods have
    p = F.softmax(logits, dim=1)
    loss_x = -sum(torch.log(p[i, c]) for i, c in enumerate(b.y.tolist())) / B
    entropy = -sum(q * torch.log(q) for row in p[B:] for q in row) / MUB
    loss_u = Paper(net, b.u[0]).lds(2 * direction)
    expected = loss_x + 0.3 * loss_u + 0.06 * entropy

    torch.manual_seed(3)
    step = method(b)
    assert step.loss.item() == pytest.approx(expected.item(), rel=1e-7)
    assert step.metrics["loss_u"].item() == pytest.approx(loss_u.item(), rel=1e-6)
    ours = torch.autograd.grad(step.loss, list(method.net.parameters()))
    theirs = torch.autograd.grad(expected, list(net.parameters()))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("compute_dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("training", [True, False])
def test_the_divergence_of_no_perturbation_is_exactly_zero(monkeypatch, compute_dtype, training):
    method, b = make(dtype=torch.float32).train(training), batch(torch.float32)
    method.net.compute_dtype = compute_dtype
    assert method(b).metrics["loss_u"].item() > 0
    monkeypatch.setattr(method, "direction", lambda images, target: torch.zeros_like(images))
    assert method(b).metrics["loss_u"].item() == 0


def directions(method, images, count=2):
    with torch.no_grad():
        target = method.log_probabilities(images)
        return [method.direction(images, target) for _ in range(count)]


def cosines(one, other):
    return F.cosine_similarity(one.flatten(1), other.flatten(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_random_starts_find_different_directions(dtype):
    """The gradient is the Hessian times the start, so a start and its opposite are opposites.

    A gradient with a constant term has one direction for all starts.
    """
    torch.manual_seed(1)
    images = torch.randn(32, 3, 16, 16, dtype=dtype)
    found = directions(make(dtype=dtype), images, 10)
    pairs = [cosines(*pair).mean() for pair in itertools.combinations(found, 2)]
    assert torch.stack(pairs).mean() < 0.3
    assert min(pairs) < 0
    torch.testing.assert_close(found[0].flatten(1).norm(dim=1), torch.ones(32, dtype=dtype))


class Smooth(nn.Module):
    """Small enough for its whole Hessian, and without batch norm: images are independent."""

    num_features = 6

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(12, 6)

    def forward(self, images):
        return torch.tanh(self.layer(images.flatten(1)))


def test_the_direction_approaches_the_dominant_eigenvector():
    """Section 3.3: d converges to the dominant eigenvector of the Hessian of KL at r = 0."""
    torch.manual_seed(2)
    images = torch.randn(5, 3, 2, 2, dtype=torch.float64)
    encoder = Smooth()
    net = make(copy.deepcopy(encoder)).net

    def divergence(r, image, p):
        return kl(p, F.softmax(net((image + r)[None]).logits[0], dim=0))

    dominant = []
    for image in images:
        p = F.softmax(net(image[None]).logits[0], dim=0).tolist()
        zero = torch.zeros_like(image)
        hessian = torch.autograd.functional.hessian(lambda r: divergence(r, image, p), zero)  # noqa: B023
        dominant.append(torch.linalg.eigh(hessian.reshape(12, 12)).eigenvectors[:, -1])

    alike = []
    for iterations in (1, 2, 8, 100):
        method = make(copy.deepcopy(encoder), xi=1e-4, iterations=iterations)
        torch.manual_seed(4)
        (d,) = directions(method, images, 1)
        alike.append(cosines(d, torch.stack(dominant)).abs())
    for fewer, more in itertools.pairwise(alike):
        assert (more > fewer - 1e-6).all()
    assert alike[0].min() < 0.9
    assert alike[-1].min() > 0.999


@pytest.mark.parametrize("size", [1.0, 1e-9, 1e-15])
def test_a_tiny_gradient_has_a_direction_of_length_one(size):
    """The gradient of confident predictions is tiny, above all as a mean over many images."""
    torch.manual_seed(0)
    lengths = unit(size * torch.randn(4, 3, 8, 8)).flatten(1).norm(dim=1)
    torch.testing.assert_close(lengths, torch.ones(4))
    assert torch.equal(unit(torch.zeros(4, 3, 8, 8)), torch.zeros(4, 3, 8, 8))


def test_adversarial_passes_do_not_update_batch_norm():
    method, b = make(), batch()
    alone = copy.deepcopy(method.net)
    alone(torch.cat([b.x, *b.u]))
    method(b)
    for name, value in method.net.named_buffers():
        assert torch.equal(value, dict(alone.named_buffers())[name]), name


def test_in_bf16_the_direction_is_that_of_float32():
    torch.manual_seed(1)
    images, found = torch.randn(8, 3, 16, 16), []
    method = make(dtype=torch.float32)
    for method.net.compute_dtype in (None, torch.bfloat16):
        torch.manual_seed(5)
        found += directions(method, images, 1)
    assert cosines(*found).min() > 0.999


@pytest.mark.parametrize(("method", "tf32"), [("vat", False), ("fixmatch", True)])
def test_float32_is_not_rounded_to_tf32(build_run, monkeypatch, method, tf32):
    """On a GPU, convolutions of float32 are TF32 by default, which changes the direction."""
    run = build_run(method=method, labels=40)
    allowed = []
    monkeypatch.setattr(run.step, "run", lambda: allowed.append(torch.backends.cudnn.allow_tf32))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    run.step(0)
    assert allowed == [tf32]
    assert torch.backends.cudnn.allow_tf32
