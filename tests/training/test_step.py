"""The step's parts: learning rate, weight decay, metrics, engines, and what happens with NaN."""

import json
import math

import pytest
import torch
from torch import nn

import comatch
from comatch import recipes
from comatch.api import open_data
from comatch.config import replace
from comatch.data import splits
from comatch.errors import UserError
from comatch.training.assemble import assemble
from comatch.training.journal import averages
from comatch.training.optim import build_sgd, gradient_norm
from comatch.training.schedules import SCHEDULES
from comatch.training.step import Meter, score


def assembly(tmp_path, tiny, device="cpu", **settings):
    recipe = replace(recipes.get("digits", "comatch"), **{**tiny, "labels": 20, **settings})
    torch.manual_seed(recipe.seed)
    dataset = open_data(recipe, tmp_path)
    return assemble(recipe, dataset, splits.make(dataset, recipe), torch.device(device))


def test_schedules():
    half = torch.tensor(0.5)
    assert SCHEDULES["cosine-7/16"](half).item() == pytest.approx(math.cos(7 * math.pi / 32))
    assert SCHEDULES["cosine-7/16"](torch.tensor(1.0)).item() == pytest.approx(0.19509, abs=1e-5)
    assert SCHEDULES["cosine"](half).item() == pytest.approx(0.5)
    assert SCHEDULES["constant"](half).item() == 1.0


def test_learning_rate_follows_the_step(tmp_path, tiny):
    run = assembly(tmp_path, tiny, steps=10, lr=0.5, schedule="cosine-7/16")
    seen = []
    for step in range(4):
        run.step(step)
        seen.append(run.step.lr.item())
    expected = [0.5 * math.cos(7 * math.pi * k / (16 * 10)) for k in range(4)]
    assert seen == pytest.approx(expected, rel=1e-5)


def test_weight_decay_spares_batch_norm_only():
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


def test_gradient_norm_notices_one_bad_number():
    parameters = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))]
    for p in parameters:
        p.grad = torch.full_like(p, 2.0)
    assert gradient_norm(parameters).item() == pytest.approx(math.sqrt(20))
    parameters[1].grad[0] = float("nan")
    assert not gradient_norm(parameters).isfinite()


def test_pseudo_label_scores():
    pseudo, truth = torch.tensor([0, 1, -1, 2, 2]), torch.tensor([0, 2, 1, -1, 2])
    meter = Meter()
    one = torch.ones(())
    meter.add({"steps": one, "finite_steps": one, **score(pseudo, truth)})
    means = averages(meter.read())
    assert means["confident"] == pytest.approx(4 / 5)
    assert means["pseudo_accuracy"] == pytest.approx(2 / 3)  # one confident truth is not known


def test_meter_averages_over_the_interval_and_starts_again():
    meter = Meter()
    for value in (1.0, 2.0, 6.0):
        meter.add(
            {"steps": torch.ones(()), "finite_steps": torch.ones(()), "loss": torch.tensor(value)}
        )
    assert averages(meter.read()) == {"loss": 3.0}
    assert meter.read()["loss"] == 0.0


@pytest.mark.parametrize("method", ["comatch", "supervised"])
def test_training_learns(tmp_path, tiny, method):
    """Twenty real digits are soon known by heart, and the parameters have moved."""
    tiny = {k: v for k, v in tiny.items() if method == "comatch" or k != "bank_size"}
    run = comatch.train(
        "digits", labels=20, method=method, steps=30, out=tmp_path / "run", progress=False,
        settings={**tiny, "lr": 0.1, "log_every": 1},
    )  # fmt: skip
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss_x"] for line in lines if line["kind"] == "train"]
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.slow
def test_compiled_step_agrees_with_eager(tmp_path, tiny, monkeypatch):
    """Augmentation, forward and backward compiled: same draws, same weights but for rounding."""
    torch._dynamo.reset()
    monkeypatch.setattr(torch._inductor.config, "fallback_random", True)  # the draws of eager
    runs = [assembly(tmp_path, tiny, engine=engine) for engine in ("eager", "compiled")]
    for run in runs:
        torch.manual_seed(7)
        for step in range(2):
            run.step(step)
    eager, compiled = (run.method.state_dict() for run in runs)
    assert torch.equal(runs[0].data.shuffle_u.order, runs[1].data.shuffle_u.order)
    for name, value in eager.items():
        torch.testing.assert_close(value, compiled[name], rtol=1e-2, atol=1e-3, msg=name)


def test_nan_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path, tiny, monkeypatch):
    from comatch.methods import Supervised

    forward = Supervised.forward

    def poisoned(self, batch):
        step = forward(self, batch)
        bad = torch.where(self.step >= 5, torch.nan, 0.0)
        return step._replace(loss=step.loss + bad)

    monkeypatch.setattr(Supervised, "forward", poisoned)
    del tiny["bank_size"]
    out = tmp_path / "run"
    with pytest.raises(UserError, match="the last good checkpoint is kept") as error:
        comatch.train(
            "digits", labels=20, method="supervised", steps=20, out=out, progress=False,
            settings=tiny,
        )  # fmt: skip
    assert "\n" not in str(error.value)
    state = torch.load(out / "last.pt", weights_only=True)
    assert state["step"] == 3  # written every third step; the sixth went wrong
    assert all(v.isfinite().all() for v in state["method"].values())
    assert comatch.load(out).predict(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))


@pytest.mark.cuda
def test_captured_step_trains_on_the_gpu(tmp_path, tiny):
    runs = {e: assembly(tmp_path, tiny, "cuda", engine=e) for e in ("eager", "captured")}
    losses = {}
    for engine, run in runs.items():
        torch.manual_seed(7)
        for step in range(50):
            run.step(step)
        losses[engine] = averages(run.step.meter.read())
        assert run.method.step.item() == 50
    assert losses["captured"]["loss"] == pytest.approx(losses["eager"]["loss"], rel=0.05)
    assert runs["captured"].step._go.graph is not None


@pytest.mark.cuda
def test_no_host_sync_in_a_step(tmp_path, tiny):
    run = assembly(tmp_path, tiny, "cuda", engine="eager")
    for step in range(3):
        run.step(step)
    torch.cuda.set_sync_debug_mode("error")
    try:
        run.step(3)
    finally:
        torch.cuda.set_sync_debug_mode("default")
