"""Accuracy and calibration of a network, on images whose labels are known."""

from comatch.evaluation import temperature
from comatch.evaluation.accuracy import (
    Evaluation,
    Scores,
    both,
    evaluate,
    features,
    outputs,
    predict,
    probabilities,
)

__all__ = [
    "Evaluation",
    "Scores",
    "both",
    "evaluate",
    "features",
    "outputs",
    "predict",
    "probabilities",
    "temperature",
]
