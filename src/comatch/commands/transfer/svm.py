"""Linear support vector machines, one a class, all fitted at once.

Each minimises |w|² / 2 + cost Σ max(0, 1 - y w·x)², which is convex and smooth but for its second
derivative: Newton's method with conjugate gradients finds the minimum in a few rounds. The classes
share every product with x, so 200 of them cost little more than one, on a GPU too. The answer is
scikit-learn's `LinearSVC`, with which it is compared in the tests.

As there, the bias is the weight of a feature that is always 1.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

MOST_ROUNDS = 100
MOST_PRODUCTS = 200  # with the second derivative, in one round


def fit(x: Tensor, y: Tensor, costs: Sequence[float], tolerance: float = 1e-3) -> list[Tensor]:
    """For each cost, weights [D + 1, C] for features [n, D] and targets [n, C].

    A target is 1 if the image shows the class, -1 if it does not, 0 if it does not count. Each
    cost begins with the weights of the one before, so they had better rise.
    """
    basis, spread = main_directions(with_bias(x))
    x = with_bias(x) @ basis  # [n, R]
    w, found = x.new_zeros(x.shape[1], y.shape[1]), []
    for cost in costs:
        w = descend(x, y, cost, spread, w, tolerance)
        found.append(basis @ w)
    return found


def decide(x: Tensor, w: Tensor) -> Tensor:  # [n, C]
    """How far on its side of each class's boundary an image lies."""
    return with_bias(x) @ w


def with_bias(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_ones(len(x), 1)], dim=1)


def main_directions(x: Tensor) -> tuple[Tensor, Tensor]:
    """Orthogonal directions [D, R] that hold all rows of x [n, D], and the sum of squares in each.

    Weights in other directions would only add to |w|². In these, the second derivative is nearly
    diagonal, which is what makes conjugate gradients fast.
    """
    space = torch.linalg.qr(x.T).Q if len(x) < x.shape[1] else None
    inside = x if space is None else x @ space
    spread, turn = torch.linalg.eigh(inside.T @ inside)
    return turn if space is None else space @ turn, spread.clamp(min=0)


def descend(
    x: Tensor, y: Tensor, cost: float, spread: Tensor, w: Tensor, tolerance: float
) -> Tensor:  # [R, C]
    """Goes on until the slope of each class is `tolerance` of its weights or less.

    As the curvature is 1 at least, they are then no farther than that from the minimum.
    """
    for _ in range(MOST_ROUNDS):
        g = slope(x, y, cost, w)
        if (g.norm(dim=0) <= tolerance * w.norm(dim=0)).all():
            break
        d = newton_direction(x, violated(x @ w, y), cost, spread, g)
        w = w + d * step_length(x, y, cost, w, d, g)
    return w


def violated(s: Tensor, y: Tensor) -> Tensor:  # [n, C]
    """Which images lie inside the margin or beyond it, and so count."""
    return ((y * s < 1) & (y != 0)).to(s.dtype)


def slope(x: Tensor, y: Tensor, cost: float, w: Tensor) -> Tensor:  # [R, C]
    s = x @ w
    return w - 2 * cost * x.T @ (violated(s, y) * (y - s))


def newton_direction(x: Tensor, counts: Tensor, cost: float, spread: Tensor, g: Tensor) -> Tensor:
    """Solves H d = -g by conjugate gradients, class by class, to a tenth of g."""
    diagonal = 1 + 2 * cost * spread[:, None] * counts.mean(0)  # [R, C], of H if chance chose
    d, rest = torch.zeros_like(g), -g
    along = rest / diagonal
    square = (rest * along).sum(0)  # [C]
    enough = 0.1 * g.norm(dim=0)
    for _ in range(MOST_PRODUCTS):
        if (rest.norm(dim=0) <= enough).all():
            break
        product = along + 2 * cost * x.T @ (counts * (x @ along))
        # A class that is done has nothing left to divide.
        length = (square / (along * product).sum(0)).nan_to_num()
        d, rest = d + length * along, rest - length * product
        before, square = square, (rest * rest / diagonal).sum(0)
        along = rest / diagonal + (square / before).nan_to_num() * along
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
