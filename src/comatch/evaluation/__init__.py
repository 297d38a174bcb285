"""Accuracy and calibration of a network, on images whose labels are known."""

from comatch.evaluation import temperature
from comatch.evaluation.accuracy import Scores, features, probabilities, score_part

__all__ = ["Scores", "features", "probabilities", "score_part", "temperature"]
