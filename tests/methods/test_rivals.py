"""The loss of each baseline method against a reference that computes image by image."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from comatch import methods
from comatch.errors import UserError
from comatch.methods import CoMatch
from comatch.nets import WideResNet
from comatch.types import UNLABELLED, Batch, Task

CLASSES, B, MUB, IMAGES = 3, 4, 7, 12


def make(name, steps=1, **settings):
    torch.manual_seed(0)
    config = methods.find(name).Config(**settings)
    method = methods.build(config, WideResNet(10, 1), Task(CLASSES, steps, IMAGES)).double()
    with torch.no_grad():
        method.net.classifier.weight.mul_(10)  # predictions that differ from each other
    return method


def batch(method, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x, *u = (
        torch.randn(n, 3, 8, 8, generator=generator, dtype=torch.float64)
        for n in (B, *[MUB] * len(method.views))
    )
    y = torch.randint(CLASSES, (B,), generator=generator)
    return Batch(x, y, tuple(u), torch.randperm(IMAGES, generator=generator)[:MUB])


def predictions(method, *views):
    """Probabilities of each image of each view, as lists, from one forward over all of them."""
    net = copy.deepcopy(method.net)
    logits = net(torch.cat(views)).logits
    split = logits.split([len(view) for view in views])
    return [F.softmax(part, dim=1).tolist() for part in split]


def cross_entropy(target, p):
    return -sum(t * math.log(q) for t, q in zip(target, p, strict=True))


def one_hot(index):
    return [float(index == i) for i in range(CLASSES)]


def labelled_loss(p, y):
    return sum(cross_entropy(one_hot(c), q) for c, q in zip(y.tolist(), p, strict=True)) / len(p)


def confident_loss(q, targets, p, threshold):
    total = 0.0
    for pseudo_label, target, prediction in zip(q, targets, p, strict=True):
        if max(pseudo_label) >= threshold:
            total += cross_entropy(target, prediction)
    return total / len(q)


def test_supervised():
    method = make("supervised")
    b = batch(method)
    (x,) = predictions(method, b.x)
    assert method(b).loss.item() == pytest.approx(labelled_loss(x, b.y), rel=1e-9)


def test_fixmatch():
    method = make("fixmatch", threshold=0.9, lambda_u=2.0)
    b = batch(method)
    x, strong, weak = predictions(method, b.x, b.u[1], b.u[0])
    targets = [one_hot(p.index(max(p))) for p in weak]
    step = method(b)
    expected = labelled_loss(x, b.y) + 2 * confident_loss(weak, targets, strong, 0.9)
    assert step.loss.item() == pytest.approx(expected, rel=1e-9)
    labels = [p.index(max(p)) if max(p) >= 0.9 else UNLABELLED for p in weak]
    assert step.pseudo_labels.tolist() == labels
    assert UNLABELLED in labels, "some are not confident"
    assert max(labels) > UNLABELLED, "and some are"


def test_fixmatch_da():
    method = make("fixmatch_da", threshold=0.6, alignment_window=2)
    means = []
    for seed in range(4):
        b = batch(method, seed)
        x, strong, weak = predictions(method, b.x, b.u[1], b.u[0])
        means = [*means, [sum(column) / MUB for column in zip(*weak, strict=True)]][-2:]
        average = [sum(column) / len(means) for column in zip(*means, strict=True)]
        aligned = []
        for p in weak:
            scaled = [q / a for q, a in zip(p, average, strict=True)]
            aligned.append([s / sum(scaled) for s in scaled])
        targets = [one_hot(q.index(max(q))) for q in aligned]
        step = method(b)
        expected = labelled_loss(x, b.y) + confident_loss(aligned, targets, strong, 0.6)
        assert step.loss.item() == pytest.approx(expected, rel=1e-9)
        method.after_step(step.remember)


def test_comatch_without_bank_graph_and_soft_labels_is_fixmatch_da():
    """In eval mode, where batch norm does not mix the views."""
    baseline = make("fixmatch_da").eval()
    comatch = make("comatch", alpha=1.0, lambda_ctr=0.0, hard_labels=True, bank_size=8).eval()
    comatch.net.load_state_dict(baseline.net.state_dict(), strict=False)
    for seed in range(4):
        b = batch(comatch, seed)
        steps = comatch(b), baseline(b._replace(u=b.u[:2]))
        assert steps[0].loss.item() == pytest.approx(steps[1].loss.item(), rel=1e-12)
        assert torch.equal(steps[0].pseudo_labels, steps[1].pseudo_labels)
        for method, step in zip((comatch, baseline), steps, strict=True):
            for name, rows in step.remember.items():
                getattr(method, name).push(*(rows if isinstance(rows, tuple) else (rows,)))
    assert isinstance(comatch, CoMatch)


@pytest.mark.parametrize(("done", "weight"), [(0, 0.0), (10, 0.0), (35, 1.5), (60, 3.0), (99, 3.0)])
def test_pseudo_label(done, weight):
    method = make("pseudo_label", steps=100)
    method.step.fill_(done)
    b = batch(method)
    x, u = predictions(method, b.x, b.u[0])
    targets = [one_hot(p.index(max(p))) for p in u]
    expected = labelled_loss(x, b.y) + weight * confident_loss(u, targets, u, 0.0)
    assert method(b).loss.item() == pytest.approx(expected, rel=1e-6)


def squared(one, other):
    total = sum(
        (a - b) ** 2 for p, q in zip(one, other, strict=True) for a, b in zip(p, q, strict=True)
    )
    return total / (len(one) * CLASSES)


def rising_weight(method, done):
    """Section 2.1 of Laine and Aila: exp(-5 (1 - T)^2), T from 0 to 1 in the ramp-up period."""
    method.step.fill_(done)
    return math.exp(-5 * (1 - min(1, done / 50)) ** 2)


@pytest.mark.parametrize("done", [0, 25, 50, 80])
def test_pi_model(done):
    """Algorithm 1 of its paper, whose minibatch has M = B labelled of N images, each seen twice.

    There both terms are means over the minibatch, and w(t) rises to 100 M / N. Here the whole loss
    is N / M times that.
    """
    method = make("pi_model", steps=100, ramp=0.5)
    b = batch(method)
    n = B + MUB
    views = torch.cat([b.x, b.u[0]]), torch.cat([torch.randn_like(b.x), b.u[1]])
    x, one, other = predictions(method, b.x, *views)

    supervised = -sum(math.log(p[c]) for p, c in zip(x, b.y.tolist(), strict=True)) / n
    apart = sum((p - q) ** 2 for i in range(n) for p, q in zip(one[i], other[i], strict=True))
    w = 100 * B / n * rising_weight(method, done)
    expected = (supervised + w * apart / (CLASSES * n)) * n / B
    assert method(b._replace(u=views)).loss.item() == pytest.approx(expected, rel=1e-6)


def test_mean_teacher():
    """Squared distance of the student's prediction on one view to the teacher's on another.

    Both classify the whole batch, labelled and unlabelled, so they share batch norm statistics.
    """
    method = make("mean_teacher", steps=100, lambda_u=7.0, ramp=0.5)
    with torch.no_grad():
        for p in method.ema.net.parameters():
            p.add_(0.1 * torch.randn_like(p))  # differs from the student
    b = batch(method)
    weight = 7 * rising_weight(method, 20)
    x, student = predictions(method, b.x, b.u[0])
    logits = copy.deepcopy(method.ema.net)(torch.cat([b.x, b.u[1]])).logits
    teacher = F.softmax(logits, dim=1).tolist()[B:]
    step = method(b)
    expected = labelled_loss(x, b.y) + weight * squared(student, teacher)
    assert step.loss.item() == pytest.approx(expected, rel=1e-6)
    step.loss.backward()
    assert all(p.grad is None for p in method.ema.net.parameters())


def test_a_mean_teacher_equal_to_the_student_has_no_loss():
    """With the same weights and the same views: the two differ in nothing else."""
    method = make("mean_teacher", lambda_u=7.0)
    method.ema.net.load_state_dict(method.net.state_dict())
    b = batch(method)
    assert method(b._replace(u=(b.u[0], b.u[0]))).metrics["loss_u"].item() == 0


def test_the_mean_teacher_is_the_plain_mean_at_first():
    """The decay is min(1 - 1 / (t + 1), 0.8): the mean of all weights so far for five steps."""
    method = make("mean_teacher", ema_decay=0.8)
    student, teacher = method.net.classifier.bias, method.ema.net.classifier.bias
    seen = []
    for t in range(9):
        with torch.no_grad():
            student.normal_()
        seen.append(student.detach().clone())
        before = teacher.clone()
        method.after_step({})
        expected = 0.8 * before + 0.2 * student if t >= 4 else torch.stack(seen).mean(0)
        torch.testing.assert_close(teacher, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("tsa", "release"),
    [("linear", 0.3), ("log", 1 - math.exp(-1.5)), ("exp", math.exp(5 * -0.7)), ("none", None)],
)
def test_uda(tsa, release):
    method = make("uda", threshold=0.6, temperature=0.4, tsa=tsa, steps=10)
    method.step.fill_(3)
    b = batch(method)
    x, strong, weak = predictions(method, b.x, b.u[1], b.u[0])
    most = 2.0 if release is None else release * (1 - 1 / CLASSES) + 1 / CLASSES
    counted = [-math.log(p[c]) for p, c in zip(x, b.y.tolist(), strict=True) if p[c] <= most]
    sharpened = []
    for p in weak:
        powers = [q ** (1 / 0.4) for q in p]
        sharpened.append([power / sum(powers) for power in powers])
    expected = sum(counted) / max(1, len(counted)) + confident_loss(weak, sharpened, strong, 0.6)
    step = method(b)
    assert step.loss.item() == pytest.approx(expected, rel=1e-6)
    assert step.metrics["released"].item() == pytest.approx(len(counted) / B)


def test_mixmatch():
    method = make("mixmatch", steps=4, lambda_u=75.0, alpha=0.75, temperature=0.5)
    method.step.fill_(1)
    b = batch(method)
    one, other = predictions(method, *b.u)
    q = []
    for p_one, p_other in zip(one, other, strict=True):
        powers = [((s + t) / 2) ** 2 for s, t in zip(p_one, p_other, strict=True)]
        q.append([power / sum(powers) for power in powers])
    images = list(torch.cat([b.x, *b.u]))
    labels = [one_hot(c) for c in b.y.tolist()] + q + q

    torch.manual_seed(5)
    order = torch.rand(len(labels)).argsort().tolist()
    gamma = torch._standard_gamma(torch.full((2, len(labels)), 0.75)).tolist()
    mixed, targets = [], []
    for i, j in enumerate(order):
        share = gamma[0][i] / (gamma[0][i] + gamma[1][i])
        share = max(share, 1 - share)
        mixed.append(share * images[i] + (1 - share) * images[j])
        pairs = zip(labels[i], labels[j], strict=True)
        targets.append([share * a + (1 - share) * b for a, b in pairs])
    (p,) = predictions(method, torch.stack(mixed))
    loss_x = sum(cross_entropy(t, q) for t, q in zip(targets[:B], p[:B], strict=True)) / B
    expected = loss_x + 75 / 4 * squared(targets[B:], p[B:])

    torch.manual_seed(5)
    step = method(b)
    assert step.loss.item() == pytest.approx(expected, rel=1e-5)  # shares are float32
    assert step.pseudo_labels.tolist() == [row.index(max(row)) for row in q]


@pytest.mark.parametrize("name", ["mixmatch", "remixmatch"])
def test_guessing_labels_does_not_update_batch_norm(name):
    method = make(name)
    method(batch(method))
    norms = [m for m in method.net.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert {norm.num_batches_tracked.item() for norm in norms} == {1}  # by the mixed images


def quarter_turns(image, quarters):
    for _ in range(quarters):
        image = image.transpose(1, 2).flip(1)  # a quarter turn anticlockwise
    return image


def test_s4l_rotation():
    """Section 4.1: every image in all four rotations, the labelled ones classified in each too."""
    method = make("s4l_rotation", lambda_u=0.5)
    b = batch(method)
    images, rotated, turned, classes = [*b.x, *b.u[0]], [], [], []
    for quarters in range(4):
        for i, image in enumerate(images):
            rotated.append(quarter_turns(image, quarters))
            turned.append(quarters)
            classes.append(b.y[i].item() if i < B else None)
    out = copy.deepcopy(method.net)(torch.stack(rotated))
    p = F.softmax(out.logits, dim=1).tolist()
    rotations = F.softmax(method.rotation(out.features), dim=1).tolist()
    known = [q[c] for q, c in zip(p, classes, strict=True) if c is not None]
    loss_x = -sum(map(math.log, known)) / (4 * B)
    loss_u = -sum(math.log(q[r]) for q, r in zip(rotations, turned, strict=True)) / len(turned)
    step = method(b)
    assert len(turned) == 4 * (B + MUB)
    assert step.loss.item() == pytest.approx(loss_x + 0.5 * loss_u, rel=1e-9)
    right = sum(q.index(max(q)) == r for q, r in zip(rotations, turned, strict=True))
    assert step.metrics["rotation_accuracy"].item() == pytest.approx(right / len(turned))


def test_bad_settings():
    with pytest.raises(UserError, match="ramp_end must come after"):
        make("pseudo_label", ramp_begin=0.5, ramp_end=0.5)
    with pytest.raises(UserError, match="linear"):
        make("uda", tsa="linar")
    for name in ("pi_model", "mean_teacher"):
        with pytest.raises(UserError, match="ramp"):
            make(name, ramp=0.0)
