"""How good a network is: on images whose truth is known, and never to choose anything by test."""

from comatch.evaluation import temperature
from comatch.evaluation.accuracy import Scores, features, probabilities, score_part

__all__ = ["Scores", "features", "probabilities", "score_part", "temperature"]
