"""Linear support vector machines, one for each class, all fitted at once.

Each minimises |w|² / 2 + cost Σ c max(0, 1 - y w·x)². The weight c of an image is one, or that of
positive images where they count more. The function is convex and smooth except for its second
derivative, so a few rounds of Newton's method with conjugate gradients find the minimum.
The classes share every product with x: 200 of them cost little more than one, on a GPU too. The
reference implementation is scikit-learn's `LinearSVC`.

As there, the bias is the weight of a feature that is always 1.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

MOST_ROUNDS = 100
MOST_PRODUCTS = 200  # with the second derivative, in one round


def fit(
    x: Tensor,
    y: Tensor,
    costs: Sequence[float],
    tolerance: float = 1e-3,
    positive_weight: float = 1.0,
) -> list[Tensor]:
    """For each cost, weights [D + 1, C] for features [n, D] and targets [n, C].

    A target is 1 if the image shows the class, -1 if it does not, and 0 if it does not count. Each
    cost starts from the weights of the previous one, so rising costs are the fastest.
    """
    c = (y != 0).to(x.dtype).masked_fill(y > 0, positive_weight)  # [n, C]
    basis, spread = principal_directions(with_bias(x))
    x = with_bias(x) @ basis  # [n, R]
    w, found = x.new_zeros(x.shape[1], y.shape[1]), []
    for cost in costs:
        w = minimise(x, y, c, cost, spread, w, tolerance)
        found.append(basis @ w)
    return found


def decide(x: Tensor, w: Tensor) -> Tensor:  # [n, C]
    """The signed distance of each image from each class's boundary, times |w|."""
    return with_bias(x) @ w


def with_bias(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_ones(len(x), 1)], dim=1)


def principal_directions(x: Tensor) -> tuple[Tensor, Tensor]:
    """Orthogonal directions [D, R] that span the rows of x [n, D], and the sum of squares in each.

    Weights in other directions would only increase |w|². In these directions the second derivative
    is nearly diagonal, which makes conjugate gradients fast.
    """
    space = torch.linalg.qr(x.T).Q if len(x) < x.shape[1] else None
    inside = x if space is None else x @ space
    spread, turn = torch.linalg.eigh(inside.T @ inside)
    return turn if space is None else space @ turn, spread.clamp(min=0)


def minimise(
    x: Tensor, y: Tensor, c: Tensor, cost: float, spread: Tensor, w: Tensor, tolerance: float
) -> Tensor:  # [R, C]
    """Newton's method, until each class's gradient is at most `tolerance` times its weights.

    The curvature is at least 1, so the weights are then at most that far from the minimum.
    """
    for _ in range(MOST_ROUNDS):
        g = gradient(x, y, c, cost, w)
        if (g.norm(dim=0) <= tolerance * w.norm(dim=0)).all():
            break
        d = newton_direction(x, inside_margin(x @ w, y, c), cost, spread, g)
        w = w + d * step_length(x, y, c, cost, w, d, g)
    return w


def inside_margin(s: Tensor, y: Tensor, c: Tensor) -> Tensor:  # [n, C]
    """The weight c of images inside the margin or beyond it, which have a loss; 0 for others."""
    return c * (y * s < 1)


def gradient(x: Tensor, y: Tensor, c: Tensor, cost: float, w: Tensor) -> Tensor:  # [R, C]
    s = x @ w
    return w - 2 * cost * x.T @ (inside_margin(s, y, c) * (y - s))


def newton_direction(x: Tensor, counts: Tensor, cost: float, spread: Tensor, g: Tensor) -> Tensor:
    """Solve H d = -g for each class by conjugate gradients, to a residual of a tenth of g."""
    # The diagonal of H if the images that count were a random sample: the preconditioner.
    diagonal = 1 + 2 * cost * spread[:, None] * counts.mean(0)  # [R, C]
    d, rest = torch.zeros_like(g), -g
    along = rest / diagonal
    square = (rest * along).sum(0)  # [C]
    enough = 0.1 * g.norm(dim=0)
    for _ in range(MOST_PRODUCTS):
        if (rest.norm(dim=0) <= enough).all():
            break
        product = along + 2 * cost * x.T @ (counts * (x @ along))
        length = (square / (along * product).sum(0)).nan_to_num()  # 0 / 0 in a finished class
        d, rest = d + length * along, rest - length * product
        before, square = square, (rest * rest / diagonal).sum(0)
        along = rest / diagonal + (square / before).nan_to_num() * along
    return d


def step_length(
    x: Tensor, y: Tensor, c: Tensor, cost: float, w: Tensor, d: Tensor, g: Tensor
) -> Tensor:
    """Backtracking for each class [C]: 1, halved until the value decreases enough (Armijo)."""
    s, change = x @ w, x @ d
    promised = (g * d).sum(0)  # [C], negative

    def value(t: Tensor) -> Tensor:  # [C]
        moved = s + t * change
        loss = (inside_margin(moved, y, c) * (1 - y * moved).square()).sum(0)
        return (w + t * d).square().sum(0) / 2 + cost * loss

    t = torch.ones_like(promised)
    start = value(torch.zeros_like(t))
    for _ in range(30):
        too_far = value(t) > start + 0.01 * t * promised
        if not too_far.any():
            break
        t = torch.where(too_far, t / 2, t)
    return t
