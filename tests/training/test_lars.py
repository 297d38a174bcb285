"""LARS and the warm-up against plain loops."""

import math

import pytest
import torch
from torch import nn

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
