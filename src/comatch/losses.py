"""The paper's equations, as pure functions of tensors.

Letters follow the paper: p is a class probability, q a pseudo-label, z an embedding of length one,
t a temperature, B the labelled and muB the unlabelled images of a step, C classes, K rows of
memory, D the width of an embedding.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def align(p: Tensor, average: Tensor) -> Tensor:
    """Distribution alignment, section 3.2: DA(p) = Normalize(p / average).

    Classes that were predicted too often recently become less likely, so predictions do not
    collapse onto a few classes. `average` [C] is the moving average of p [muB, C].
    """
    scaled = p / average.clamp(min=1e-12)
    return scaled / scaled.sum(1, keepdim=True)


def sharpen(p: Tensor, t: float) -> Tensor:
    """Temperature sharpening (MixMatch: Berthelot et al., 2019): p^(1/t), scaled to sum to one.

    A temperature below 1 lowers the entropy of p.
    """
    powers = p ** (1 / t)
    return powers / powers.sum(1, keepdim=True)


def memory_smooth(
    p: Tensor, z: Tensor, p_bank: Tensor, z_bank: Tensor, alpha: float, t: float
) -> Tensor:
    """Memory-smoothed pseudo-labels, section 3.2.

        a_k = exp(z . z_k / t) / sum_k exp(z . z_k / t)
        q   = alpha p + (1 - alpha) sum_k a_k p_k

    The sum is attention: queries z [muB, D], keys z_bank [K, D], values p_bank [K, C]; so the
    affinities [muB, K] are never stored.
    """
    neighbours = attend(z, z_bank, p_bank, t)
    return alpha * p + (1 - alpha) * neighbours  # [muB, C]


def attend(z: Tensor, z_bank: Tensor, p_bank: Tensor, t: float) -> Tensor:
    if z.is_cuda:
        from comatch.kernels import smooth  # Triton is installed only with CUDA

        if smooth.fits(z, p_bank, t):
            return smooth.neighbours(z, z_bank, p_bank, t)
    return F.scaled_dot_product_attention(
        z[None], z_bank[None].to(z.dtype), p_bank[None].to(z.dtype), scale=1 / t
    )[0]  # [muB, C]


def masked_cross_entropy(logits: Tensor, q: Tensor, confident: Tensor) -> Tensor:
    """Unsupervised classification loss, section 3.1.

        L_u^cls = 1/muB sum_b 1(max q_b >= tau) H(q_b, p(y | strong view of u_b))

    The pseudo-labels are soft, and the mean is over all muB images, confident or not.
    """
    entropy = -(q * F.log_softmax(logits, dim=1)).sum(1)  # [muB]
    return (entropy * confident).mean()


def class_thresholds(overall: Tensor, p: Tensor) -> Tensor:
    """Self-adaptive thresholds, one for each class (FreeMatch: Wang et al., 2023).

        tau_c = p_c / max_c p_c * tau

    `overall` [] is the average confidence and p [C] the frequency of each predicted class. Classes
    that are predicted rarely get a lower threshold.
    """
    return p / p.amax() * overall


def label_graph(q: Tensor, threshold: float) -> Tensor:
    """Pseudo-label graph, section 3.2, each row scaled to sum to one.

    W_bj = 1 if b = j;   q_b . q_j if that is at least the threshold T;   0 otherwise
    """
    similar = q @ q.T  # [muB, muB]
    graph = similar * (similar >= threshold)
    graph = graph.masked_fill(_diagonal(q), 1.0)
    return graph / graph.sum(1, keepdim=True)


def embedding_graph(z: Tensor, z_other: Tensor, t: float, form: str) -> Tensor:
    """Embedding graph, section 3.2: the logarithm of each row scaled to sum to one.

        authors:  W_bj = exp(z_b . z'_j / t)                          as in the authors' code
        paper:    W_bb = exp(z_b . z'_b / t),  W_bj = exp(z_b . z_j / t)      as printed

    z and z_other [muB, D] are the embeddings of the two strong views.
    """
    across = z @ z_other.T
    if form == "paper":
        across = torch.where(_diagonal(z), across, z @ z.T)
    return F.log_softmax(across / t, dim=1)  # [muB, muB]


def graph_cross_entropy(label_graph: Tensor, log_embedding_graph: Tensor) -> Tensor:
    """Contrastive loss, section 3.2: L_u^ctr = 1/muB sum_b H(W^q_b, W^z_b)."""
    return -(label_graph * log_embedding_graph).sum(1).mean()


def queue_contrast(
    z: Tensor,
    q: Tensor,
    keys: Tensor,
    labels: Tensor,
    there: Tensor,
    threshold: float,
    t: float,
    chunk: int = 128,
    first: int = 0,
) -> Tensor:
    """Contrastive loss between a batch and a queue, section 3.3.

        W^q_bj = 1 if j is b's other view;  q_b . q_j if that is at least T;  0 otherwise
        W^z_bj = exp(z_b . z_j / t),      L_u^ctr = 1/muB sum_b H(W^q_b, W^z_b), rows summing to one

    z [muB, D] and q [muB, C] are the batch's. keys [K, D] and labels [K, C] are the queue's; it
    begins with the batch's other views, those of z from row `first` on. `there` [K] says which rows
    of the queue are used. Only z has a gradient, 1/(t muB) (W^z - W^q) keys. It is computed with
    the loss, `chunk` rows at a time, so no [muB, K] matrix is in memory.
    """
    values, gradients = [], []
    with torch.no_grad():
        places = torch.arange(len(keys), device=z.device)
        own_places = places[first : first + len(z)]
        chunks = zip(own_places.split(chunk), z.split(chunk), q.split(chunk), strict=True)
        for own, z_rows, q_rows in chunks:
            similar = q_rows @ labels.T  # [chunk, K]
            graph = similar * ((similar >= threshold) & there)
            graph = graph.masked_fill(own[:, None] == places, 1.0)
            graph = graph / graph.sum(1, keepdim=True)
            scores = (z_rows @ keys.T / t).masked_fill(~there, -1e9)
            log_z = F.log_softmax(scores, dim=1)
            values.append(-(graph * log_z).sum(1))
            gradients.append((log_z.exp() - graph) @ keys)
        value = torch.cat(values).mean()
        gradient = torch.cat(gradients) / (t * len(z))
    return value + ((z - z.detach()) * gradient).sum()  # the value, with that gradient


def _diagonal(rows: Tensor) -> Tensor:  # [n, n] bool
    places = torch.arange(len(rows), device=rows.device)
    return places[:, None] == places[None, :]


def ramp_up(share: Tensor) -> Tensor:
    """The ramp-up of consistency losses: exp(-5 (1 - share)^2) (Laine and Aila, 2017).

    It rises from exp(-5) at `share` 0 to 1 at `share` 1, and stays there.
    """
    return torch.exp(-5 * (1 - share.clamp(0, 1)) ** 2)


def nt_xent(z: Tensor, other: Tensor, t: float) -> Tensor:
    """The contrastive loss of SimCLR (Chen et al., 2020), equation 1, of both views [N, D].

        l(i, j) = -log exp(z_i . z_j / t) / sum_{k != i} exp(z_i . z_k / t)

    The mean is over all 2N rows i, of which each has the other view j of its image as positive.
    """
    rows = torch.cat([z, other])
    logits = rows @ rows.T / t
    itself = torch.eye(len(rows), dtype=torch.bool, device=rows.device)
    positive = torch.arange(len(rows), device=rows.device).roll(len(z))
    return F.cross_entropy(logits.masked_fill(itself, -torch.inf), positive)


def info_nce(q: Tensor, k: Tensor, negatives: Tensor, t: float) -> Tensor:
    """The contrastive loss of MoCo (He et al., 2020), equation 1.

        L_b = -log exp(q_b . k_b / t) / (exp(q_b . k_b / t) + sum_j exp(q_b . n_j / t))

    q and k are [B, D], the negatives n [K, D]; the mean is over the batch.
    """
    positive = (q * k).sum(1, keepdim=True)
    logits = torch.cat([positive, q @ negatives.to(q.dtype).T], 1) / t
    return -F.log_softmax(logits, dim=1)[:, 0].mean()
