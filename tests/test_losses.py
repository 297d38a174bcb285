"""Every loss against a reference implementation: plain loops of the paper's formulas."""

import math

import pytest
import torch
import torch.nn.functional as F

from comatch import losses


@pytest.fixture
def tensors():
    generator = torch.Generator().manual_seed(0)
    n, bank, classes, width = 9, 13, 4, 5

    def rand(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return {
        "p": F.softmax(3 * rand(n, classes), 1),
        "logits": rand(n, classes),
        "z": F.normalize(rand(n, width), dim=1),
        "z_other": F.normalize(rand(n, width), dim=1),
        "p_bank": F.softmax(3 * rand(bank, classes), 1),
        "z_bank": F.normalize(rand(bank, width), dim=1),
    }


def close(a, b):
    torch.testing.assert_close(a, torch.as_tensor(b, dtype=a.dtype), rtol=1e-12, atol=1e-12)


def test_align(tensors):
    p, average = tensors["p"], torch.tensor([0.7, 0.1, 0.1, 0.1], dtype=torch.float64)
    expected = []
    for row in p.tolist():
        scaled = [value / average[c].item() for c, value in enumerate(row)]
        expected.append([value / sum(scaled) for value in scaled])
    close(losses.align(p, average), expected)


def test_align_survives_a_class_that_is_never_predicted():
    p = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    aligned = losses.align(p, torch.tensor([1.0, 0.0]))
    assert aligned.isfinite().all()
    close(aligned.sum(1), [1.0, 1.0])


@pytest.mark.parametrize("t", [0.5, 1.0, 3.0])
def test_sharpen(tensors, t):
    expected = []
    for row in tensors["p"].tolist():
        powers = [value ** (1 / t) for value in row]
        expected.append([power / sum(powers) for power in powers])
    close(losses.sharpen(tensors["p"], t), expected)


def test_memory_smooth(tensors):
    p, z, p_bank, z_bank = (tensors[k] for k in ("p", "z", "p_bank", "z_bank"))
    alpha, t = 0.9, 0.2
    expected = []
    for b in range(len(p)):
        weights = [math.exp(float(z[b] @ z_bank[k]) / t) for k in range(len(z_bank))]
        row = []
        for c in range(p.shape[1]):
            smooth = sum(w * p_bank[k, c].item() for k, w in enumerate(weights)) / sum(weights)
            row.append(alpha * p[b, c].item() + (1 - alpha) * smooth)
        expected.append(row)
    close(losses.memory_smooth(p, z, p_bank, z_bank, alpha, t), expected)


def test_memory_smooth_minimises_the_papers_objective(tensors):
    """q minimises J(q), so the gradient at q is zero."""
    p, z, p_bank, z_bank = (tensors[k] for k in ("p", "z", "p_bank", "z_bank"))
    q = losses.memory_smooth(p, z, p_bank, z_bank, 0.7, 0.3).requires_grad_()
    affinity = F.softmax(z @ z_bank.T / 0.3, dim=1)
    distances = (q[:, None] - p_bank[None]).pow(2).sum(2)
    objective = 0.3 * (affinity * distances).sum() + 0.7 * (q - p).pow(2).sum()
    (gradient,) = torch.autograd.grad(objective, q)
    assert gradient.abs().max() < 1e-12


def test_masked_cross_entropy(tensors):
    q, logits = tensors["p"], tensors["logits"]
    tau = 0.8
    confident = q.amax(1) >= tau
    assert 0 < confident.sum() < len(q)  # both kinds occur
    total = 0.0
    for b in range(len(q)):
        if max(q[b].tolist()) >= tau:
            norm = sum(math.exp(v) for v in logits[b].tolist())
            for c in range(q.shape[1]):
                total -= q[b, c].item() * math.log(math.exp(logits[b, c].item()) / norm)
    close(losses.masked_cross_entropy(logits, q, confident), total / len(q))


def reference_label_graph(q, threshold):
    n = len(q)
    graph = [[0.0] * n for _ in range(n)]
    for b in range(n):
        for j in range(n):
            similarity = sum(x * y for x, y in zip(q[b].tolist(), q[j].tolist(), strict=True))
            if b == j:
                graph[b][j] = 1.0
            elif similarity >= threshold:
                graph[b][j] = similarity
        total = sum(graph[b])
        graph[b] = [edge / total for edge in graph[b]]
    return graph


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.8])
def test_label_graph(tensors, threshold):
    close(
        losses.label_graph(tensors["p"], threshold), reference_label_graph(tensors["p"], threshold)
    )


