"""Comparisons in full precision, with the same random values in every run."""

import pytest
import torch


@pytest.fixture(autouse=True)
def exact(monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture
def tolerance(device):
    """For products of float32 values, which a GPU computes in TF32."""
    return 1e-5 if device == "cpu" else 2e-3
