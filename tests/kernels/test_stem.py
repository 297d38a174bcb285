"""The first convolution against PyTorch's."""

import pytest
import torch
import torch.nn.functional as F
from reference import images, sums
from torch.nn.grad import conv2d_weight

from helpers import error

pytest.importorskip("triton")
from comatch.kernels import stem

SHAPES = [(3, 5, 16), (2, 8, 32), (1, 4, 16)]  # images, their size, channels


@pytest.fixture(autouse=True)
def many_blocks(monkeypatch):
    monkeypatch.setattr(stem, "PIXELS", 16)
    monkeypatch.setattr(stem, "PROGRAMS", 3)


@pytest.mark.parametrize(("n", "size", "channels"), SHAPES)
def test_forward(device, n, size, channels):
    x, weight = images(n, 3, size, size, device=device), images(channels, 3, 3, 3).to(device)
    y, parts = stem.forward(x, weight)
    truth = F.conv2d(x, weight, padding=1)
    assert y.dtype == torch.bfloat16
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert error(y, truth) < 1e-2
    assert len(parts) == min(3, -(-n * size**2 // 16))
    assert error(parts.sum(0), sums(truth, truth)) < 1e-5  # of the output before rounding


def test_images_and_weights_are_rounded_as_autocast_does(device):
    x = torch.rand(2, 3, 8, 8, device=device).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(16, 3, 3, 3, device=device).contiguous(memory_format=torch.channels_last)
    y, _ = stem.forward(x, weight)
    assert error(y, F.conv2d(x, weight, padding=1)) < 2e-2


@pytest.mark.parametrize(("n", "size", "channels"), SHAPES)
def test_backward_weight(device, n, size, channels):
    x = images(n, 3, size, size, device=device)
    dy = images(n, channels, size, size, device=device, dtype=torch.bfloat16)
    truth = conv2d_weight(x, (channels, 3, 3, 3), dy.float(), padding=1)
    assert error(stem.backward_weight(dy, x), truth) < 1e-5
