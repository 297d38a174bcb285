"""The engine gives what the network gives."""

import ctypes
import sys

import numpy as np
import pytest
import torch
from torch import nn

from comatch.nets import build_encoder, signal_stack
from comatch.nets.engine import Engine

pytestmark = pytest.mark.slow
CPU = torch.device("cpu")
MEAN, STD = torch.tensor([0.5, 0.4, 0.3]), torch.tensor([0.2, 0.3, 0.4])


def network(name, size):
    torch.manual_seed(0)
    net = build_encoder(name, size, "standard", norm_momentum=0.5)
    net(torch.randn(16, 3, size, size))  # batch norm has statistics
    return net.eval()


def images(n, size):
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, (n, 3, size, size), np.uint8))


@torch.no_grad()
def expected(net, pixels):
    """Normalised as everywhere, then the network, image by image."""
    x = (pixels.float() / 255 - MEAN[:, None, None]) / STD[:, None, None]
    return torch.cat([net(one[None]) for one in x])


@pytest.mark.parametrize(
    ("name", "size"),
    [("wrn-10-1", 16), ("mobilenetv3_small_050", 64), ("vit_tiny_patch16_224", 32)],
)
def test_features_differ_by_less_than_a_ten_thousandth(name, size):
    net, pixels = network(name, size), images(37, size)
    truth = expected(net, pixels)
    engine = Engine(net, MEAN, STD, size, CPU)
    assert engine.name == "OpenVINO"
    for given in (pixels, pixels.numpy()):
        found = engine(given)
        assert ((found - truth).norm(dim=1) / truth.norm(dim=1)).max() < 1e-4
    for n in (1, 32, 33):
        assert torch.allclose(engine(pixels[:n]), truth[:n], rtol=1e-3, atol=1e-4)


def test_the_network_is_copied():
    net, pixels = network("wrn-10-1", 8), images(3, 8)
    engine = Engine(net, MEAN, STD, 8, CPU)
    before = engine(pixels)
    for parameter in net.parameters():
        nn.init.zeros_(parameter)
    assert torch.equal(engine(pixels), before)
    assert net.training is False


class Undecided(nn.Module):
    """Depends on values, so that it cannot be exported as one graph."""

    def forward(self, x):
        return x.mean((2, 3)) if x.sum() > 0 else x.amax((2, 3))


def test_a_network_that_cannot_be_converted_runs_in_pytorch():
    net, pixels = Undecided(), images(5, 8)
    with pytest.warns(UserWarning, match="PyTorch, which is slower") as said:
        engine = Engine(net, MEAN, STD, 8, CPU)
    assert "\n" not in str(said[0].message)
    assert engine.name == "PyTorch"
    x = (pixels.float() / 255 - MEAN[:, None, None]) / STD[:, None, None]
    assert torch.allclose(engine(pixels), net(x), atol=1e-5)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has this structure")
def test_signals_do_not_use_memory_of_a_library():
    """OpenVINO leaves the thread an alternate signal stack that it frees later."""

    def stack():
        found = signal_stack.Stack()
        ctypes.CDLL(None).sigaltstack(None, ctypes.byref(found))
        return found.sp, found.flags

    before = stack()
    engine = Engine(network("wrn-10-1", 8), MEAN, STD, 8, CPU)
    assert stack() == before
    engine(images(3, 8))
    assert stack() == before


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["mobilenetv3_small_050", "vit_tiny_patch16_224"])
def test_bf16_on_a_gpu_keeps_the_direction_of_features(name):
    gpu = torch.device("cuda")
    net, pixels = network(name, 64), images(300, 64)
    engine = Engine(net, MEAN.to(gpu), STD.to(gpu), 64, gpu)
    cosine = torch.cosine_similarity(engine(pixels), expected(net, pixels))
    assert cosine.min() > 0.99
