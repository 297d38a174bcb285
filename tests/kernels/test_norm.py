"""Batch norm and activation, each kernel against autograd."""

import pytest
import torch
import torch.nn.functional as F
from reference import SLOPE, activate, affine, images, slopes, sums

from helpers import error

pytest.importorskip("triton")
from comatch.kernels import norm

EPS = 1e-5
# Channels that are and are not a power of two; rows that do and do not fill blocks.
SHAPES = [(3, 24, 6, 6), (2, 16, 8, 8), (1, 5, 3, 3), (7, 128, 1, 1)]


@pytest.fixture(autouse=True)
def many_blocks(monkeypatch):
    """Several blocks for each of several programs, in spite of small tensors."""
    monkeypatch.setattr(norm, "TILE", 256)
    monkeypatch.setattr(norm, "PROGRAMS", 3)


def make(shape, device):
    """x, gamma, beta and the gradient after the activation."""
    x, da = (images(*shape, device=device) for _ in range(2))
    gamma, beta = torch.rand(shape[1]) + 0.5, torch.randn(shape[1])
    return x + 0.5, gamma.to(device), beta.to(device), da


def rows(x):
    return x.numel() // x.shape[1]


@pytest.mark.parametrize("shape", SHAPES)
def test_moments(device, shape):
    x, *_ = make(shape, device)
    same, parts = norm.moments(x)
    assert same is x
    assert len(parts) == (1 if shape == (1, 5, 3, 3) else 3)
    assert error(parts.sum(0), sums(x, x)) < 1e-5


@pytest.mark.parametrize("shape", SHAPES)
def test_moments_of_a_sum(device, shape):
    x, _, _, other = make(shape, device)
    total, parts = norm.moments(x, other)
    assert torch.equal(total, x + other)
    assert error(parts.sum(0), sums(total, total)) < 1e-5


@pytest.mark.parametrize("shape", SHAPES)
def test_forward_is_batch_norm_and_activation(device, shape):
    x, gamma, beta, _ = make(shape, device)
    coef, stats = norm.statistics(norm.moments(x)[1], rows(x), gamma, beta, EPS)
    truth = F.batch_norm(x, None, None, gamma, beta, True, 0.1, EPS)
    assert error(affine(x, coef), truth) < 1e-5
    assert error(stats[0], x.mean((0, 2, 3))) < 1e-5
    assert error(stats[1], x.var((0, 2, 3), correction=0)) < 1e-5
    assert error(norm.apply(x, coef, SLOPE), F.leaky_relu(truth, SLOPE)) < 1e-5


def test_variance_of_data_far_from_zero(device):
    """The square of the mean is 900 times the variance."""
    x = (images(4, 16, 16, 16) + 30).to(device)
    one, zero = torch.ones(16, device=device), torch.zeros(16, device=device)
    _, stats = norm.statistics(norm.moments(x)[1], rows(x), one, zero, EPS)
    torch.testing.assert_close(stats[1], x.var((0, 2, 3), correction=0), rtol=1e-3, atol=0)


def test_sums_are_added_in_double_precision(device):
    """1,000 partial sums over 128 rows each, with mean 300 and variance 1, each of them exact."""
    ones = torch.arange(1000.0) % 3 - 1  # the mean of a part is slightly different
    parts = torch.stack([128 * (300 + ones / 128), 128 * (90_001 + 0 * ones)], 1)[:, :, None]
    rows = 128 * 1000
    mean = parts[:, 0].double().sum() / rows
    truth = parts[:, 1].double().sum() / rows - mean**2
    one, zero = torch.ones(1, device=device), torch.zeros(1, device=device)
    _, stats = norm.statistics(parts.to(device), rows, one, zero, EPS)
    assert error(stats[1, 0].cpu(), truth) < 1e-6


