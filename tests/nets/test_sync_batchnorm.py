"""Synchronised batch norm in one process. tests/training tests it with several ranks."""

import copy

import pytest
import torch
from torch import nn

from comatch import distributed
from comatch.errors import UserError
from comatch.nets.sync_batchnorm import SyncBatchNorm, sync_batchnorm


@pytest.fixture
def several(monkeypatch):
    """Fake ranks with the same data, so the mean over ranks is that of one."""
    monkeypatch.setattr(distributed, "_world", 2)
    monkeypatch.setattr(distributed, "gather", lambda rows: torch.cat([rows, rows]))


def both_norms(norm):
    other = copy.deepcopy(norm)
    sync_batchnorm(other)
    return norm, other


def norms():
    from timm.layers import BatchNormAct2d

    yield nn.BatchNorm2d(3)
    yield nn.BatchNorm2d(3, momentum=None, eps=1e-3)
    yield nn.BatchNorm2d(3, affine=False)
    yield nn.BatchNorm2d(3, track_running_stats=False)
    yield BatchNormAct2d(3, act_layer=nn.SiLU)


def test_it_equals_batch_norm(several):
    for plain, other in map(both_norms, norms()):
        assert isinstance(other, SyncBatchNorm)
        assert plain.state_dict().keys() == other.state_dict().keys()
        for norm in (plain, other):
            norm.double()
        for seed in range(3):
            torch.manual_seed(seed)
            x = 3 * torch.randn(4, 3, 5, 5, dtype=torch.float64) + 2
            # Unbiased variances count the values of all ranks, so the batch occurs twice here.
            torch.testing.assert_close(
                plain(torch.cat([x, x]))[:4], other(x), rtol=1e-10, atol=1e-12
            )
        for name, value in plain.state_dict().items():
            torch.testing.assert_close(value, other.state_dict()[name], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(plain.eval()(x), other.eval()(x), rtol=1e-10, atol=1e-12)


def test_the_output_has_the_precision_of_the_input(several):
    plain, other = both_norms(nn.BatchNorm2d(3))
    x = torch.randn(8, 3, 4, 4).to(torch.bfloat16)
    assert other(x).dtype == torch.bfloat16
    torch.testing.assert_close(plain(torch.cat([x, x]))[:8], other(x), rtol=2e-2, atol=2e-2)


def test_an_unknown_norm_is_an_error(several):
    class Mine(nn.BatchNorm2d):
        pass

    with pytest.raises(UserError, match="0 is a Mine, which several processes cannot share"):
        sync_batchnorm(nn.Sequential(Mine(3)))
