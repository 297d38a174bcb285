"""Reference implementations of the kernels in plain PyTorch."""

import torch
import torch.nn.functional as F
from torch.nn.grad import conv2d_input, conv2d_weight

SLOPE = 0.1


def images(*shape, device="cpu", dtype=torch.float32):
    """Noise in channels-last memory, exactly representable in bf16."""
    x = torch.randn(shape).bfloat16().to(device, dtype)
    return x.contiguous(memory_format=torch.channels_last)


def affine(x, coef):
    scale, shift = coef[:, :, None, None]
    return x * scale + shift


def activate(x, coef):
    return x if coef is None else F.leaky_relu(affine(x, coef), SLOPE)


def slopes(x, coef):
    return torch.where(affine(x, coef) > 0, 1.0, SLOPE)


def sums(y, x):
    """Sums [2, C] of y and of y x over all pixels."""
    return torch.stack([y.sum((0, 2, 3)), (y * x).sum((0, 2, 3))])


# The three functions of `comatch.kernels.conv`, with complete instead of partial sums.


def conv_forward(x, coef, weight, slope, residual=None):
    y = F.conv2d(activate(x, coef), weight, padding=1)
    y = y if residual is None else y + residual
    return y, sums(y, y)[None]


def conv_backward_input(dy, x, coef, weight, slope):
    dn = slopes(x, coef) * conv2d_input(x.shape, weight, dy, padding=1)
    return dn, sums(dn, x)[None]


def conv_backward_weight(dy, x, coef, slope):
    shape = (dy.shape[1], x.shape[1], 3, 3)
    return conv2d_weight(activate(x, coef), shape, dy, padding=1)
