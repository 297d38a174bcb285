"""Temperature scaling: calibrated probabilities from one number.

A network trained on few labels is overconfident on other images. Dividing its log-probabilities by
a temperature T lowers the confidence and leaves every predicted class as it is:

    p_T(y|x) ~ p(y|x)^(1/T),      T = argmin_T  - mean log p_T(label|x),   T >= 1

The temperature must be fitted to labels of images that the network was not trained on.
"""

import torch.nn.functional as F
from torch import Tensor

HIGHEST = 20.0  # all classes are then about equally likely
LEAST = 1e-30  # in place of a probability that was rounded to zero


def soften(p: Tensor, temperature: float) -> Tensor:  # [N, C]
    """p_T of probabilities p [N, C]."""
    if temperature == 1:
        return p
    return F.softmax(p.clamp(min=LEAST).log() / temperature, dim=1)


def fit(p: Tensor, labels: Tensor) -> float:
    """T for probabilities [N, C] of images with these labels [N]; at least 1, at most HIGHEST."""
    logs = p.double().clamp(min=LEAST).log()

    def loss(inverse: float) -> float:
        return F.cross_entropy(logs * inverse, labels).item()

    # Ternary search: the loss is convex in 1/T.
    low, high = 1 / HIGHEST, 1.0
    for _ in range(50):
        third = (high - low) / 3
        if loss(low + third) < loss(high - third):
            high -= third
        else:
            low += third
    return 1 / high
