"""Labels that spread over a graph of neighbours (Zhou et al., 2003; Iscen et al., 2019).

Images that look alike share an edge, and what is known of a few flows along the edges to all
others. Pure functions of tensors: N images with features of width D, C classes. The graph is
sparse and is made some rows at a time, so that no [N, N] matrix is ever there.
"""

import math

import torch
from torch import Tensor


@torch.sparse.check_sparse_tensor_invariants(enable=False)  # said, or PyTorch warns
def neighbour_graph(v: Tensor, k: int, gamma: float, chunk: int = 1024) -> Tensor:
    """Who resembles whom, sparse [N, N]: symmetric, eigenvalues in [-1, 1].

        A_ij = max(v_i . v_j, 0)^gamma   if j is one of the k nearest of i, never i itself
        D^-1/2 (A + A^T) D^-1/2          D: the row sums of A + A^T on the diagonal

    v [N, D] are features of length one; `chunk` rows are compared with all others at a time. There
    are at most N - 1 neighbours, and the row of an image that resembles none is zero.
    """
    n = len(v)
    k = min(k, n - 1)
    nearest, affinities = [], []
    for start in range(0, n, chunk):
        similar = v[start : start + chunk] @ v.T  # [chunk, N]
        similar.diagonal(start).fill_(-math.inf)
        value, place = similar.topk(k, dim=1)
        nearest.append(place)
        affinities.append(value.clamp(min=0) ** gamma)
    here = torch.arange(n, device=v.device).repeat_interleave(k)  # [N k]
    there, a = torch.cat(nearest).flatten(), torch.cat(affinities).flatten()

    both = torch.stack([torch.cat([here, there]), torch.cat([there, here])])  # of A, and of A^T
    w = torch.sparse_coo_tensor(both, torch.cat([a, a]), (n, n), check_invariants=False).coalesce()
    degree = (w @ v.new_ones(n, 1))[:, 0]
    scale = degree.rsqrt().masked_fill(degree <= 0, 0.0)  # [N]
    i, j = w.indices()
    values = w.values() * (scale[i] * scale[j])  # in this order it is symmetric to the last bit
    return torch.sparse_coo_tensor(
        w.indices(), values, (n, n), is_coalesced=True, check_invariants=False
    )


def propagate(graph: Tensor, y: Tensor, alpha: float, iterations: int) -> Tensor:
    """Z = (I - alpha W)^-1 Y [N, C], by so many steps of conjugate gradients.

    y [N, C] has a one where a class is known. Each class is a system of its own, and all are solved
    side by side. A class that nothing is known of stays at zero.
    """
    z, residual, direction = torch.zeros_like(y), y, y
    size = residual.square().sum(0)  # [C]
    for _ in range(iterations):
        image = direction - alpha * (graph @ direction)
        length = _ratio(size, (direction * image).sum(0))
        z = z + length * direction
        residual = residual - length * image
        before, size = size, residual.square().sum(0)
        direction = residual + _ratio(size, before) * direction
    return z


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and zero where nothing is left to divide: that system is solved."""
    return (a / b).masked_fill(b <= 0, 0.0)


def certainty(z: Tensor) -> Tensor:
    """1 - H(z / sum z) / log C [N]: one if all of it is of one class, zero if none is preferred.

    What the solver leaves below zero counts as nothing, and of nothing one is not certain.
    """
    z = z.clamp(min=0)
    total = z.sum(1, keepdim=True)
    share = z / total.masked_fill(total <= 0, 1.0)
    entropy = torch.special.entr(share).sum(1) / math.log(max(2, z.shape[1]))
    return (1 - entropy).clamp(0, 1) * (total[:, 0] > 0)


def class_weights(labels: Tensor, classes: int) -> Tensor:
    """One over the number of images of each class [C], scaled to a mean of one over classes.

    So labels that are shared evenly weigh one on average, and none weighs more than C, however few
    images a class has. A class that no image has weighs nothing and does not count.
    """
    count = torch.bincount(labels, minlength=classes)
    inverse = (1 / count).masked_fill(count == 0, 0.0)
    return inverse / inverse.sum() * (count > 0).sum()
