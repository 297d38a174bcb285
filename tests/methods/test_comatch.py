"""CoMatch against a reference implementation: algorithm 1 with lists, step by step."""

import copy
import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from comatch.methods import CoMatch
from comatch.types import UNLABELLED, Batch, Task

CLASSES, STEPS = 3, 8


class Encoder(nn.Module):
    """Small, but with batch norm: separate forwards of the views would give another result."""

    num_features = 6

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)

    def forward(self, x):
        return F.leaky_relu(self.norm(self.conv(x))).mean((2, 3))


def make(**settings):
    torch.manual_seed(0)
    config = CoMatch.Config(bank_size=20, alignment_window=3, threshold=0.45, edge_threshold=0.3)
    config = dataclasses.replace(config, **settings)
    method = CoMatch(Encoder(), Task(CLASSES, steps=STEPS), config).double()
    with torch.no_grad():
        method.net.classifier.weight.mul_(8)  # predictions that differ from each other
    return method


def batches(count):
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        x, *u = (
            torch.randn(n, 3, 4, 4, generator=generator, dtype=torch.float64) for n in (4, 6, 6, 6)
        )
        y = torch.randint(CLASSES, (4,), generator=generator)
        yield Batch(x, y, tuple(u), torch.arange(6))


class Reference:
    """Algorithm 1, with Python lists for the memory."""

    def __init__(self, config):
        self.c, self.bank, self.means, self.taken = config, [], [], 0
        even = torch.tensor(1 / CLASSES).item()  # rounded to float32, as the buffers are at first
        # The running means of the confidence and of the probability of each class.
        self.mean_confidence, self.mean_q = even, [even] * CLASSES

    def confident(self, q):
        """1 for each selected pseudo-label, else 0."""
        c, rows = self.c, [row.tolist() for row in q]
        tau, n = c.threshold, len(rows)
        confidence = [max(row) for row in rows]
        if c.selection == "fixed":
            return [float(value >= tau) for value in confidence]

        def moved(old, new):
            return c.selection_decay * old + (1 - c.selection_decay) * new

        self.mean_confidence = moved(self.mean_confidence, sum(confidence) / n)
        self.mean_q = [moved(self.mean_q[k], sum(r[k] for r in rows) / n) for k in range(CLASSES)]
        overall = min(self.mean_confidence, tau)
        share = [self.mean_q[row.index(max(row))] / max(self.mean_q) for row in rows]
        return [float(v >= s * overall) for v, s in zip(confidence, share, strict=True)]

    def target(self, row):
        return F.one_hot(row.argmax(), CLASSES).double() if self.c.hard_labels else row

    def contrastive_loss(self, q, zs, zc):
        c, m = self.c, len(q)
        loss = torch.zeros((), dtype=torch.float64)
        for b in range(m):
            wq, wz = [], []
            for j in range(m):
                similarity = float(q[b] @ q[j])
                edge = 1.0 if b == j else similarity * (similarity >= c.edge_threshold)
                wq.append(edge)
                other = zc[j] if b == j or c.graph == "authors" else zs[j]
                wz.append(torch.exp(zs[b] @ other / c.temperature))
            for j in range(m):
                loss = loss - wq[j] / sum(wq) * torch.log(wz[j] / sum(wz)) / m
        return loss

    def loss(self, net, batch):
        c = self.c
        out = net(torch.cat([batch.x, *batch.u]))
        n, m = len(batch.x), len(batch.u[0])
        logits, z = out.logits, out.embedding
        probabilities = F.softmax(logits[n : n + m], 1).detach()
        self.means = [*self.means, probabilities.mean(0)][-c.alignment_window :]
        average = sum(self.means) / len(self.means)
        p = [row / average / (row / average).sum() for row in probabilities]
        z_weak = z[n : n + m].detach()
        q = []
        for b in range(m):
            if len(self.bank) < c.bank_size:
                q.append(p[b])
                continue
            a = [math.exp(float(z_weak[b] @ zk) / c.temperature) for _, zk in self.bank]
            smooth = sum(w * pk for w, (pk, _) in zip(a, self.bank, strict=True)) / sum(a)
            q.append(c.alpha * p[b] + (1 - c.alpha) * smooth)

        loss_x = sum(-F.log_softmax(logits[i], 0)[batch.y[i]] for i in range(n)) / n
        strong = F.log_softmax(logits[n + m : n + 2 * m], 1)
        weights = self.confident(q)
        loss_cls = sum(-(self.target(q[b]) * strong[b]).sum() * weights[b] for b in range(m)) / m
        loss_ctr = self.contrastive_loss(q, z[n + m : n + 2 * m], z[n + 2 * m :])

        rows = [
            (F.one_hot(y, CLASSES).double(), zi.detach()) for y, zi in zip(batch.y, z, strict=False)
        ]
        rows += list(zip(p, z_weak, strict=True))
        self.bank = [*self.bank, *rows][-c.bank_size :]
        labels = [
            int(row.argmax()) if weight >= 0.5 else UNLABELLED
            for row, weight in zip(q, weights, strict=True)
        ]
        self.taken += 1
        return loss_x + c.lambda_cls * loss_cls + c.lambda_ctr * loss_ctr, labels


