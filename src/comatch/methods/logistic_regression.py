"""Logistic regression on the features of the labelled images, by scikit-learn.

All views of an image are examples of its class. The regularisation C is chosen by cross-validation
on the labels, with all views of an image in the same fold. With one label a class nothing can be
held out, and the strongest regularisation but one is used.
"""

from dataclasses import dataclass

import numpy as np
from sklearn.linear_model import LogisticRegression as Linear
from sklearn.model_selection import GridSearchCV, StratifiedGroupKFold

from comatch.config import MethodConfig, setting
from comatch.methods.estimator import Estimator
from comatch.types import Examples

STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # C: large values regularise little


class LogisticRegression(Estimator):
    """Logistic regression of scikit-learn on the labelled images: unlabelled ones are not used."""

    @dataclass(frozen=True)
    class Config(MethodConfig):
        method = "logistic_regression"
        folds: int = setting(3, "folds of the cross-validation that chooses C", least=2)

    def estimate(self, examples: Examples) -> Linear:
        return fit(examples, self.config.folds)


def fit(examples: Examples, folds: int) -> Linear:
    images, views, width = examples.x.shape
    features = examples.x.reshape(-1, width).cpu().numpy()
    labels = np.repeat(examples.y.cpu().numpy(), views)
    fewest = np.unique(examples.y.cpu().numpy(), return_counts=True)[1].min()
    if fewest < 2:
        return Linear(C=STRENGTHS[1], max_iter=1000).fit(features, labels)
    search = GridSearchCV(
        Linear(max_iter=1000, tol=1e-3),
        {"C": STRENGTHS},
        scoring="neg_log_loss",  # few labels often give the same accuracy for several C
        cv=StratifiedGroupKFold(min(folds, fewest), shuffle=True, random_state=0),
    )
    return search.fit(features, labels, groups=np.repeat(np.arange(images), views)).best_estimator_
