"""Memory-smoothed pseudo-labels against an explicit softmax."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from comatch import losses
from helpers import error

pytest.importorskip("triton")
from comatch.kernels import smooth


def make(m, k, classes, width, device):
    z, bank_z = (F.normalize(torch.randn(n, width), dim=1) for n in (m, k))
    return (tensor.to(device) for tensor in (z, bank_z, F.softmax(3 * torch.randn(k, classes), 1)))


def truth(z, bank_z, bank_p, t):
    return F.softmax(z.double() @ bank_z.double().T / t, dim=1) @ bank_p.double()


@pytest.mark.parametrize(
    ("m", "k", "classes", "width"),
    [(70, 300, 5, 20), (64, 64, 10, 64), (1, 1, 2, 4), (5, 17, 100, 128), (130, 65, 128, 3)],
)
@pytest.mark.parametrize("programs", [1, 264])
def test_neighbours(device, monkeypatch, m, k, classes, width, programs):
    """With the bank in one part or divided among as many programs as possible."""
    monkeypatch.setattr(smooth, "PROGRAMS", programs)
    z, bank_z, bank_p = make(m, k, classes, width, device)
    for t in (0.1, 1.0):
        q = smooth.neighbours(z, bank_z, bank_p, t)
        assert error(q, truth(z, bank_z, bank_p, t)) < 5e-5


def test_queries_need_not_be_contiguous(device):
    z, bank_z, bank_p = make(20, 30, 5, 16, device)
    scattered = z.T.contiguous().T
    assert torch.equal(
        smooth.neighbours(scattered, bank_z, bank_p, 0.2), smooth.neighbours(z, bank_z, bank_p, 0.2)
    )


def test_opposite_embeddings_at_the_lowest_temperature(device):
    """The smallest possible affinities do not underflow."""
    z, _, bank_p = make(20, 20, 5, 16, device)
    bank_z = -z[:1].repeat(20, 1)
    q = smooth.neighbours(z[:1], bank_z, bank_p, smooth.MIN_TEMPERATURE)
    assert error(q, bank_p.mean(0, keepdim=True)) < 1e-5


def test_an_empty_bank_gives_finite_values(device):
    """All rows of an empty bank are zero."""
    z, _, _ = make(3, 1, 5, 16, device)
    bank_z, bank_p = torch.zeros(40, 16, device=device), torch.zeros(40, 5, device=device)
    assert torch.equal(
        smooth.neighbours(z, bank_z, bank_p, smooth.MIN_TEMPERATURE),
        torch.zeros(3, 5, device=device),
    )


def test_fits():
    def z(dtype=torch.float32, requires_grad=False):
        return SimpleNamespace(is_cuda=True, dtype=dtype, requires_grad=requires_grad)

    bank_p = torch.zeros(7, smooth.MAX_CLASSES)
    assert smooth.fits(z(), bank_p, smooth.MIN_TEMPERATURE)
    assert not smooth.fits(z(), bank_p, 0.9 * smooth.MIN_TEMPERATURE)
    assert not smooth.fits(z(), torch.zeros(7, smooth.MAX_CLASSES + 1), 0.2)
    assert not smooth.fits(z(torch.float64), bank_p, 0.2)
    assert not smooth.fits(torch.zeros(3, 5), bank_p, 0.2)
    assert not smooth.fits(z(requires_grad=True), bank_p, 0.2), "it has no backward"
    with torch.no_grad():
        assert smooth.fits(z(requires_grad=True), bank_p, 0.2)


@pytest.mark.cuda
def test_the_loss_uses_it_on_a_gpu(monkeypatch):
    z, bank_z, bank_p = make(448, 2560, 10, 64, "cuda")
    p = F.softmax(torch.randn(448, 10, device="cuda"), dim=1)
    calls = []
    real = smooth.neighbours
    monkeypatch.setattr(smooth, "neighbours", lambda *a: calls.append(a) or real(*a))
    q = losses.memory_smooth(p, z, bank_p, bank_z, 0.9, 0.2)
    assert len(calls) == 1
    assert error(q, 0.9 * p + 0.1 * truth(z, bank_z, bank_p, 0.2)) < 1e-5
