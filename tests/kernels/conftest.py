"""Comparisons are in full precision, and of the same numbers every time."""

import pytest
import torch


@pytest.fixture(autouse=True)
def exact(monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture
def tolerance(device):
    """Of products of float32 numbers, which a GPU makes in TF32."""
    return 1e-5 if device == "cpu" else 2e-3
