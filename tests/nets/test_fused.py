"""The fused wide ResNet against PyTorch's layers: output, gradients, running statistics."""

import copy
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from comatch.nets import WideResNet, fused
from helpers import error

pytestmark = pytest.mark.slow

LAST = torch.channels_last


@pytest.fixture(autouse=True)
def exact(monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture
def kernels():
    return pytest.importorskip("comatch.kernels.block", reason="needs Triton")


@pytest.fixture
def precise(kernels, monkeypatch):
    """The fused network without rounding to bf16, so that small errors are visible."""

    def stem(x, weight):
        return kernels.norm.moments(F.conv2d(x, weight, padding=1))

    def cast(tensors, dtype):
        return tuple(tensor.clone() for tensor in tensors)

    monkeypatch.setattr(kernels.stem, "forward", stem)
    monkeypatch.setattr(kernels, "_cast", cast)


def network(name, device="cpu"):
    """With norms that are not the identity, one of them with a low momentum."""
    net = WideResNet(*map(int, name.split("-")[1:])).to(device)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.02
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.3)
    return net.to(memory_format=LAST).train()


def images(n, size, device):
    """Images that are exactly representable in bf16."""
    x = torch.randn(n, 3, size, size).bfloat16().float()
    return x.to(device).contiguous(memory_format=LAST)


def train(net, forward, x, times=1):
    """A forward and a backward, several times."""
    weights = torch.randn(len(x), net.num_features, generator=torch.Generator().manual_seed(1))
    for _ in range(times):
        net.zero_grad()
        out = forward(x)
        (out.float() * weights.to(x.device)).sum().backward()
    return out


def gradients(net):
    return {name: p.grad for name, p in net.named_parameters()}


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU the kernels are made for bf16")
@pytest.mark.usefixtures("precise")
@pytest.mark.parametrize(("name", "size"), [("wrn-10-1", 16), ("wrn-10-2", 8), ("wrn-16-1", 4)])
def test_same_function_in_float32(name, size):
    """The first block of a narrow network has an activated identity as shortcut."""
    tolerance = 1e-4
    plain = network(name)
    quick = copy.deepcopy(plain)
    x = images(5, size, "cpu")
    times = 2 if size == 4 else 1
    truth = train(plain, plain, x, times)
    out = train(quick, lambda x: fused.forward(quick, x), x, times)
    assert error(out, truth) < tolerance
    true = gradients(plain)
    for parameter, gradient in gradients(quick).items():
        assert error(gradient, true[parameter]) < tolerance, parameter
    for (buffer, kept), expected in zip(quick.named_buffers(), plain.buffers(), strict=True):
        assert error(kept, expected) < tolerance, buffer
    assert quick.norm.num_batches_tracked == times


def in_bf16(net, device):
    def forward(x):
        with torch.autocast(device, torch.bfloat16):
            return net(x)

    return forward


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", ["wrn-10-1", "wrn-10-2"])
def test_as_precise_as_autocast(device, name):
    """Both networks differ from float32 by about the same rounding error."""
    true = network(name, device)
    plain, quick = copy.deepcopy(true), copy.deepcopy(true)
    plain.fused = False
    x = images(16, 8, device)
    truth = train(true, true, x)
    rough = train(plain, in_bf16(plain, device), x)
    out = train(quick, lambda x: fused.forward(quick, x), x)
    assert out.dtype == torch.float32
    assert error(out, truth) < 2 * error(rough, truth) + 0.01
    wanted, rough = gradients(true), gradients(plain)
    for parameter, gradient in gradients(quick).items():
        limit = 2 * error(rough[parameter], wanted[parameter]) + 0.04
        assert error(gradient, wanted[parameter]) < limit, parameter
    for (buffer, kept), expected in zip(quick.named_buffers(), true.buffers(), strict=True):
        assert error(kept, expected) < 0.02, buffer


