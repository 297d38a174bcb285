"""Learning rate schedules, SGD and weight decay."""

import math

import pytest
import torch
from torch import nn

from comatch.training.optim import build_sgd, gradient_norm
from comatch.training.schedules import SCHEDULES


def test_schedules():
    half = torch.tensor(0.5)
    assert SCHEDULES["cosine-7/16"](half).item() == pytest.approx(math.cos(7 * math.pi / 32))
    assert SCHEDULES["cosine-7/16"](torch.tensor(1.0)).item() == pytest.approx(0.19509, abs=1e-5)
    assert SCHEDULES["cosine"](half).item() == pytest.approx(0.5)
    assert SCHEDULES["cosine"](torch.tensor(1.0)).item() == pytest.approx(0.0)


def test_learning_rate_follows_the_step(build_run):
    run = build_run(steps=10, lr=0.5, schedule="cosine-7/16")
    seen = []
    for step in range(4):
        run.step(step)
        seen.append(run.step.lr.item())
    expected = [0.5 * math.cos(7 * math.pi * k / (16 * 10)) for k in range(4)]
    assert seen == pytest.approx(expected, rel=1e-5)


def test_weight_decay_leaves_out_batch_norm():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    optimizer = build_sgd(net, torch.tensor(0.1), 0.9, 5e-4, decay_norms=False)
    decay = {id(p): g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    assert {decay[id(p)] for p in net[1].parameters()} == {0.0}
    assert {decay[id(p)] for i in (0, 3) for p in net[i].parameters()} == {5e-4}
    everything = build_sgd(net, torch.tensor(0.1), 0.9, 5e-4, decay_norms=True)
    assert [g["weight_decay"] for g in everything.param_groups] == [5e-4]


def test_sgd_is_nesterov():
    """Two steps by hand: v <- m v + g; theta <- theta - lr (g + m v)."""
    weight = nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    holder = nn.Module()
    holder.weight = weight
    lr = torch.tensor(0.1)
    optimizer = build_sgd(holder, lr, 0.9, 0.01, decay_norms=False)
    theta, velocity = 1.0, 0.0
    for rate in (0.1, 0.05):
        lr.fill_(rate)
        optimizer.zero_grad()
        (weight**2).sum().backward()
        optimizer.step()
        gradient = 2 * theta + 0.01 * theta
        velocity = 0.9 * velocity + gradient
        theta -= rate * (gradient + 0.9 * velocity)
        assert weight.item() == pytest.approx(theta, rel=1e-6)


def test_gradient_norm_is_not_finite_if_one_number_is_not():
    parameters = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))]
    for p in parameters:
        p.grad = torch.full_like(p, 2.0)
    assert gradient_norm(parameters).item() == pytest.approx(math.sqrt(20))
    parameters[1].grad[0] = float("nan")
    assert not gradient_norm(parameters).isfinite()
