"""All classes are fitted at once, and each has the weights that scikit-learn gives it."""

import numpy as np
import pytest
import torch
from sklearn.svm import LinearSVC

from comatch.commands.transfer import svm

CLASSES = 4


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def problem(request):
    """Features of length one, and classes that are not quite separable."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(150, 20, generator=generator, dtype=torch.float64).relu()
    x = torch.nn.functional.normalize(x, dim=1)
    noise = torch.randn(150, CLASSES, generator=generator)
    labels = (x @ torch.randn(20, CLASSES, generator=generator).double() + noise / 5).argmax(1)
    y = 2.0 * torch.nn.functional.one_hot(labels, CLASSES) - 1
    return x.to(request.param), y.to(request.param)


def reference(x, y, cost, class_weight=None):
    """The weights of one class by LIBLINEAR."""
    options = {"dual": False, "tol": 1e-9, "max_iter": 100_000}
    machine = LinearSVC(C=cost, class_weight=class_weight, **options)
    machine.fit(x.cpu().numpy(), y.cpu().numpy())
    return np.concatenate([machine.coef_[0], machine.intercept_])


def fit(x, y, cost, tolerance=1e-6):
    return svm.fit(x, y, [cost], tolerance)[0]


def assert_close(found, truth):
    np.testing.assert_allclose(found.cpu().numpy(), truth, atol=1e-4 * np.abs(truth).max())


@pytest.mark.parametrize("images", [150, 12])  # more and fewer than features
@pytest.mark.parametrize("cost", [0.1, 10.0, 1_000.0])
def test_the_weights_are_those_of_scikit_learn(problem, cost, images):
    x, y = (part[:images] for part in problem)
    found = fit(x, y, cost)
    for c in (c for c in range(CLASSES) if (y[:, c] > 0).any()):
        assert_close(found[:, c], reference(x, y[:, c], cost))


@pytest.mark.parametrize("cost", [0.1, 100.0])
def test_positive_images_may_count_more(problem, cost):
    x, y = problem
    (found,) = svm.fit(x, y, [cost], 1e-6, positive_weight=2.0)
    for c in range(CLASSES):
        assert_close(found[:, c], reference(x, y[:, c], cost, {1: 2, -1: 1}))


@pytest.mark.parametrize("cost", [0.1, 10.0, 1_000.0])
def test_the_result_is_within_the_tolerance(problem, cost):
    """Starting from zero, and from the result of a smaller cost."""
    truth = fit(*problem, cost, tolerance=1e-9)
    for costs in ([cost], [cost / 10, cost]):
        found = svm.fit(*problem, costs, tolerance=1e-3)[-1]
        assert ((found - truth).norm(dim=0) <= 1e-3 * found.norm(dim=0)).all()


def test_results_are_in_the_order_of_the_costs(problem):
    weak, strong = svm.fit(*problem, [0.1, 100.0], tolerance=1e-6)
    assert torch.allclose(weak, fit(*problem, 0.1), atol=1e-5)
    assert torch.allclose(strong, fit(*problem, 100.0), atol=1e-3)


def test_unknown_targets_do_not_count(problem):
    x, y = problem
    y = y.clone()
    y[::3, 0] = 0
    known = y[:, 0] != 0
    assert_close(fit(x, y, 10.0)[:, 0], reference(x[known], y[known, 0], 10.0))


def test_classes_are_independent(problem):
    x, y = problem
    alone = torch.cat([fit(x, y[:, [c]], 1.0) for c in range(CLASSES)], dim=1)
    assert torch.allclose(fit(x, y, 1.0), alone, atol=1e-5)


def test_a_class_without_images_does_no_harm(problem):
    x, y = problem
    with_empty = torch.cat([y, -torch.ones_like(y[:, :1])], dim=1)
    assert torch.allclose(fit(x, with_empty, 1.0)[:, :CLASSES], fit(x, y, 1.0), atol=1e-5)
    assert (svm.decide(x, fit(x, with_empty, 1.0))[:, -1] < 0).all()


def test_decisions_are_the_weighted_sum_and_the_bias(problem):
    x, y = problem
    w = fit(x, y, 1.0)
    assert torch.allclose(svm.decide(x, w), x @ w[:-1] + w[-1])
