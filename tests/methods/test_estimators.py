"""Estimators of scikit-learn on cached features: what they learn, and what their runs hold."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier

import comatch
from comatch import evaluation, methods
from comatch.errors import UserError
from comatch.methods import ESTIMATORS, logistic_regression
from comatch.nets import build_encoder
from comatch.nets.frozen import GivenFeatures
from comatch.types import Examples, Task

WIDTH, VIEWS = 6, 4
LINEAR = [name for name, estimator in ESTIMATORS.items() if estimator.linear]


def examples(classes, labels=3, unlabelled=40, seed=0):
    """Classes around points that are far from each other; the classes of `u` in order."""
    torch.manual_seed(seed)
    y = torch.arange(classes).repeat(labels)
    centres = 4 * torch.eye(classes, WIDTH)
    x = centres[y][:, None] + 0.5 * torch.randn(len(y), VIEWS, WIDTH)
    of_u = torch.arange(unlabelled) % classes
    return Examples(x, y, centres[of_u] + 0.5 * torch.randn(unlabelled, WIDTH)), of_u


def fitted(name, data, classes, **settings):
    config = methods.find(name).Config(**settings)
    method = methods.build(config, GivenFeatures(WIDTH), Task(classes, unlabelled=len(data.u)))
    method.fit(data)
    return method


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_classes_that_are_far_apart_are_told_apart(name, classes, labels):
    data, truth = examples(classes, labels)
    p = evaluation.predict(fitted(name, data, classes).evaluated, data.u)
    assert torch.equal(p.argmax(1), truth)
    torch.testing.assert_close(p.sum(1), torch.ones(len(p)))


@pytest.mark.parametrize("classes", [2, 4])
def test_the_network_has_the_probabilities_of_scikit_learn(classes):
    data, _ = examples(classes)
    network = fitted("logistic_regression", data, classes).evaluated
    expected = logistic_regression.fit(data, folds=3).predict_proba(data.u.numpy())
    found = evaluation.predict(network, data.u)
    torch.testing.assert_close(found, torch.from_numpy(expected).float(), rtol=1e-4, atol=1e-5)


def test_label_spreading_is_that_of_scikit_learn():
    data, _ = examples(3)
    unit = torch.nn.functional.normalize(torch.cat([data.x[:, 0], data.u]), dim=1).numpy()
    labels = np.concatenate([data.y.numpy(), np.full(len(data.u), -1)])
    reference = LabelSpreading(kernel="knn", n_neighbors=7, alpha=0.5, max_iter=200)
    expected = reference.fit(unit, labels).predict_proba(unit[len(data.y) :])
    method = fitted("label_spreading", data, 3, neighbours=7, alpha=0.5)
    found = evaluation.predict(method.evaluated, data.u)
    torch.testing.assert_close(found, torch.from_numpy(expected).float(), rtol=1e-4, atol=1e-5)


def test_self_training_is_that_of_scikit_learn_and_learns_from_unlabelled_images():
    data, _ = examples(3, unlabelled=60)
    strength = logistic_regression.fit(data, folds=3).C
    features = np.concatenate([data.x.flatten(0, 1).numpy(), data.u.numpy()])
    labels = np.concatenate([data.y.repeat_interleave(VIEWS).numpy(), np.full(len(data.u), -1)])
    linear = LogisticRegression(C=strength, max_iter=1000, tol=1e-3)
    reference = SelfTrainingClassifier(linear, threshold=0.75).fit(features, labels)
    expected = torch.from_numpy(reference.predict_proba(data.u.numpy())).float()
    found = evaluation.predict(fitted("self_training", data, 3).evaluated, data.u)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    supervised = evaluation.predict(fitted("logistic_regression", data, 3).evaluated, data.u)
    assert not torch.allclose(found, supervised, atol=1e-3)


# ------------------------------------------------------------------------------------- the runs


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    torch.manual_seed(5)
    encoder = build_encoder("wrn-10-1", 8, norm_momentum=1.0)
    encoder(torch.randn(64, 3, 8, 8))
    path = tmp_path_factory.mktemp("weights") / "encoder.pt"
    torch.save(encoder.state_dict(), path)
    return path


SETTINGS = {"image_size": 8, "pad": 1, "net": "wrn-10-1", "frozen": True, "views": 4}


@pytest.mark.slow
@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_run_records_its_accuracy_and_can_predict_if_it_is_linear(name, weights, tmp_path):
    run = comatch.train(
        "digits",
        method=name,
        labels=40,
        init=weights,
        settings=SETTINGS,
        device="cpu",
        progress=False,
        out=tmp_path / "run",
    )
    assert run.summary["method"] == name
    assert run.accuracy > 0.3  # of random features; by chance: 0.1
    images = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    if name in LINEAR:
        assert len(comatch.load(run, device="cpu").predict(images).labels) == 2
    else:
        with pytest.raises(UserError, match=name):
            comatch.load(run, device="cpu")


def test_without_a_frozen_encoder_it_is_an_error(cli):
    code, _, err = cli("train", "digits", "--method", "knn", "--labels", 40)
    assert code == 2
    assert err.count("\n") == 1
    assert "frozen encoder" in err
