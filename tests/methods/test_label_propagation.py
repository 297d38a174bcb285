"""Label propagation: its labels, its loss, and when it propagates."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from comatch import methods
from comatch.errors import UserError
from comatch.nets import WideResNet
from comatch.types import UNLABELLED, AllImages, Batch, Task

CLASSES, B, MUB, IMAGES, LABELLED = 3, 4, 7, 30, 6
BUFFERS = ("label", "certainty", "class_weight")


def make(steps=10, **settings):
    torch.manual_seed(0)
    config = methods.find("label_propagation").Config(**{"neighbours": 4, **settings})
    task = Task(CLASSES, steps, IMAGES)
    return methods.build(config, WideResNet(10, 1), task).double()


def everything(seed=2, chunk=11):
    generator = torch.Generator().manual_seed(seed)
    x, u = (
        torch.randn(n, 3, 8, 8, generator=generator, dtype=torch.float64)
        for n in (LABELLED, IMAGES)
    )
    return AllImages(x.split(chunk), torch.arange(LABELLED) % CLASSES, u.split(chunk))


def batch(seed=1):
    generator = torch.Generator().manual_seed(seed)
    x, u = (torch.randn(n, 3, 8, 8, generator=generator, dtype=torch.float64) for n in (B, MUB))
    y = torch.randint(CLASSES, (B,), generator=generator)
    return Batch(x, y, (u,), torch.randperm(IMAGES, generator=generator)[:MUB])


def state(method):
    return {name: value.clone() for name, value in method.state_dict().items()}


def test_propagated_labels_against_dense_matrices():
    """From images to class weights, all images at once."""
    method = make(iterations=200)
    seen = everything()
    method.refresh(seen)

    net = copy.deepcopy(method.net).eval()
    with torch.no_grad():
        v = net(torch.cat([*seen.x, *seen.u])).features
    v = v / v.norm(dim=1, keepdim=True)
    n = len(v)
    a = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        similar = v @ v[i]
        similar[i] = -2
        for j in similar.argsort(descending=True)[:4].tolist():
            a[i, j] = similar[j].clamp(min=0) ** 3
    w = a + a.T
    scale = torch.diag(w.sum(1) ** -0.5)
    y = torch.zeros(n, CLASSES, dtype=torch.float64)
    for i, c in enumerate(seen.y.tolist()):
        y[i, c] = 1
    z = torch.linalg.solve(torch.eye(n, dtype=torch.float64) - 0.99 * scale @ w @ scale, y)

    count = [LABELLED / CLASSES] * CLASSES
    for i in range(IMAGES):
        row = z[LABELLED + i].tolist()
        shares = [value / sum(row) for value in row]
        entropy = -sum(s * math.log(s) for s in shares)
        label = row.index(max(row))
        count[label] += 1
        assert method.label[i].item() == label
        assert method.certainty[i].item() == pytest.approx(1 - entropy / math.log(3), abs=1e-7)
    mean = sum(1 / c for c in count) / CLASSES
    assert method.class_weight.tolist() == pytest.approx([1 / c / mean for c in count])
    assert len(set(method.label.tolist())) > 1


def test_loss_image_by_image():
    method = make()
    method.refresh(everything())
    method.label[3] = UNLABELLED
    method.certainty[3] = 0
    b = batch()._replace(rows=torch.tensor([3, 9, 0, 21, 7, 29, 14]))
    logits = copy.deepcopy(method.net)(torch.cat([b.x, *b.u])).logits
    log_p = F.log_softmax(logits, dim=1).tolist()
    weight = method.class_weight.tolist()
    loss_x = sum(-weight[c] * log_p[i][c] for i, c in enumerate(b.y.tolist())) / B
    loss_u, labels = 0.0, []
    for i, image in enumerate(b.rows.tolist()):
        c = method.label[image].item()
        labels.append(c)
        if c != UNLABELLED:
            loss_u -= method.certainty[image].item() * weight[c] * log_p[B + i][c] / MUB
    step = method(b)
    assert step.loss.item() == pytest.approx(loss_x + loss_u, rel=1e-9)
    assert step.metrics["loss_u"].item() == pytest.approx(loss_u, rel=1e-9)
    assert loss_u > 0
    assert step.pseudo_labels.tolist() == labels
    assert labels[0] == UNLABELLED


def test_before_the_first_propagation_it_is_supervised():
    method = make()
    b = batch()
    logits = copy.deepcopy(method.net)(torch.cat([b.x, *b.u])).logits[:B]
    step = method(b)
    assert step.loss.item() == pytest.approx(F.cross_entropy(logits, b.y).item(), rel=1e-9)
    assert set(step.pseudo_labels.tolist()) == {UNLABELLED}
    step.loss.backward()
    assert all(p.grad.isfinite().all() for p in method.net.parameters())


@pytest.mark.parametrize(
    ("steps", "warm_up", "refreshes", "expected"),
    [
        (10, 0.2, 4, [2, 4, 6, 8]),
        (10, 0.2, 3, [2, 5, 8]),
        (10, 0.2, 8, range(2, 10)),
        (10, 0.2, 100, range(2, 10)),
        (10, 0.0, 1, [0]),
        (10, 0.99, 5, [9]),
        (1, 0.5, 5, [0]),
        (800, 0.1, 3, [80, 320, 560]),
    ],
)
def test_labels_are_propagated_evenly_after_the_warm_up(steps, warm_up, refreshes, expected):
    method = make(steps, warm_up=warm_up, refreshes=refreshes)
    assert [step for step in range(steps) if method.due(step)] == list(expected)


def test_before_step_propagates_when_it_is_due(monkeypatch):
    method = make(steps=10, warm_up=0.2, refreshes=3)
    seen, refreshed = everything(), []
    monkeypatch.setattr(method, "refresh", lambda images: refreshed.append(images is seen))
    for step in range(10):
        method.before_step(step, seen)
        assert len(refreshed) == sum(step >= due for due in (2, 5, 8))
    assert all(refreshed)


def test_propagation_changes_only_its_buffers():
    """Mode, precision, batch norm statistics, random state and addresses stay the same."""
    method = make(warm_up=0.0)
    method.net.compute_dtype = torch.bfloat16
    before, random = state(method), torch.get_rng_state()
    addresses = [getattr(method, name).data_ptr() for name in BUFFERS]
    for training in (True, False):
        method.train(training)
        method.before_step(0, everything())
        assert all(module.training == training for module in method.net.modules())
        assert method.net.compute_dtype == torch.bfloat16
    assert torch.equal(torch.get_rng_state(), random)
    assert [getattr(method, name).data_ptr() for name in BUFFERS] == addresses
    for name, value in method.state_dict().items():
        assert torch.equal(value, before[name]) == (name not in BUFFERS), name
    assert not any(buffer.requires_grad for buffer in method.buffers())


def test_chunks_of_images_make_no_difference():
    method = make()
    with torch.no_grad():
        whole = method.features(everything(chunk=IMAGES).u)
        for chunk in (1, 7, 29):
            torch.testing.assert_close(method.features(everything(chunk=chunk).u), whole)
    torch.testing.assert_close(whole.norm(dim=1), torch.ones(IMAGES, dtype=torch.float64))


def test_more_neighbours_than_images():
    method = make(neighbours=1000)
    method.refresh(everything())
    assert method.certainty.isfinite().all()
    assert method.class_weight.isfinite().all()


def test_a_class_without_a_label():
    method, seen = make(), everything()
    method.refresh(seen._replace(y=torch.zeros_like(seen.y)))
    assert set(method.label.tolist()) == {0}
    assert method.class_weight.tolist() == [1, 0, 0]
    assert method(batch()).loss.isfinite()


def take(method, number, seen):
    method.before_step(number, seen)
    step = method(batch(number))
    method.zero_grad()
    step.loss.backward()
    with torch.no_grad():
        for p in method.net.parameters():
            p.sub_(0.1 * p.grad)
    method.after_step(step.remember)
    return step.loss


@pytest.mark.parametrize("stop", [1, 3, 4, 5])
def test_resume_is_bit_exact(stop):
    """Before the first propagation, between two, and right at one: they are at 2, 4 and 6."""
    method, other = (make(steps=8, warm_up=0.25, refreshes=3) for _ in range(2))
    seen = everything()
    for number in range(stop):
        take(method, number, seen)
    other.load_state_dict(state(method))
    for number in range(stop, 8):
        assert torch.equal(take(method, number, seen), take(other, number, seen))
    for name, value in method.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
    assert (method.label >= 0).all()


def test_true_labels_of_unlabelled_images_are_never_used(build_run):
    """With other true labels a run is the same, and only its metrics differ."""
    states, scores = [], []
    for shift in (0, 1):
        run = build_run(method="label_propagation", steps=6, warm_up=0.3, refreshes=2)
        run.feed.labels_u.copy_((run.feed.labels_u + shift) % 10)
        for step in range(6):
            run.step(step)
        states.append(run.method.state_dict())
        scores.append(run.step.meter.read())
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name
    assert (states[0]["label"] >= 0).any()
    assert scores[0]["right"] != scores[1]["right"]


def test_propagated_labels_are_better_than_chance(build_run):
    """Features of an untrained network already separate digits."""
    run = build_run(method="label_propagation", labels=40, steps=30)
    run.method.refresh(run.feed.everything())
    right = (run.method.label == run.feed.labels_u).double().mean()
    assert right > 0.4


def test_bad_settings():
    for name, value in (
        ("warm_up", 1.0),
        ("warm_up", -0.1),
        ("alpha", 1.0),
        ("gamma", 0.0),
        ("refreshes", 0),
        ("neighbours", 0),
        ("iterations", 0),
    ):
        with pytest.raises(UserError, match=name):
            make(**{name: value})
