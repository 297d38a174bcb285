"""Section 3.3 against a reference implementation that computes image by image."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from comatch.methods.comatch_momentum import CoMatchMomentum
from comatch.nets import WideResNet
from comatch.types import UNLABELLED, Task
from helpers import random_batches

CLASSES, B, MUB, K, EPOCH = 3, 4, 6, 15, 3


def make(**settings):
    torch.manual_seed(0)
    chosen = {"bank_size": K, "alignment_window": 3, "embedding_dim": 8, "threshold": 0.45}
    config = CoMatchMomentum.Config(**{**chosen, **settings})
    task = Task(CLASSES, steps=30, epoch=EPOCH, unlabelled=EPOCH * MUB)
    method = CoMatchMomentum(WideResNet(10, 1), task, config).double()
    with torch.no_grad():
        method.net.classifier.weight.mul_(8)  # predictions that differ from each other
        method.ema.net.load_state_dict(method.net.state_dict())
    return method


def batches(count):
    return random_batches(count, B, MUB, 3, CLASSES)


def take(method, batch, lr=0.05):
    step = method(batch)
    method.zero_grad()
    step.loss.backward()
    with torch.no_grad():
        for p in method.parameters():
            if p.grad is not None:
                p.sub_(lr * p.grad)
    method.after_step(step.remember)
    return step


class Reference:
    """Lists instead of ring buffers, loops instead of matrices."""

    def __init__(self, config):
        self.c, self.step = config, 0
        self.bank, self.queue, self.means = [], [], []

    def loss(self, method, batch):
        c = self.c
        weak, strong, other = batch.u
        net, teacher = copy.deepcopy(method.net), copy.deepcopy(method.ema.net)
        _, logits, z = net(torch.cat([batch.x, strong]))
        with torch.no_grad():
            _, old_logits, old_z = teacher(torch.cat([batch.x, weak, other]))
        p = F.softmax(old_logits[B : B + MUB], dim=1)
        z_weak, z_other = old_z[B : B + MUB], old_z[B + MUB :]

        self.means = [*self.means, p.mean(0)][-c.alignment_window :]
        aligned = p / torch.stack(self.means).mean(0)
        aligned = aligned / aligned.sum(1, keepdim=True)
        q = []
        for b in range(MUB):
            if self.step // EPOCH >= 1 and len(self.bank) == K:
                a = torch.stack([torch.exp(z_weak[b] @ zk / c.temperature) for _, zk in self.bank])
                near = sum(ak * pk for ak, (pk, _) in zip(a / a.sum(), self.bank, strict=True))
                q.append(c.alpha * aligned[b] + (1 - c.alpha) * near)
            else:
                q.append(aligned[b])
        queue = ([*self.queue, *zip(q, z_other, strict=True)])[-K:]  # including the batch

        loss_x = F.cross_entropy(logits[:B], batch.y).item()
        log_p = F.log_softmax(logits[B:], dim=1)
        cls = sum(-(q[b] @ log_p[b]).item() for b in range(MUB) if q[b].max() >= c.threshold) / MUB
        ctr = 0.0
        for b in range(MUB):
            edges, scores = [], []
            for qk, zk in queue:
                similar = (q[b] @ qk).item()
                own = zk is z_other[b] or torch.equal(zk, z_other[b])
                edges.append(1.0 if own else similar if similar >= c.edge_threshold else 0.0)
                scores.append(math.exp((z[B + b] @ zk).item() / c.temperature))
            for e, s in zip(edges, scores, strict=True):
                ctr -= e / sum(edges) * math.log(s / sum(scores)) / MUB
        one_hot = F.one_hot(batch.y, CLASSES).double()
        rows = [*zip(one_hot, old_z[:B], strict=True), *zip(aligned, z_weak, strict=True)]
        self.bank = [*self.bank, *rows][-K:]
        self.queue = queue
        weight = min(self.step // EPOCH + 1, c.lambda_ctr)
        self.step += 1
        return loss_x + c.lambda_cls * cls + weight * ctr, q


@pytest.mark.parametrize("settings", [{}, {"lambda_ctr": 2.0, "edge_threshold": 0.9}])
def test_against_the_reference(settings):
    method = make(**settings)
    reference = Reference(method.config)
    confident = 0
    for batch in batches(9):
        expected, q = reference.loss(method, batch)
        step = take(method, batch)
        assert step.loss.item() == pytest.approx(expected, rel=1e-9)
        labels = [row.argmax().item() if row.max() >= 0.45 else UNLABELLED for row in q]
        assert step.pseudo_labels.tolist() == labels
        confident += sum(label >= 0 for label in labels)
    assert 0 < confident < 9 * MUB


def test_only_the_networks_own_views_have_gradients():
    method = make()
    (batch,) = batches(1)
    for image in (batch.x, *batch.u):
        image.requires_grad_()
    method(batch).loss.backward()
    weak, strong, other = batch.u
    assert batch.x.grad.abs().max() > 0
    assert strong.grad.abs().max() > 0
    assert weak.grad is None
    assert other.grad is None
    assert all(p.grad is None for p in method.ema.parameters())


def test_the_ema_decay_is_lower_in_the_first_epoch():
    method = make(ema_decay=0.9, first_decay=0.5)
    for step, batch in enumerate(batches(5)):
        before = [p.clone() for p in method.ema.net.parameters()]
        take(method, batch)
        m = 0.5 if step < EPOCH else 0.9
        for old, new, p in zip(
            before, method.ema.net.parameters(), method.net.parameters(), strict=True
        ):
            torch.testing.assert_close(new, m * old + (1 - m) * p, rtol=1e-6, atol=1e-8)


def test_the_network_itself_is_evaluated():
    assert make().evaluated_weights == "the network's own weights"
