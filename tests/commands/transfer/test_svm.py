"""All classes at once, and the weights that scikit-learn finds for each."""

import numpy as np
import pytest
import torch
from sklearn.svm import LinearSVC

from comatch.commands.transfer import svm

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


def fit(x, y, cost, tolerance=1e-6):
    return svm.fit(x, y, [cost], tolerance)[0]


def assert_close(found, truth):
    np.testing.assert_allclose(found.cpu().numpy(), truth, atol=1e-4 * np.abs(truth).max())


@pytest.mark.parametrize("images", [150, 12])  # fewer of them than features, too
@pytest.mark.parametrize("cost", [0.1, 10.0, 1_000.0])
def test_the_weights_are_those_of_scikit_learn(problem, cost, images):
    x, y = (part[:images] for part in problem)
    found = fit(x, y, cost)
    for c in (c for c in range(CLASSES) if (y[:, c] > 0).any()):
        assert_close(found[:, c], twin(x, y[:, c], cost))


@pytest.mark.parametrize("cost", [0.1, 10.0, 1_000.0])
def test_it_ends_as_near_to_the_minimum_as_it_says(problem, cost):
    """From zero, and from a cost before: what is near enough for that one is not for this."""
    truth = fit(*problem, cost, tolerance=1e-9)
    for costs in ([cost], [cost / 10, cost]):
        found = svm.fit(*problem, costs, tolerance=1e-3)[-1]
        assert ((found - truth).norm(dim=0) <= 1e-3 * found.norm(dim=0)).all()


def test_costs_are_answered_in_order(problem):
    weak, strong = svm.fit(*problem, [0.1, 100.0], tolerance=1e-6)
    assert torch.allclose(weak, fit(*problem, 0.1), atol=1e-5)
    assert torch.allclose(strong, fit(*problem, 100.0), atol=1e-3)


def test_images_of_which_nobody_says_do_not_count(problem):
    x, y = problem
    y = y.clone()
    y[::3, 0] = 0
    known = y[:, 0] != 0
    assert_close(fit(x, y, 10.0)[:, 0], twin(x[known], y[known, 0], 10.0))


def test_classes_do_not_disturb_each_other(problem):
    x, y = problem
    alone = torch.cat([fit(x, y[:, [c]], 1.0) for c in range(CLASSES)], dim=1)
    assert torch.allclose(fit(x, y, 1.0), alone, atol=1e-5)


def test_a_class_that_none_shows_is_no_trouble(problem):
    x, y = problem
    nobody = torch.cat([y, -torch.ones_like(y[:, :1])], dim=1)
    assert torch.allclose(fit(x, nobody, 1.0)[:, :CLASSES], fit(x, y, 1.0), atol=1e-5)
    assert (svm.decide(x, fit(x, nobody, 1.0))[:, -1] < 0).all()


def test_decisions_are_the_weighted_sum_and_the_bias(problem):
    x, y = problem
    w = fit(x, y, 1.0)
    assert torch.allclose(svm.decide(x, w), x @ w[:-1] + w[-1])
