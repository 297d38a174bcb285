"""A classifier on features that is trained in a moment, and what it says about labels.

It is logistic regression. It serves to choose and to sort pictures while a person labels; the
classifier that `comatch train` makes of the same labels is better.
"""

import warnings
from typing import NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

FOLDS = 5
STRENGTH = 0.1  # inverse of the regularisation, for principal components with a mean square of 1
STEPS = 200
EACH = 2  # labels of a class, at least, for cross-validation
LEAST = 8  # labels for an estimate of the accuracy
SURE = 0.8  # probability from which a prediction contradicts a label


class Checked(NamedTuple):
    """Labels that were predicted by classifiers which did not have them."""

    rows: np.ndarray  # [n] labelled pictures
    predicted: np.ndarray  # [n] classes
    probability: np.ndarray  # [n] of the predicted class
    right: int
    folds: int


def learn(features: np.ndarray, labels: np.ndarray) -> LogisticRegression:
    model = LogisticRegression(C=STRENGTH, max_iter=STEPS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(features, labels)


def predict(features: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """Probabilities [n, C] of all pictures by a classifier of those with a label, not -1."""
    known = labels >= 0
    found = np.zeros((len(features), classes))
    present = np.unique(labels[known])
    if len(present) == 1:
        found[:, present[0]] = 1
    elif len(present):
        found[:, present] = learn(features[known], labels[known]).predict_proba(features)
    return found


def cross_validate(features: np.ndarray, labels: np.ndarray, seed: int = 0) -> Checked | None:
    """Predict each label without it; None if there are too few labels.

    Classes with a single label are left out.
    """
    count = np.bincount(labels[labels >= 0])
    enough = np.flatnonzero(count >= EACH)
    rows = np.flatnonzero(np.isin(labels, enough))
    if len(rows) < LEAST or len(enough) < 2:
        return None
    folds = min(FOLDS, int(count[enough].max()))
    predicted, probability = np.zeros(len(rows), int), np.zeros(len(rows))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # classes with fewer labels than folds
        split = list(
            StratifiedKFold(folds, shuffle=True, random_state=seed).split(rows, labels[rows])
        )
    for train, held in split:
        kept = np.full(len(labels), -1)
        kept[rows[train]] = labels[rows[train]]
        found = predict_some(features, kept, rows[held])
        predicted[held], probability[held] = found
    right = int((predicted == labels[rows]).sum())
    return Checked(rows, predicted, probability, right, folds)


def predict_some(
    features: np.ndarray, labels: np.ndarray, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The predicted classes of some rows, and their probabilities."""
    known = labels >= 0
    if len(np.unique(labels[known])) < 2:
        return np.full(len(rows), labels[known][0]), np.ones(len(rows))
    model = learn(features[known], labels[known])
    found = model.predict_proba(features[rows])
    return model.classes_[found.argmax(1)], found.max(1)


def contradicted(checked: Checked, labels: np.ndarray) -> list[int]:
    """Rows whose label a confident prediction contradicts, the most confident first."""
    wrong = (checked.predicted != labels[checked.rows]) & (checked.probability >= SURE)
    found = np.flatnonzero(wrong)
    return checked.rows[found[np.argsort(-checked.probability[found])]].tolist()
