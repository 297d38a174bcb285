"""The graph and the solver against reference implementations with dense matrices and loops."""

import math

import pytest
import torch
import torch.nn.functional as F

from comatch.propagation import certainty, class_weights, neighbour_graph, propagate


def features(n=40, width=6, seed=0):
    """A few clusters, some on opposite sides, so that similarities have both signs."""
    generator = torch.Generator().manual_seed(seed)
    heaps = torch.randn(4, width, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, width, generator=generator, dtype=torch.float64)
    return F.normalize(heaps[torch.arange(n) % 4] + 0.5 * noise, dim=1)


def dense_graph(v, k, gamma):
    """The paper's equations, one pair of images at a time."""
    n = len(v)
    similar = (v @ v.T).tolist()
    a = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        others = sorted((j for j in range(n) if j != i), key=lambda j: -similar[i][j])
        for j in others[:k]:
            a[i, j] = max(similar[i][j], 0.0) ** gamma
    w = a + a.T
    degree = w.sum(1).tolist()
    for i in range(n):
        for j in range(n):
            if w[i, j] > 0:
                w[i, j] /= math.sqrt(degree[i] * degree[j])
    return w


@pytest.mark.parametrize(("k", "gamma"), [(5, 3.0), (1, 1.0), (39, 3.0), (50, 2.0)])
def test_graph_against_the_dense_one(k, gamma):
    """Also with more neighbours than images."""
    v = features()
    graph = neighbour_graph(v, k, gamma)
    assert graph.is_sparse
    assert graph._nnz() <= 2 * len(v) * min(k, len(v) - 1)
    dense = graph.to_dense()
    torch.testing.assert_close(dense, dense_graph(v, k, gamma), rtol=1e-10, atol=1e-12)
    assert torch.equal(dense, dense.T)
    assert dense.diagonal().abs().max() == 0
    assert torch.linalg.eigvalsh(dense).abs().max() <= 1 + 1e-12


@pytest.mark.parametrize("chunk", [1, 7, 40, 1000])
def test_the_result_does_not_depend_on_the_chunk_size(chunk):
    v = features()
    whole = neighbour_graph(v, 5, 3.0, chunk=len(v)).to_dense()
    torch.testing.assert_close(neighbour_graph(v, 5, 3.0, chunk).to_dense(), whole)


def labels(n, classes=4, known=8):
    y = torch.zeros(n, classes, dtype=torch.float64)
    for i in range(known):
        y[i, i % classes] = 1
    return y


@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.99])
def test_solver_against_the_dense_one(alpha):
    graph, y = neighbour_graph(features(), 5, 3.0), labels(40)
    system = torch.eye(40, dtype=torch.float64) - alpha * graph.to_dense()
    solved = torch.linalg.solve(system, y)
    torch.testing.assert_close(propagate(graph, y, alpha, 100), solved, rtol=1e-8, atol=1e-10)
    # Twenty steps, as in the paper, are enough for the same classes.
    assert torch.equal(propagate(graph, y, alpha, 20).argmax(1)[:8], solved.argmax(1)[:8])


def test_solver_against_conjugate_gradients_class_by_class():
    graph, y = neighbour_graph(features(), 5, 3.0), labels(40)
    system = torch.eye(40, dtype=torch.float64) - 0.99 * graph.to_dense()
    columns = []
    for c in range(4):
        z, r = torch.zeros(40, dtype=torch.float64), y[:, c].clone()
        p = r.clone()
        for _ in range(7):
            step = (r @ r) / (p @ system @ p)
            z = z + step * p
            left = r - step * (system @ p)
            p = left + (left @ left) / (r @ r) * p
            r = left
        columns.append(z)
    torch.testing.assert_close(propagate(graph, y, 0.99, 7), torch.stack(columns, 1))


def test_a_class_without_labels_and_a_system_that_is_solved_early():
    """No division of zero by zero, in either precision."""
    for dtype in (torch.float32, torch.float64):
        graph = neighbour_graph(features().to(dtype), 5, 3.0)
        y = labels(40).to(dtype)
        y[:, 2] = 0
        z = propagate(graph, y, 0.5, 500)
        assert z.isfinite().all()
        assert z[:, 2].abs().max() == 0
        assert z[:, 0].abs().max() > 0


def test_an_image_without_similar_images_stays_unlabelled():
    v = torch.eye(3, dtype=torch.float64)[[0, 0, 0, 1, 1, 2]]
    graph = neighbour_graph(v, 2, 3.0)
    assert graph.to_dense()[5].abs().max() == 0
    y = torch.zeros(6, 2, dtype=torch.float64)
    y[0, 1] = 1
    z = propagate(graph, y, 0.99, 20)
    assert z.isfinite().all()
    assert z.argmax(1)[:3].tolist() == [1, 1, 1]
    assert certainty(z).tolist() == [1, 1, 1, 0, 0, 0]


def test_one_image_has_no_neighbours():
    graph = neighbour_graph(torch.ones(1, 1), 50, 3.0)
    assert graph.to_dense().tolist() == [[0.0]]
    assert propagate(graph, torch.ones(1, 2), 0.99, 20).tolist() == [[1.0, 1.0]]


def test_certainty():
    z = torch.tensor([[2.0, 0, 0], [1, 1, 1], [3, 1, 0], [0, 0, 0], [5, -1, 0], [-1, -2, -3]])
    third = 1 + (0.75 * math.log(0.75) + 0.25 * math.log(0.25)) / math.log(3)
    assert certainty(z).tolist() == pytest.approx([1, 0, third, 0, 1, 0], abs=1e-6)
    assert certainty(torch.ones(2, 1)).isfinite().all()


def test_class_weights():
    weights = class_weights(torch.tensor([0, 0, 0, 1, 1, 3]), 4)
    mean = (1 / 3 + 1 / 2 + 1) / 3
    assert weights.tolist() == pytest.approx([1 / 3 / mean, 1 / 2 / mean, 0, 1 / mean])
    assert class_weights(torch.tensor([0, 1, 2, 3]), 4).tolist() == [1, 1, 1, 1]
    assert class_weights(torch.tensor([0] * 1000 + [1]), 2).max() < 2


@pytest.mark.cuda
def test_on_a_gpu():
    v, y = features(200), labels(200)
    graph = neighbour_graph(v.cuda(), 5, 3.0, chunk=64)
    torch.testing.assert_close(graph.to_dense().cpu(), neighbour_graph(v, 5, 3.0).to_dense())
    z = propagate(graph, y.cuda(), 0.99, 20)
    torch.testing.assert_close(z.cpu(), propagate(graph.cpu(), y, 0.99, 20))