def test_variance_of_a_constant_is_not_negative(device):
    x = torch.full((2, 16, 8, 8), 0.1, device=device)
    one, zero = torch.ones(16, device=device), torch.zeros(16, device=device)
    coef, stats = norm.statistics(norm.moments(x)[1], rows(x), one, zero, EPS)
    assert (stats[1] >= 0).all()
    assert coef.isfinite().all()


@pytest.mark.parametrize(
    ("shape", "stride"),
    [
        (shape, stride)
        for shape in SHAPES
        for stride in (None, 1, 2)
        if shape[-1] % (stride or 1) == 0
    ],
)
def test_backward_is_that_of_autograd(device, shape, stride):
    """With a shortcut of stride 1, of stride 2, and without a shortcut."""
    x, gamma, beta, da = make(shape, device)
    leaves = [tensor.clone().requires_grad_() for tensor in (x, gamma, beta)]
    a = F.leaky_relu(F.batch_norm(leaves[0], None, None, *leaves[1:], True, 0.1, EPS), SLOPE)
    objective = (a * da).sum()
    other = None
    if stride is not None:
        seen = leaves[0][:, :, ::stride, ::stride]
        other = images(*seen.shape, device=device)
        objective = objective + (seen * other).sum()
    dx, dgamma, dbeta = torch.autograd.grad(objective, leaves)

    coef, stats = norm.statistics(norm.moments(x)[1], rows(x), gamma, beta, EPS)
    parts = norm.backward_sums(da, x, coef, SLOPE)
    dn = slopes(x, coef) * da
    assert error(parts.sum(0), sums(dn, x)) < 1e-5
    k, *gradients = norm.coefficients(parts, rows(x), gamma, stats, EPS)
    assert error(gradients[0], dgamma) < 1e-5
    assert error(gradients[1], dbeta) < 1e-5
    assert error(norm.backward_apply(da, x, coef, k, SLOPE, other), dx) < 1e-5
    assert error(norm.backward_apply(dn, x, None, k, SLOPE, other), dx) < 1e-5


def test_low_precision_in_and_out(device):
    """Tensors in bf16 are summed and multiplied in float32, and rounded once."""
    x, gamma, beta, da = (t.bfloat16() if t.dim() == 4 else t for t in make(SHAPES[0], device))
    total, parts = norm.moments(x, da)
    assert total.dtype == torch.bfloat16
    exact = x.float() + da.float()
    assert error(parts.sum(0), sums(exact, exact)) < 1e-5
    coef, stats = norm.statistics(parts, rows(x), gamma, beta, EPS)
    a = norm.apply(x, coef, SLOPE)
    assert a.dtype == torch.bfloat16
    assert error(a, activate(x.float(), coef)) < 1e-2
    parts = norm.backward_sums(da, x, coef, SLOPE)
    dn = slopes(x.float(), coef) * da.float()
    assert error(parts.sum(0), sums(dn, x.float())) < 1e-5
    k, *_ = norm.coefficients(parts, rows(x), gamma, stats, EPS)
    dx = norm.backward_apply(da, x, coef, k, SLOPE)
    assert dx.dtype == torch.bfloat16
    k1, k2, k3 = k[:, :, None, None]
    assert error(dx, k1 * dn + k2 * x.float() + k3) < 1e-2


@pytest.mark.parametrize("shape", [(1, 5), (64, 32), (70, 3, 7, 5)])
def test_add_parts(device, shape):
    parts = torch.randn(shape, device=device)
    total = norm.add_parts(parts)
    assert error(total, parts.double().sum(0)) < 1e-6


@pytest.mark.parametrize("shape", [(3, 24, 6, 6), (2, 128, 5, 5), (4, 64, 1, 1)])
def test_spread_is_the_gradient_of_the_mean(device, shape):
    like = images(*shape, device=device)
    values = torch.randn(shape[1], shape[0], device=device).T  # not contiguous
    truth = (values / (shape[2] * shape[3]))[:, :, None, None].expand(shape)
    assert error(norm.spread(values, like), truth) < 1e-6
