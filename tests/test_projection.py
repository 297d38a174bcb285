"""The projection of features, beside principal components from NumPy's decomposition."""

import numpy as np
import pytest
import torch

from comatch.projection import Projection


def features(n=200, width=12, seed=0):
    generator = torch.Generator().manual_seed(seed)
    basis = torch.randn(width, width, generator=generator) * torch.linspace(2, 0.1, width)[:, None]
    return 1 + torch.randn(n, width, generator=generator) @ basis


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.mark.parametrize("components", [1, 5, 12])
def test_it_agrees_with_a_singular_value_decomposition(components):
    plain, flipped = features(seed=0), features(seed=1)
    projection = Projection(12, components)
    projection.fit(plain, flipped)
    a, b = unit(plain.numpy().astype(float)), unit(flipped.numpy().astype(float))
    both = np.concatenate([a, b]) - a.mean(0)
    _, singular, rows = np.linalg.svd(both, full_matrices=False)
    variances = singular[:components] ** 2 / len(both)
    expected = (a - a.mean(0)) @ rows[:components].T / np.sqrt(variances.mean())
    found = projection(plain).numpy()
    assert np.abs(np.abs(found) - np.abs(expected)).max() < 1e-3  # signs are arbitrary
    assert projection(torch.cat([plain, flipped])).square().mean().item() == pytest.approx(1, 1e-3)


def test_the_length_of_features_does_not_matter():
    plain, flipped = features(seed=0), features(seed=1)
    one, other = Projection(12, 4), Projection(12, 4)
    one.fit(plain, flipped)
    other.fit(100 * plain, 0.01 * flipped)
    assert torch.allclose(one(plain), other(7 * plain), atol=1e-4)


def test_features_that_are_all_equal_give_numbers():
    projection = Projection(12, 4)
    projection.fit(torch.ones(5, 12), torch.ones(5, 12))
    assert projection(torch.ones(3, 12)).isfinite().all()
    assert projection(torch.zeros(3, 12)).isfinite().all()