@pytest.mark.usefixtures("kernels")
def test_weights_in_contiguous_memory(device):
    net = network("wrn-10-1", device)
    usual = copy.deepcopy(net).to(memory_format=torch.contiguous_format)
    x = images(3, 8, device)
    assert error(fused.forward(usual, x), fused.forward(net, x)) < 1e-5


@pytest.fixture
def on_a_gpu(monkeypatch):
    """Images of a given shape that claim to be on a GPU, under autocast to bf16."""
    monkeypatch.setattr(fused, "in_bf16", lambda: True)

    def images(height=32, width=32, **claims):
        return SimpleNamespace(
            **{"is_cuda": True, "requires_grad": False, "shape": (4, 3, height, width), **claims}
        )

    return images


@pytest.mark.usefixtures("kernels")
def test_possible(on_a_gpu, monkeypatch):
    net = WideResNet(10, 2).train()
    assert fused.possible(net, on_a_gpu())
    assert fused.possible(net, on_a_gpu(8, 8))
    assert fused.possible(WideResNet(28, 1).train(), on_a_gpu())
    assert not fused.possible(net, torch.zeros(4, 3, 32, 32)), "on a CPU"
    assert not fused.possible(net, on_a_gpu(requires_grad=True)), "there is no gradient of images"
    assert not fused.possible(net, on_a_gpu(32, 16)), "not square"
    assert not fused.possible(net, on_a_gpu(30, 30)), "cannot be halved twice"
    assert not fused.possible(WideResNet(10, 3).train(), on_a_gpu()), "no power of two"
    assert not fused.possible(WideResNet(10, 4).train(), on_a_gpu()), "too wide"
    assert not fused.possible(nn.SyncBatchNorm.convert_sync_batchnorm(net), on_a_gpu())


@pytest.mark.usefixtures("kernels")
def test_possible_only_in_training_with_bf16_and_if_enabled(on_a_gpu, monkeypatch):
    net = WideResNet(10, 1)
    assert fused.possible(net.train(), on_a_gpu())
    assert not fused.possible(net.eval(), on_a_gpu())
    net.train().fused = False
    assert not fused.possible(net, on_a_gpu())
    net.fused = True
    monkeypatch.setattr(fused, "in_bf16", lambda: False)
    assert not fused.possible(net, on_a_gpu())


def test_not_without_triton(on_a_gpu, monkeypatch):
    monkeypatch.setattr(fused.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(fused, "TRITON", False, raising=False)
    assert not fused.possible(WideResNet(10, 1).train(), on_a_gpu())


@pytest.mark.cuda
def test_in_bf16_follows_autocast():
    assert not fused.in_bf16()
    for dtype, expected in ((torch.bfloat16, True), (torch.float16, False)):
        with torch.autocast("cuda", dtype):
            assert fused.in_bf16() is expected
            with torch.autocast("cuda", enabled=False):
                assert not fused.in_bf16()


@pytest.mark.cuda
@pytest.mark.usefixtures("kernels")
def test_wrn_28_2_on_a_gpu(monkeypatch):
    """The paper's network differs from float32 at most as much as PyTorch's bf16 does."""
    true = network("wrn-28-2", "cuda")
    plain, quick = copy.deepcopy(true), copy.deepcopy(true)
    plain.fused = False
    calls = []
    real = fused.forward
    monkeypatch.setattr(fused, "forward", lambda *a: calls.append(a) or real(*a))
    x = images(64, 32, "cuda")
    truth = train(true, true, x)
    rough = train(plain, in_bf16(plain, "cuda"), x)
    assert not calls
    out = train(quick, in_bf16(quick, "cuda"), x)
    assert len(calls) == 1
    assert error(out, truth) < 1.2 * error(rough, truth)
    all_true, all_rough, all_quick = (
        torch.cat([g.flatten() for g in gradients(net).values()]) for net in (true, plain, quick)
    )
    assert error(all_quick, all_true) < 1.2 * error(all_rough, all_true)
    for (buffer, kept), expected in zip(quick.named_buffers(), true.buffers(), strict=True):
        assert error(kept, expected) < 0.02, buffer