def test_label_graph_with_threshold_one_keeps_only_self_loops(tensors):
    close(losses.label_graph(tensors["p"], 1.0), torch.eye(len(tensors["p"])))


def reference_embedding_graph(z, z_other, t, form):
    n = len(z)
    graph = [[0.0] * n for _ in range(n)]
    for b in range(n):
        for j in range(n):
            partner = z_other[j] if b == j or form == "authors" else z[j]
            graph[b][j] = math.exp(float(z[b] @ partner) / t)
        total = sum(graph[b])
        graph[b] = [edge / total for edge in graph[b]]
    return graph


@pytest.mark.parametrize("form", ["authors", "paper"])
def test_embedding_graph(tensors, form):
    z, z_other = tensors["z"], tensors["z_other"]
    log_graph = losses.embedding_graph(z, z_other, 0.2, form)
    close(log_graph.exp(), reference_embedding_graph(z, z_other, 0.2, form))


def test_the_two_forms_differ(tensors):
    z, z_other = tensors["z"], tensors["z_other"]
    authors, paper = (losses.embedding_graph(z, z_other, 0.2, f) for f in ("authors", "paper"))
    assert (authors - paper).abs().max() > 0.1


@pytest.mark.parametrize("form", ["authors", "paper"])
def test_graph_cross_entropy(tensors, form):
    q, z, z_other = tensors["p"], tensors["z"], tensors["z_other"]
    wq, wz = reference_label_graph(q, 0.3), reference_embedding_graph(z, z_other, 0.2, form)
    total = 0.0
    for b in range(len(q)):
        for j in range(len(q)):
            total -= wq[b][j] * math.log(wz[b][j])
    loss = losses.graph_cross_entropy(
        losses.label_graph(q, 0.3), losses.embedding_graph(z, z_other, 0.2, form)
    )
    close(loss, total / len(q))


def test_contrast_with_self_loops_only_is_instance_discrimination(tensors):
    """T = 1: the paper's equation 2 over the two strong views."""
    q, z, z_other, t = tensors["p"], tensors["z"], tensors["z_other"], 0.2
    total = 0.0
    for i in range(len(z)):
        similar = [math.exp(float(z[i] @ z_other[j]) / t) for j in range(len(z))]
        total -= math.log(similar[i] / sum(similar))
    loss = losses.graph_cross_entropy(
        losses.label_graph(q, 1.0), losses.embedding_graph(z, z_other, t, "authors")
    )
    close(loss, total / len(z))


@pytest.mark.parametrize("chunk", [2, 4, 100])
def test_queue_contrast_and_its_gradient(tensors, chunk):
    """Against autograd with whole matrices."""
    z, q = tensors["z"].requires_grad_(), tensors["p"]
    keys = torch.cat([tensors["z_other"], tensors["z_bank"]])
    labels = torch.cat([q, tensors["p_bank"]])
    there = torch.arange(len(keys)) % 5 != 0
    there[: len(z)] = True
    loss = losses.queue_contrast(z, q, keys, labels, there, 0.4, 0.2, chunk)
    (gradient,) = torch.autograd.grad(loss, z)

    similar = q @ labels[there].T
    graph = similar * (similar >= 0.4)
    graph[torch.arange(len(z)), torch.arange(len(z))] = 1.0
    assert 0 < (graph > 0).double().mean() < 1
    graph = graph / graph.sum(1, keepdim=True)
    expected = -(graph * F.log_softmax(z @ keys[there].T / 0.2, dim=1)).sum(1).mean()
    close(loss, expected)
    close(gradient, torch.autograd.grad(expected, z)[0])


def test_queue_contrast_without_edges_is_instance_discrimination(tensors):
    """With T above one only self-loops remain: cross-entropy with the other view."""
    z, keys = tensors["z"], torch.cat([tensors["z_other"], tensors["z_bank"]])
    labels = torch.cat([tensors["p"], tensors["p_bank"]])
    there = torch.ones(len(keys), dtype=torch.bool)
    loss = losses.queue_contrast(z, tensors["p"], keys, labels, there, 1.1, 0.2)
    close(loss, F.cross_entropy(z @ keys.T / 0.2, torch.arange(len(z))))


def test_class_thresholds():
    p, overall = [0.2, 0.5, 0.3], 0.8
    expected = [value / max(p) * overall for value in p]
    p, overall = (torch.tensor(value, dtype=torch.float64) for value in (p, overall))
    close(losses.class_thresholds(overall, p), expected)