@pytest.mark.parametrize(
    "settings",
    [
        {"graph": "authors"},
        {"graph": "paper"},
        {"selection": "adaptive", "selection_decay": 0.6, "threshold": 0.99},
        {"selection": "adaptive", "selection_decay": 0.6, "threshold": 0.5},
        {"hard_labels": True},
        {"hard_labels": True, "selection": "adaptive", "selection_decay": 0.3},
    ],
)
def test_loss_gradient_and_memory_follow_algorithm_1(settings):
    method = make(lambda_cls=2.0, lambda_ctr=3.0, **settings)
    net, reference = copy.deepcopy(method.net), Reference(method.config)
    confident = 0
    for batch in batches(5):  # the bank of 20 rows is full from the third batch on
        step = method(batch)
        expected, labels = reference.loss(net, batch)
        torch.testing.assert_close(step.loss, expected, rtol=1e-10, atol=1e-10)
        assert step.pseudo_labels.tolist() == labels
        confident += sum(label != UNLABELLED for label in labels)
        gradients = torch.autograd.grad(step.loss, list(method.net.parameters()))
        for ours, expected_gradient in zip(
            gradients, torch.autograd.grad(expected, list(net.parameters())), strict=True
        ):
            torch.testing.assert_close(ours, expected_gradient, rtol=1e-8, atol=1e-10)
        method.after_step(step.remember)
        if method.config.selection == "adaptive":
            mean_confidence = step.metrics["mean_confidence"].item()
            assert mean_confidence == pytest.approx(reference.mean_confidence)
    assert bool(method.bank_p.full)
    assert 0 < confident < 30, "some pseudo-labels are above the threshold, and some below"


def test_forward_changes_no_memory():
    method = make()
    batch = next(batches(1))
    before = {k: v.clone() for k, v in method.state_dict().items() if "norm" not in k}
    method(batch)
    for name, value in before.items():
        assert torch.equal(method.state_dict()[name], value), name


def test_no_gradient_flows_through_pseudo_labels():
    method = make(lambda_ctr=0.0, lambda_cls=1.0, threshold=0.0)
    method.eval()  # without batch statistics the weak view matters only through q
    batch = next(batches(1))
    weak = batch.u[0].requires_grad_()
    method(batch).loss.backward()
    assert weak.grad is None or weak.grad.abs().max() == 0


def test_smoothing_begins_when_the_bank_is_full():
    """2,560 rows are five batches of 64 + 7 * 64, so smoothing begins at the sixth step."""
    method = make(bank_size=50)  # five batches of 4 + 6 rows
    full = []
    for batch in batches(7):
        full.append(bool(method.bank_p.full))
        method.after_step(method(batch).remember)
    assert full == [False] * 5 + [True] * 2


def test_alpha_one_gives_the_models_own_pseudo_labels():
    smooth, alone = make(alpha=0.5), make(alpha=1.0)
    for batch in batches(4):
        a, b = smooth(batch), alone(batch)
        _, p = b.remember["bank_p"]
        smooth.after_step(a.remember)
        alone.after_step(b.remember)
    expected = p.argmax(1).masked_fill(p.amax(1) < alone.config.threshold, UNLABELLED)
    assert torch.equal(b.pseudo_labels, expected)


def test_adaptive_selection_adds_one_buffer():
    def names(**settings):
        return set(make(**settings).state_dict())

    assert names() == names(selection="fixed", hard_labels=True)
    assert names(selection="adaptive") - names() == {"selection.row"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [{}, {"selection": "adaptive", "hard_labels": True}],
)
def test_compiled_agrees_with_eager_in_float64(settings):
    torch._dynamo.reset()
    eager, compiled = make(**settings), make(**settings)
    fast = torch.compile(compiled, fullgraph=True)
    for batch in batches(4):
        a, b = eager(batch), fast(batch)
        torch.testing.assert_close(a.loss, b.loss, rtol=1e-12, atol=1e-12)
        a.loss.backward()
        b.loss.backward()
        for p, q in zip(eager.net.parameters(), compiled.net.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-10, atol=1e-12)
            with torch.no_grad():
                for parameter in (p, q):
                    parameter.sub_(0.1 * parameter.grad)
                    parameter.grad = None
        eager.after_step(a.remember)
        compiled.after_step(b.remember)
    for name, value in eager.state_dict().items():
        torch.testing.assert_close(value, compiled.state_dict()[name], rtol=1e-9, atol=1e-11)
