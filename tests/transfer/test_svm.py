"""All classes at once, and the weights that scikit-learn finds for each."""

import numpy as np
import pytest
import torch
from sklearn.svm import LinearSVC

from comatch.transfer import svm

CLASSES = 4


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def problem(request):
    """Features of length one, and classes that they only nearly tell apart."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(150, 20, generator=generator, dtype=torch.float64).relu()
    x = torch.nn.functional.normalize(x, dim=1)
    noise = torch.randn(150, CLASSES, generator=generator)
    labels = (x @ torch.randn(20, CLASSES, generator=generator).double() + noise / 5).argmax(1)
    y = 2.0 * torch.nn.functional.one_hot(labels, CLASSES) - 1
    return x.to(request.param), y.to(request.param)


def twin(x, y, cost):
    """Of one class, by LIBLINEAR."""
    machine = LinearSVC(C=cost, dual=False, tol=1e-9, max_iter=100_000)
    machine.fit(x.cpu().numpy(), y.cpu().numpy())
    return np.concatenate([machine.coef_[0], machine.intercept_])


@pytest.mark.parametrize("cost", [0.1, 10.0, 1_000.0])
def test_the_weights_are_those_of_scikit_learn(problem, cost):
    x, y = problem
    found = svm.fit(x, y, cost, tolerance=1e-8).cpu().numpy()
    for c in range(CLASSES):
        truth = twin(x, y[:, c], cost)
        np.testing.assert_allclose(found[:, c], truth, atol=1e-4 * np.abs(truth).max())


def test_pictures_of_which_nobody_says_do_not_count(problem):
    x, y = problem
    y = y.clone()
    y[::3, 0] = 0
    found = svm.fit(x, y, 10.0, tolerance=1e-8)[:, 0].cpu().numpy()
    known = y[:, 0] != 0
    truth = twin(x[known], y[known, 0], 10.0)
    np.testing.assert_allclose(found, truth, atol=1e-4 * np.abs(truth).max())


def test_where_it_starts_does_not_matter(problem):
    x, y = problem
    anew = svm.fit(x, y, 100.0, tolerance=1e-8)
    from_nearby = svm.fit(x, y, 100.0, start=svm.fit(x, y, 10.0), tolerance=1e-8)
    assert torch.allclose(anew, from_nearby, atol=1e-4 * anew.abs().max().item())


def test_classes_do_not_disturb_each_other(problem):
    x, y = problem
    alone = torch.cat([svm.fit(x, y[:, [c]], 1.0, tolerance=1e-8) for c in range(CLASSES)], dim=1)
    assert torch.allclose(svm.fit(x, y, 1.0, tolerance=1e-8), alone, atol=1e-6)


def test_decisions_are_the_weighted_sum_and_the_bias(problem):
    x, y = problem
    w = svm.fit(x, y, 1.0)
    assert torch.allclose(svm.decide(x, w), x @ w[:-1] + w[-1])
