"""Temporal ensembling against a reference with a list of predictions for each image."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from comatch import methods
from comatch.errors import UserError
from comatch.nets import WideResNet
from comatch.types import Batch, Task

CLASSES, B, MUB, IMAGES = 3, 4, 7, 12


def make(steps=10, **settings):
    torch.manual_seed(0)
    config = methods.find("temporal_ensembling").Config(**settings)
    method = methods.build(config, WideResNet(10, 1), Task(CLASSES, steps, IMAGES)).double()
    with torch.no_grad():
        method.net.classifier.weight.mul_(10)  # predictions that differ from each other
    return method


def batch(seed):
    generator = torch.Generator().manual_seed(seed)
    x, u = (torch.randn(n, 3, 8, 8, generator=generator, dtype=torch.float64) for n in (B, MUB))
    y = torch.randint(CLASSES, (B,), generator=generator)
    return Batch(x, y, (u,), torch.randperm(IMAGES, generator=generator)[:MUB])


def target_of(predictions, alpha):
    """The paper's Z after these predictions, with its bias correction."""
    z = [0.0] * CLASSES
    for p in predictions:
        z = [alpha * a + (1 - alpha) * b for a, b in zip(z, p, strict=True)]
    return [a / (1 - alpha ** len(predictions)) for a in z]


def test_against_lists_of_predictions():
    method = make(alpha=0.6, lambda_u=2.4, ramp=0.5)
    earlier = [[] for _ in range(IMAGES)]
    for step in range(6):
        b = batch(step)
        logits = copy.deepcopy(method.net)(torch.cat([b.x, *b.u])).logits
        loss_x = F.cross_entropy(logits[:B], b.y).item()
        p = F.softmax(logits[B:], dim=1).tolist()
        total, seen = 0.0, 0
        for image, own in zip(b.rows.tolist(), p, strict=True):
            if earlier[image]:
                target = target_of(earlier[image], 0.6)
                total += sum((a - t) ** 2 for a, t in zip(own, target, strict=True)) / CLASSES
                seen += 1
        weight = 2.4 * math.exp(-5 * (1 - min(1, step / 10 / 0.5)) ** 2)

        result = method(b)
        assert result.loss.item() == pytest.approx(loss_x + weight * total / MUB, rel=1e-6)
        assert result.metrics["loss_u"].item() == pytest.approx(total / MUB, rel=1e-9)
        assert result.metrics["seen"].item() == pytest.approx(seen / MUB)
        method.after_step(result.remember)
        for image, own in zip(b.rows.tolist(), p, strict=True):
            earlier[image].append(own)
    assert min(map(len, earlier)) >= 1
    assert max(map(len, earlier)) >= 4


def test_an_image_has_no_loss_the_first_time():
    method = make(lambda_u=1000.0, ramp=0.01)
    method.step.fill_(5)
    b = batch(0)
    step = method(b)
    assert step.metrics["loss_u"].item() == 0
    assert step.metrics["seen"].item() == 0
    supervised = F.cross_entropy(copy.deepcopy(make().net)(torch.cat([b.x, *b.u])).logits[:B], b.y)
    assert step.loss.item() == pytest.approx(supervised.item(), rel=1e-9)


def test_no_gradient_flows_to_the_memory():
    method = make()
    b = batch(0)
    method.after_step(method(b).remember)
    step = method(b)
    step.loss.backward()
    assert not any(buffer.requires_grad for buffer in method.buffers())


def test_resume_is_bit_exact():
    method = make()
    for seed in range(3):
        method.after_step(method(batch(seed)).remember)
    other = make()
    other.load_state_dict(method.state_dict())
    for seed in range(3, 6):
        steps = method(batch(seed)), other(batch(seed))
        assert torch.equal(steps[0].loss, steps[1].loss)
        method.after_step(steps[0].remember)
        other.after_step(steps[1].remember)
    for name, value in method.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def test_bad_settings():
    for settings in ({"alpha": 1.0}, {"alpha": -0.1}, {"ramp": 0.0}):
        with pytest.raises(UserError, match=next(iter(settings))):
            make(**settings)
