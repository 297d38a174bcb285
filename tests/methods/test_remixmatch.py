"""ReMixMatch against a reference implementation that computes image by image."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from test_rivals import CLASSES, MUB, B, cross_entropy, one_hot, predictions

from comatch import methods
from comatch.augment.ctaugment import BINS, OPERATIONS
from comatch.augment.policies import denormalise, normalise
from comatch.errors import UserError
from comatch.nets import WideResNet
from comatch.types import Batch, Task

MEAN, STD = (0.5, 0.4, 0.6), (0.3, 0.2, 0.25)


def make(**settings):
    torch.manual_seed(0)
    config = methods.find("remixmatch").Config(**settings)
    task = Task(CLASSES, 8, MUB, MEAN, STD)
    method = methods.build(config, WideResNet(10, 1), task).double()
    with torch.no_grad():
        method.net.classifier.weight.mul_(10)  # predictions that differ from each other
        method.rotation.weight.mul_(10)
    return method


def batch(seed):
    generator = torch.Generator().manual_seed(seed)
    x, *u = (
        torch.randint(256, (n, 3, 8, 8), generator=generator).double() for n in (B, MUB, MUB, MUB)
    )
    y = torch.randint(CLASSES, (B,), generator=generator)
    views = tuple(normalise(view, torch.tensor(MEAN), torch.tensor(STD)) for view in u)
    x = normalise(x, torch.tensor(MEAN), torch.tensor(STD))
    return Batch(x, y, views, torch.arange(MUB))


def mean_of(rows):
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def normalised(row):
    return [value / sum(row) for value in row]


def mean_entropy(targets, p):
    return sum(cross_entropy(t, q) for t, q in zip(targets, p, strict=True)) / len(p)


def quarter_turns(image, quarters):
    for _ in range(quarters):
        image = image.transpose(1, 2).flip(1)  # a quarter turn anticlockwise
    return image


class Reference:
    """A step in plain Python, with lists for the memory."""

    def __init__(self, window):
        self.window, self.means_p, self.means_y = window, [], []
        self.weights = [[1.0] * BINS for _ in OPERATIONS]

    def step(self, method, b, weight):
        mean, std = torch.tensor(MEAN), torch.tensor(STD)
        with torch.no_grad():  # drawn in the method's order; augmentation has its own tests
            weak = denormalise(torch.cat([b.x, b.u[1], b.u[2]]), mean.double(), std.double())
            probes, drawn = method.augment.probe(weak[:B])
            strong = list(normalise(method.augment(weak), mean, std))
        probes = normalise(probes, mean, std)
        anchor_p, probe_p = predictions(method, b.u[0], probes)
        labels = [one_hot(c) for c in b.y.tolist()]

        self.means_p = [*self.means_p, mean_of(anchor_p)][-self.window :]
        self.means_y = [*self.means_y, mean_of(labels)][-self.window :]
        ratio = [
            max(y, 1e-6) / p for y, p in zip(mean_of(self.means_y), mean_of(self.means_p), strict=1)
        ]
        labels_u = []
        for p in anchor_p:
            aligned = normalised([value * r for value, r in zip(p, ratio, strict=True)])
            labels_u.append(normalised([value**2 for value in aligned]))  # T = 0.5

        images = strong[:B] + list(b.u[0]) + strong[B:]
        targets = labels + labels_u * 3
        order = torch.rand(len(targets)).argsort().tolist()
        gamma = torch._standard_gamma(torch.full((2, len(targets)), 0.75)).tolist()
        mixed, mixed_targets = [], []
        for i, j in enumerate(order):
            share = gamma[0][i] / (gamma[0][i] + gamma[1][i])
            share = max(share, 1 - share)
            mixed.append(share * images[i] + (1 - share) * images[j])
            pairs = zip(targets[i], targets[j], strict=True)
            mixed_targets.append([share * a + (1 - share) * b for a, b in pairs])
        quarters = torch.randint(4, (MUB,)).tolist()
        first = strong[B : B + MUB]
        rotated = [quarter_turns(p, r) for p, r in zip(first, quarters, strict=True)]

        out = copy.deepcopy(method.net)(torch.stack(mixed + first + rotated))
        p = F.softmax(out.logits, dim=1).tolist()
        p_first = p[len(mixed) : len(mixed) + MUB]
        rotations = F.softmax(method.rotation(out.features[-MUB:]), dim=1).tolist()
        loss_r = -sum(math.log(q[r]) for q, r in zip(rotations, quarters, strict=True)) / MUB
        parts = {
            "loss_x": mean_entropy(mixed_targets[:B], p[:B]),
            "loss_u": mean_entropy(mixed_targets[B:], p[B : len(mixed)]),
            "loss_u1": mean_entropy(labels_u, p_first),
            "loss_r": loss_r,
        }
        self.probe(drawn, labels, probe_p)
        loss = parts["loss_x"] + weight * (1.5 * parts["loss_u"] + 0.7 * parts["loss_u1"])
        return loss + 0.3 * loss_r, parts, labels_u

    def probe(self, drawn, labels, p):
        """Each probe of a bin updates its weight with the mean of its matches."""
        probed = {}
        for i, (y, q) in enumerate(zip(labels, p, strict=True)):
            match = 1 - sum(abs(a - b) for a, b in zip(y, q, strict=True)) / 2
            for cell in zip(drawn.kind[i].tolist(), drawn.bin[i].tolist(), strict=True):
                probed.setdefault(cell, []).append(match)
        for (kind, bin), matches in probed.items():
            for _ in matches:
                old = self.weights[kind][bin]
                self.weights[kind][bin] = 0.9 * old + 0.1 * sum(matches) / len(matches)


def test_remixmatch():
    method = make(lambda_u1=0.7, lambda_r=0.3, ramp=0.25, alignment_window=2, bin_decay=0.9)
    reference = Reference(window=2)
    for i, weight in enumerate((0.0, 0.5, 1.0, 1.0)):  # the run has 8 steps
        b = batch(i)
        torch.manual_seed(i)
        loss, parts, labels_u = reference.step(method, b, weight)
        torch.manual_seed(i)
        step = method(b)
        assert step.loss.item() == pytest.approx(loss, rel=1e-5)  # shares are float32
        for name, value in parts.items():
            assert step.metrics[name].item() == pytest.approx(value, rel=1e-5), name
        assert step.metrics["weight"].item() == pytest.approx(weight)
        assert step.pseudo_labels.tolist() == [q.index(max(q)) for q in labels_u]
        method.after_step(step.remember)
        torch.testing.assert_close(method.augment.weights, torch.tensor(reference.weights).double())
    assert (method.augment.weights < 1).sum() > B


def test_pseudo_labels_have_the_class_frequency_of_the_labels():
    """The network predicts the first class too often, and most labels are of the last."""
    method = make(temperature=1.0)
    torch.manual_seed(0)
    p = F.softmax(torch.randn(5000, CLASSES, dtype=torch.float64) + torch.tensor([1, 0, 0]), dim=1)
    frequency = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
    q = method.pseudo_labels(p, p.mean(0), frequency)
    torch.testing.assert_close(q.sum(1), torch.ones_like(q[:, 0]))
    far = (p.mean(0) - frequency).abs().max()
    assert (q.mean(0) - frequency).abs().max() < far / 4
    assert method.pseudo_labels(p, p.mean(0), torch.tensor([0.0, 0, 1]).double()).isfinite().all()


def test_no_gradient_flows_through_pseudo_labels_and_strengths():
    method = make()
    method.step.fill_(8)
    step = method(batch(0))
    step.loss.backward()
    assert all(
        p.grad is not None for p in (*method.net.parameters(), *method.rotation.parameters())
    )
    assert not method.augment.weights.requires_grad
    assert all(p.grad is None for p in method.ema.parameters())


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("ramp", 0.0),
        ("temperature", 0.0),
        ("alpha", -1.0),
        ("bin_decay", 1.1),
        ("bin_threshold", -1),
        ("alignment_window", 0),
    ],
)
def test_bad_settings(setting, value):
    with pytest.raises(UserError, match=setting):
        make(**{setting: value})
