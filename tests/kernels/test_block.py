"""A block, the first and the last layers of the network against PyTorch's layers."""

import copy

import pytest
import reference
import torch
import torch.nn.functional as F
from reference import SLOPE, images
from torch import nn

from comatch.nets import wide_resnet
from helpers import error

pytest.importorskip("triton")
from comatch.kernels import block, conv, norm

EPS = 1e-3  # not PyTorch's default, so that ignoring it is detected
KINDS = {  # channels in and out, stride, whether the shortcut starts after the activation
    "first, of the same width": (16, 16, 1, True),
    "first": (16, 32, 1, True),
    "striding": (32, 64, 2, False),
    "plain": (32, 32, 1, False),
}


@pytest.fixture(params=["cuDNN's", "own"])
def convolutions(request, monkeypatch):
    """Which convolutions run: cuDNN's, or the fused ones (here their reference)."""
    if request.param == "own":
        monkeypatch.setattr(conv, "fits", lambda x, w, stride: stride == 1 and conv.made_for(w))
        for name in ("forward", "backward_input", "backward_weight"):
            monkeypatch.setattr(conv, name, getattr(reference, f"conv_{name}"))
    return request.param


def plain_block(kind, device):
    """With norms that are not the identity."""
    into, out, stride, activate = KINDS[kind]
    layers = wide_resnet.Block(into, out, stride, activate).to(device)
    for layer in (layers.norm1, layers.norm2):
        layer.eps = EPS
        nn.init.uniform_(layer.weight, 0.5, 1.5)
        nn.init.normal_(layer.bias)
    return layers.to(memory_format=torch.channels_last)


def fused_block(layers, x):
    settings = block.Settings(layers.conv1.stride[0], layers.activate_shortcut, EPS, SLOPE)
    norm1, norm2 = layers.norm1, layers.norm2
    return block.Block.apply(
        settings, x, norm.moments(x.detach())[1], norm1.weight, norm1.bias, layers.conv1.weight,
        norm2.weight, norm2.bias, layers.conv2.weight,
        None if layers.shortcut is None else layers.shortcut.weight,
    )  # fmt: skip


@pytest.mark.usefixtures("convolutions")
@pytest.mark.parametrize("size", [8, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_block(device, tolerance, kind, size):
    """Output, its sums, the statistics of both norms and every gradient, all in float32."""
    plain = plain_block(kind, device)
    fused = copy.deepcopy(plain)
    x = images(3, KINDS[kind][0], size, size, device=device) + 0.5
    inputs = x.clone().requires_grad_(), x.clone().requires_grad_()
    tolerance *= 10  # several layers deep

    seen = []
    for layer in (plain.norm1, plain.norm2):
        layer.register_forward_hook(lambda _, args, out: seen.append(args[0].detach()))
    truth = plain(inputs[0])
    out, parts, *statistics = fused_block(fused, inputs[1])
    assert error(out, truth) < tolerance
    assert error(parts.sum(0), reference.sums(truth, truth)) < tolerance
    for stats, normed in zip(statistics, seen, strict=True):
        assert error(stats[0], normed.mean((0, 2, 3))) < tolerance
        assert error(stats[1], normed.var((0, 2, 3), correction=0)) < tolerance

    dout = torch.randn(out.shape, device=device)  # not in channels-last memory
    for result in (truth, out):
        (result * dout).sum().backward()
    assert error(inputs[1].grad, inputs[0].grad) < tolerance
    for (name, p), q in zip(plain.named_parameters(), fused.parameters(), strict=True):
        assert error(q.grad, p.grad) < tolerance, name


def test_what_the_backward_needs(device, convolutions):
    """cuDNN needs the activated input; the fused kernels compute it again."""
    x, weight = (images(*s, device=device) for s in ((2, 16, 8, 8), (32, 16, 3, 3)))
    gamma, beta = torch.ones(16, device=device), torch.zeros(16, device=device)
    parts = norm.moments(x)[1]
    for keep in (False, True):
        *_, unit = block._unit(x, parts, gamma, beta, weight, 1, None, keep, block.Settings())
        kept = keep or convolutions == "cuDNN's"
        assert unit.active.shape == (x.shape if kept else (0,))


def test_stem(device):
    x, weight = (images(*s, device=device) for s in ((2, 3, 8, 8), (16, 3, 3, 3)))
    leaf = weight.clone().requires_grad_()
    out, parts = block.Stem.apply(x, leaf)
    truth = F.conv2d(x, weight, padding=1)
    assert error(out, truth) < 1e-2
    assert not parts.requires_grad
    dout = torch.randn(out.shape, device=device).bfloat16()
    out.backward(dout)
    gradient = torch.nn.grad.conv2d_weight(x, weight.shape, dout.float(), padding=1)
    assert error(leaf.grad, gradient) < 1e-5


@pytest.mark.parametrize("size", [6, 1])
def test_features(device, size):
    x = images(5, 64, size, size, device=device) + 0.5
    gamma, beta = torch.rand(64, device=device) + 0.5, torch.randn(64, device=device)
    plain, fused = ([t.clone().requires_grad_() for t in (x, gamma, beta)] for _ in range(2))
    normed = F.batch_norm(plain[0], None, None, *plain[1:], True, 0.1, EPS)
    truth = F.leaky_relu(normed, SLOPE).mean((2, 3))
    settings = block.Settings(eps=EPS, slope=SLOPE)
    features, stats = block.Features.apply(settings, fused[0], norm.moments(x)[1], *fused[1:])
    assert features.dtype == torch.float32
    assert error(features, truth) < 1e-5
    assert error(stats[1], x.var((0, 2, 3), correction=0)) < 1e-5
    weights = torch.randn(truth.shape, device=device)
    for result in (truth, features):
        (result * weights).sum().backward()
    for p, q in zip(plain, fused, strict=True):
        assert error(q.grad, p.grad) < 1e-5


def test_lower(device):
    """All weights in bf16 and in the same memory format; their gradients in float32."""
    weights = [
        images(4, 3, 3, 3, device=device).requires_grad_(),
        torch.full((7,), 1 + 2**-12, device=device, requires_grad=True),
    ]
    lowered = block.Lower.apply(*weights)
    assert {w.dtype for w in lowered} == {torch.bfloat16}
    assert lowered[0].stride() == weights[0].stride()
    assert torch.equal(lowered[0].float(), weights[0])
    assert (lowered[1] == 1).all()
    sum((3 * w.float()).sum() for w in lowered).backward()
    for weight in weights:
        assert weight.grad.dtype == torch.float32
        assert (weight.grad == 3).all()


@pytest.mark.cuda
def test_a_block_in_bf16_is_deterministic():
    """All its kernels add sums in a fixed order."""
    plain = plain_block("first", "cuda")
    x = images(37, 16, 32, 32, device="cuda", dtype=torch.bfloat16)
    results = []
    for _ in range(2):
        layers, leaf = copy.deepcopy(plain), x.clone().requires_grad_()
        out, parts, *statistics = fused_block(layers, leaf)
        out.backward(torch.ones_like(out))
        results.append([out, parts, *statistics, leaf.grad, *(p.grad for p in layers.parameters())])
    for first, again in zip(*results, strict=True):
        assert torch.equal(first, again)
