"""Self-training (Yarowsky, 1995) with logistic regression, by scikit-learn.

Logistic regression is fitted to the labels. Unlabelled images that it is confident of get the class
that it predicts, and it is fitted again, until no image is left to add. C is the one that
cross-validation on the labels chooses.
"""

from dataclasses import dataclass

import numpy as np
from sklearn.linear_model import LogisticRegression as Linear
from sklearn.semi_supervised import SelfTrainingClassifier

from comatch.config import MethodConfig, setting
from comatch.methods import logistic_regression
from comatch.methods.estimator import Estimator
from comatch.types import UNLABELLED, Examples


class SelfTraining(Estimator):
    """Logistic regression of scikit-learn that labels unlabelled images by itself."""

    @dataclass(frozen=True)
    class Config(MethodConfig):
        method = "self_training"
        folds: int = setting(3, "folds of the cross-validation that chooses C", least=2)
        threshold: float = setting(0.75, "confidence that adds an image", above=0, below=1)

    def estimate(self, examples: Examples) -> Linear:
        return fit(examples, self.config.folds, self.config.threshold)


def fit(examples: Examples, folds: int, threshold: float) -> Linear:
    strength = logistic_regression.fit(examples, folds).C
    labels = examples.y.repeat_interleave(examples.x.shape[1]).cpu().numpy()
    features = np.concatenate([examples.x.flatten(0, 1).cpu(), examples.u.cpu()])
    unknown = np.full(len(examples.u), UNLABELLED)
    linear = Linear(C=strength, max_iter=1000, tol=1e-3)
    training = SelfTrainingClassifier(linear, threshold=threshold)
    return training.fit(features, np.concatenate([labels, unknown])).estimator_
