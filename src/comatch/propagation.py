"""Label propagation on a graph of neighbours (Zhou et al., 2003; Iscen et al., 2019).

Similar images share an edge, and known labels propagate along the edges to all other images. Pure
functions of tensors: N images with features of width D, C classes. The graph is sparse and is
computed in chunks of rows, so no [N, N] matrix is in memory.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

MOST_IN_GRAPH = 10_000  # unlabelled images, where only the answer is needed


@torch.sparse.check_sparse_tensor_invariants(enable=False)  # explicitly, or PyTorch warns
def neighbour_graph(v: Tensor, k: int, gamma: float, chunk: int = 1024) -> Tensor:
    """The nearest-neighbour graph, sparse [N, N]: symmetric, eigenvalues in [-1, 1].

        A_ij = max(v_i . v_j, 0)^gamma   if j is one of the k nearest of i, never i itself
        D^-1/2 (A + A^T) D^-1/2          D: the row sums of A + A^T on the diagonal

    v [N, D] are features of length one; `chunk` rows are compared with all others at a time. k is
    at most N - 1. The row of an image without similar images is zero.
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
    values = w.values() * (scale[i] * scale[j])  # in this order it is exactly symmetric
    return torch.sparse_coo_tensor(
        w.indices(), values, (n, n), is_coalesced=True, check_invariants=False
    )


def propagate(graph: Tensor, y: Tensor, alpha: float, iterations: int) -> Tensor:
    """Z = (I - alpha W)^-1 Y [N, C], by `iterations` steps of conjugate gradients.

    y [N, C] has a one where a class is known. Each class is a separate system; all are solved in
    parallel. A class without known labels stays zero.
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


def spread_labels(
    v_x: Tensor, y: Tensor, v_u: Tensor, classes: int, k: int, alpha: float
) -> Tensor:
    """The share of each class in what labels v_x [X, D], y [X] leave at images v_u [U, D]: [U, C].

    All edges of the graph weigh the same. The graph has at most `MOST_IN_GRAPH` images; others take
    the mean of their neighbours in it.
    """
    step = -(-len(v_u) // MOST_IN_GRAPH) if len(v_u) else 1
    v = torch.cat([v_x, v_u[::step]])
    known = F.one_hot(y, classes).to(v.dtype)
    known = torch.cat([known, known.new_zeros(len(v) - len(y), classes)])
    z = shares(propagate(neighbour_graph(v, k, gamma=0), known, alpha, iterations=20))
    if step == 1:
        return z[len(y) :]
    nearest = [(some @ v.T).topk(min(k, len(v)), dim=1).indices for some in v_u.split(1024)]
    return torch.cat([z[places].mean(1) for places in nearest])


def shares(z: Tensor) -> Tensor:
    """Rows scaled to sum to one. A zero row becomes uniform; negative values count as zero."""
    z = z.clamp(min=0)
    total = z.sum(1, keepdim=True)
    return torch.where(total > 0, z / total.clamp(min=1e-12), 1 / z.shape[1])


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and zero where b is zero: that system is solved."""
    return (a / b).masked_fill(b <= 0, 0.0)


def certainty(z: Tensor) -> Tensor:
    """1 - H(z / sum z) / log C [N]: one if all mass is on one class, zero if it is uniform.

    Negative values, which the solver can leave, count as zero. The certainty of a zero row is zero.
    """
    z = z.clamp(min=0)
    total = z.sum(1, keepdim=True)
    share = z / total.masked_fill(total <= 0, 1.0)
    entropy = torch.special.entr(share).sum(1) / math.log(max(2, z.shape[1]))
    return (1 - entropy).clamp(0, 1) * (total[:, 0] > 0)


def class_weights(labels: Tensor, classes: int) -> Tensor:
    """One over the number of images of each class [C], scaled to a mean of one over classes.

    With balanced labels every weight is one, and no weight exceeds C. A class without images has
    weight zero and is not part of the mean.
    """
    count = torch.bincount(labels, minlength=classes)
    inverse = (1 / count).masked_fill(count == 0, 0.0)
    return inverse / inverse.sum() * (count > 0).sum()
