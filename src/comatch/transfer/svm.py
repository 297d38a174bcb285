"""Linear support vector machines, one a class, all fitted at once.

Each minimises |w|² / 2 + cost Σ max(0, 1 - y w·x)², which is convex and smooth but for its second
derivative: Newton's method with conjugate gradients finds the minimum in some ten rounds. The
classes share every product with x, so 200 of them cost little more than one, on a GPU too. The
answer is scikit-learn's `LinearSVC`, with which it is compared in the tests.

As there, the bias is the weight of a feature that is always 1.
"""

import torch
from torch import Tensor

MOST_ROUNDS = 100
MOST_PRODUCTS = 100  # with the second derivative, in one round


def fit(
    x: Tensor, y: Tensor, cost: float, start: Tensor | None = None, tolerance: float = 1e-4
) -> Tensor:
    """Weights [D + 1, C] for features [n, D] and targets [n, C]: 1 is, -1 is not, 0 does not count.

    `start` may be the weights of a nearby cost. Ends once each class's slope is this small a part
    of what it is at zero.
    """
    x = with_bias(x)
    w = x.new_zeros(x.shape[1], y.shape[1]) if start is None else start
    enough = tolerance * slope(x, y, cost, torch.zeros_like(w)).norm(dim=0)  # [C]
    for _ in range(MOST_ROUNDS):
        g = slope(x, y, cost, w)
        if (g.norm(dim=0) <= enough).all():
            break
        d = newton_direction(x, violated(x @ w, y), cost, g)
        w = w + d * step_length(x, y, cost, w, d, g)
    return w


def decide(x: Tensor, w: Tensor) -> Tensor:  # [n, C]
    """How far on its side of each class's boundary a picture lies."""
    return with_bias(x) @ w


def with_bias(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_ones(len(x), 1)], dim=1)


def violated(s: Tensor, y: Tensor) -> Tensor:  # [n, C]
    """Which pictures lie inside the margin or beyond it, and so count."""
    return ((y * s < 1) & (y != 0)).to(s.dtype)


def slope(x: Tensor, y: Tensor, cost: float, w: Tensor) -> Tensor:  # [D, C]
    s = x @ w
    return w - 2 * cost * x.T @ (violated(s, y) * (y - s))


def newton_direction(x: Tensor, counts: Tensor, cost: float, g: Tensor) -> Tensor:  # [D, C]
    """Solves H d = -g by conjugate gradients, class by class, to a tenth of g."""
    d = torch.zeros_like(g)
    rest, along = -g, -g
    square = rest.square().sum(0)  # [C]
    enough = 0.01 * square
    for _ in range(MOST_PRODUCTS):
        if (square <= enough).all():
            break
        product = along + 2 * cost * x.T @ (counts * (x @ along))
        # A class that is done has nothing left to divide.
        length = (square / (along * product).sum(0)).nan_to_num()
        d, rest = d + length * along, rest - length * product
        before, square = square, rest.square().sum(0)
        along = rest + (square / before).nan_to_num() * along
    return d


def step_length(x: Tensor, y: Tensor, cost: float, w: Tensor, d: Tensor, g: Tensor) -> Tensor:
    """Of each class [C]: 1, or half of it and so on, until the step goes down as it should."""
    s, change = x @ w, x @ d
    promised = (g * d).sum(0)  # [C], negative

    def value(t: Tensor) -> Tensor:  # [C]
        reached = s + t * change
        loss = (violated(reached, y) * (1 - y * reached)).square().sum(0)
        return (w + t * d).square().sum(0) / 2 + cost * loss

    t = torch.ones_like(promised)
    here = value(torch.zeros_like(t))
    for _ in range(30):
        too_far = value(t) > here + 0.01 * t * promised
        if not too_far.any():
            break
        t = torch.where(too_far, t / 2, t)
    return t
