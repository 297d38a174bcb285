"""The shortcut: a 1x1 convolution with a stride and an activated or plain input."""

import pytest
import torch
import torch.nn.functional as F
from reference import SLOPE, activate, images, slopes, sums
from torch.nn.grad import conv2d_input, conv2d_weight

from helpers import error

pytest.importorskip("triton")
from comatch.kernels import shortcut

SHAPES = [(3, 16, 32, 6), (2, 32, 64, 8), (1, 16, 16, 4)]  # images, channels in and out, size


@pytest.fixture(autouse=True)
def many_blocks(monkeypatch):
    monkeypatch.setattr(shortcut, "PIXELS", 16)
    monkeypatch.setattr(shortcut, "PROGRAMS", 4)


def make(n, into, out, size, device):
    x, weight = images(n, into, size, size, device=device), torch.randn(out, into, 1, 1)
    return x, weight.to(device), torch.randn(2, into, device=device)


@pytest.mark.parametrize("activated", [False, True])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_forward_and_gradient_of_the_weight(device, tolerance, shape, stride, activated):
    x, weight, coef = make(*shape, device)
    coef = coef if activated else None
    y = shortcut.forward(x, coef, weight, stride, SLOPE)
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert error(y, F.conv2d(activate(x, coef), weight, stride=stride)) < tolerance
    dy = images(*y.shape, device=device)
    truth = conv2d_weight(activate(x, coef), weight.shape, dy, stride=stride)
    assert error(shortcut.backward_weight(dy, x, coef, stride, SLOPE), truth) < tolerance


@pytest.mark.parametrize("shape", SHAPES)
def test_backward_input(device, tolerance, shape):
    """The gradient of the pixels that the forward read, for any stride."""
    x, weight, _ = make(*shape, device)
    dy = images(shape[0], shape[2], shape[3], shape[3], device=device)
    dx = shortcut.backward_input(dy, weight)
    assert dx.is_contiguous(memory_format=torch.channels_last)
    assert error(dx, conv2d_input(x.shape, weight, dy)) < tolerance


@pytest.mark.parametrize("convolved", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_merge(device, tolerance, shape, convolved):
    """The gradient through a shortcut that starts after the activation."""
    n, into, out, size = shape
    x, weight, coef = make(*shape, device)
    d = images(*x.shape, device=device)
    dout = images(n, out if convolved else into, size, size, device=device)
    back = conv2d_input(x.shape, weight, dout) if convolved else dout
    truth = d + slopes(x, coef) * back
    total, parts = shortcut.merge(d, dout, weight if convolved else None, x, coef, SLOPE)
    assert error(total, truth) < tolerance
    assert len(parts) == min(4, -(-n * size**2 // 16))
    assert error(parts.sum(0), sums(truth, x)) < tolerance
