"""LARS and the warm-up against plain loops."""

import math

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import comatch
from comatch import planning
from comatch.errors import UserError
from comatch.planning import Request
from comatch.training.lars import Lars
from comatch.training.schedules import SCHEDULES, warmed


def test_lars_in_plain_loops():
    """Weights have the trust ratio and decay; biases are moved by plain momentum."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)).double()
    lr = torch.tensor(0.0, dtype=torch.float64)
    optimizer = Lars(list(net.parameters()), lr, momentum=0.9, weight_decay=0.01)
    own = [p.detach().clone() for p in net.parameters()]
    velocity = [torch.zeros_like(p) for p in own]
    for step in range(3):
        lr.fill_(0.5 / (step + 1))
        net.zero_grad()
        net(torch.randn(4, 3, dtype=torch.float64)).square().mean().backward()
        for i, p in enumerate(net.parameters()):
            direction = p.grad.clone()
            if p.ndim > 1:
                direction += 0.01 * own[i]
                direction *= 0.001 * own[i].norm() / direction.norm()
            velocity[i] = 0.9 * velocity[i] + direction
            own[i] = own[i] - lr * velocity[i]
        optimizer.step()
    for p, expected in zip(net.parameters(), own, strict=True):
        torch.testing.assert_close(p.detach(), expected, rtol=1e-6, atol=1e-9)


def test_a_weight_of_zeros_moves():
    weight = nn.Parameter(torch.zeros(2, 2))
    optimizer = Lars([weight], torch.tensor(1.0), momentum=0.0, weight_decay=0.1)
    weight.grad = torch.ones(2, 2)
    optimizer.step()
    assert torch.equal(weight.detach(), -torch.ones(2, 2))


def test_the_classifier_has_a_learning_rate_of_its_own(tmp_path, tiny):
    """From a run, with a recipe whose optimiser would be Muon; both rates follow the schedule."""
    options = {"labels": 20, "device": "cpu", "progress": False, "recipe": "folder"}
    del tiny["bank_size"]
    first = comatch.train("digits", steps=1, out=tmp_path / "a", settings=tiny, **options)
    settings = {**tiny, "head_lr": 0.5, "lr": 1e-12, "weight_decay": 0, "ema_decay": 0}
    again = {**options, "init": first.path, "method": "supervised"}
    run = comatch.train("digits", steps=2, out=tmp_path / "b", settings=settings, **again)
    before, after = (load_file(r.path / "model.safetensors") for r in (first, run))
    torch.testing.assert_close(before["encoder.stem.weight"], after["encoder.stem.weight"])
    assert (after["classifier.weight"] - before["classifier.weight"]).abs().max() > 1e-3
    bad = {**settings, "optimizer": "muon"}
    with pytest.raises(UserError, match="only optimizer=sgd"):
        comatch.train("digits", steps=1, out=tmp_path / "c", settings=bad, **again)
    plain = planning.plan(Request("digits", settings={}), torch.device("cpu"))
    assert plain.optim.head_lr is None


def exactly(value):
    return torch.tensor(value, dtype=torch.float64)


def test_steps_of_pcl():
    rates = [SCHEDULES["steps"](exactly(p)).item() for p in (0, 0.59, 0.61, 0.79, 0.81, 1)]
    assert rates == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


@pytest.mark.parametrize("name", ["cosine-7/16", "cosine"])
def test_warm_up_grows_linearly_and_then_follows_the_whole_schedule(name):
    schedule, steps, warm = SCHEDULES[name], 100, 10
    for step in range(steps):
        rate = warmed(schedule, exactly(step / steps), warm / steps, 1 / steps)
        whole = float(schedule(exactly(max(0, step - warm) / (steps - warm))))
        expected = min(1, (step + 1) / warm) * whole
        assert math.isclose(rate.item(), expected, rel_tol=1e-6)
    assert warmed(schedule, torch.tensor(0.3), 0.0, 0.01) == schedule(torch.tensor(0.3))
