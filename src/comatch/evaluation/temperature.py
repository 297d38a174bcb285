"""How much too sure a classifier is, in one number.

A network that knows its few labels by heart is surer of all else than it should be. Dividing the
logarithms of its probabilities by a temperature T makes it less sure and changes no decision:

    p_T(y|x) ~ p(y|x)^(1/T),      T = argmin_T  - mean log p_T(label|x),   T >= 1

The labels must be of images that the network did not learn from.
"""

import torch.nn.functional as F
from torch import Tensor

HIGHEST = 20.0  # where everything is about as likely
LEAST = 1e-30  # a probability that was rounded to zero is not impossible


def soften(p: Tensor, temperature: float) -> Tensor:  # [N, C]
    """p_T of probabilities p [N, C]."""
    if temperature == 1:
        return p
    return F.softmax(p.clamp(min=LEAST).log() / temperature, dim=1)


def fit(p: Tensor, labels: Tensor) -> float:
    """T for probabilities [N, C] of images with these labels [N]."""
    logs = p.double().clamp(min=LEAST).log()

    def surprise(coldness: float) -> float:
        return F.cross_entropy(logs * coldness, labels).item()

    # It is convex in 1/T, so thirds that do not hold the minimum can be cut off.
    low, high = 1 / HIGHEST, 1.0
    for _ in range(50):
        third = (high - low) / 3
        if surprise(low + third) < surprise(high - third):
            high -= third
        else:
            low += third
    return 1 / high
