"""The step's parts: learning rate, weight decay, metrics, engines, and what happens with NaN."""

import contextlib
import copy
import json
import math
import threading
import warnings
from types import SimpleNamespace

import pytest
import torch
import torch._inductor.config
from torch import nn

import comatch
from comatch import methods, recipes
from comatch.api import open_data
from comatch.augment import policies
from comatch.config import replace, settings_of
from comatch.data import splits
from comatch.errors import UserError
from comatch.methods import CoMatch
from comatch.training import loop, schedules
from comatch.training.build import assemble
from comatch.training.journal import averages
from comatch.training.optim import build_sgd, gradient_norm
from comatch.training.run_folder import RunFolder
from comatch.training.schedules import SCHEDULES
from comatch.training.step import EAGER_STEPS, Captured, Meter, choose_engine, score


def assembly(tmp_path, tiny, device="cpu", **settings):
    recipe = replace(recipes.get("digits", "comatch"), **{**tiny, "labels": 20, **settings})
    torch.manual_seed(recipe.seed)
    dataset = open_data(recipe, tmp_path)
    return assemble(recipe, dataset, splits.make(dataset, recipe), torch.device(device))


def test_a_crop_of_almost_nothing_is_refused(tmp_path, tiny):
    with pytest.raises(UserError, match=r"comatch learns from crops.*image_size=8"):
        assembly(tmp_path, {**tiny, "image_size": 7})


def test_schedules():
    half = torch.tensor(0.5)
    assert SCHEDULES["cosine-7/16"](half).item() == pytest.approx(math.cos(7 * math.pi / 32))
    assert SCHEDULES["cosine-7/16"](torch.tensor(1.0)).item() == pytest.approx(0.19509, abs=1e-5)
    assert SCHEDULES["cosine"](half).item() == pytest.approx(0.5)
    assert SCHEDULES["constant"](half).item() == 1.0
    assert SCHEDULES["linear"](torch.tensor(0.25)).item() == 0.75
    shares = torch.tensor([0.0, 0.6, 5 / 6, 1.0])
    torch.testing.assert_close(SCHEDULES["trapezoid"](shares), torch.tensor([1.0, 1.0, 0.5, 0.0]))


@pytest.mark.parametrize("name", SCHEDULES)
def test_warming_up_leads_to_every_schedule(name):
    schedule, warm = SCHEDULES[name], schedules.build(name, 0.2)
    for share in (0.0, 0.05, 0.1, 0.2, 0.5, 1.0):
        expected = schedule(torch.tensor(share)).item() * min(1, share / 0.2)
        assert warm(torch.tensor(share)).item() == pytest.approx(expected, abs=1e-6)
    assert schedules.build(name) is schedule


def test_learning_rate_follows_the_step(tmp_path, tiny):
    run = assembly(tmp_path, tiny, steps=10, lr=0.5, schedule="cosine-7/16")
    seen = []
    for step in range(4):
        run.step(step)
        seen.append(run.step.lr.item())
    expected = [0.5 * math.cos(7 * math.pi * k / (16 * 10)) for k in range(4)]
    assert seen == pytest.approx(expected, rel=1e-5)


def test_learning_rate_warms_up(tmp_path, tiny):
    run = assembly(tmp_path, tiny, steps=10, lr=0.5, schedule="linear", warmup=0.4)
    before = {n: p.detach().clone() for n, p in run.method.net.named_parameters()}
    seen = []
    for step in range(6):
        run.step(step)
        seen.append(run.step.lr.item())
        if step == 0:  # at a learning rate of zero, nothing moves
            assert all(torch.equal(p, before[n]) for n, p in run.method.net.named_parameters())
    assert seen == pytest.approx([0.0, 0.1125, 0.2, 0.2625, 0.3, 0.25], rel=1e-5)


# What the paper does not have, each of them switched on.
LEVERS = {
    "adaptive": {"selection": "adaptive"},
    "classwise": {"selection": "classwise"},
    "soft": {"selection": "soft", "hard_labels": True, "hard_from": 0.1},
    "warmups": {"warmup": 0.2, "ema_warmup": True, "schedule": "linear"},
    "muon": {"optimizer": "muon"},
}


@pytest.mark.parametrize("lever", LEVERS)
def test_every_lever_learns(tmp_path, tiny, lever):
    run = comatch.train(
        "digits", labels=20, steps=30, out=tmp_path / "run", progress=False,
        settings={**tiny, "lr": 0.1, "log_every": 1, **LEVERS[lever]},
    )  # fmt: skip
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss_x"] for line in lines if line["kind"] == "train"]
    assert sum(losses[-3:]) < 0.6 * sum(losses[:3])


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


def metrics(loss, finite=1.0):
    values = {"steps": 1.0, "finite_steps": finite, "loss": loss}
    return {name: torch.tensor(value) for name, value in values.items()}


def test_meter_never_moves():
    """A captured CUDA graph writes to the address it saw first."""
    meter = Meter()
    meter.add(metrics(1.0))
    address = meter.sums.data_ptr()
    meter.read()
    meter.add(metrics(2.0))
    assert meter.sums.data_ptr() == address
    assert meter.read()["loss"] == 2.0


def test_meter_state_round_trips():
    """The other goes on where the first one was, and they share nothing."""
    meter, other = Meter(), Meter()
    meter.add(metrics(1.0))
    meter.add(metrics(float("nan"), finite=0.0))
    other.load_state_dict(copy.deepcopy(meter.state_dict()), torch.device("cpu"))
    assert other.bad_steps() == meter.bad_steps() == 1
    other.add(metrics(1.0))
    assert other.read()["steps"] == 3.0
    assert meter.read()["steps"] == 2.0


def test_an_unused_meter_round_trips():
    meter, other = Meter(), Meter()
    assert meter.bad_steps() == 0
    other.load_state_dict(meter.state_dict(), torch.device("cpu"))
    assert other.read() == {}
    other.add(metrics(4.0))
    assert other.read() == {"steps": 1.0, "finite_steps": 1.0, "loss": 4.0}


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


@pytest.fixture
def same_draws():
    """Compiled steps draw the random numbers that eager ones draw."""
    torch._dynamo.reset()
    with torch._inductor.config.patch(fallback_random=True):
        yield


@pytest.fixture
def no_chance(monkeypatch):
    """Views that draw no random numbers, in whatever order: what is left to differ is rounding."""
    torch._dynamo.reset()
    views = {
        "weak": lambda images, _: images,
        "strong": lambda images, _: images.roll(3, 3),
        "contrast": lambda images, _: images.roll(3, 2),
    }
    monkeypatch.setattr(policies, "POLICIES", views)


@pytest.mark.usefixtures("no_chance")
def test_labelled_images_are_seen_in_the_view_that_is_set(tmp_path, tiny):
    weak, strong = (
        assembly(tmp_path, {**tiny, "labelled_view": view}).step.draw()[0]
        for view in ("weak", "strong")
    )
    assert torch.equal(strong.x, weak.x.roll(3, 3))
    assert not torch.equal(strong.x, weak.x)
    assert all(torch.equal(a, b) for a, b in zip(strong.u, weak.u, strict=True))


@pytest.mark.slow
@pytest.mark.usefixtures("same_draws")
def test_compiled_step_agrees_with_eager(tmp_path, tiny):
    """Augmentation, forward and backward compiled: same draws, same weights but for rounding."""
    tiny["precision"] = "fp32"  # what bf16 rounds is left to the compiler
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


def test_choosing_an_engine():
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert choose_engine("auto", cpu) == "eager"
    assert choose_engine("auto", cuda) == choose_engine("captured", cuda) == "captured"
    assert choose_engine("compiled", cpu) == "compiled"
    with pytest.warns(UserWarning, match="only a GPU"):
        assert choose_engine("captured", cpu) == "eager"


class Engine:
    """A GPU that counts: steps while one is captured are recorded, and taken when replayed."""

    def __init__(self, monkeypatch, capturable=True, waits=False):
        self.capturable, self.waits = capturable, waits
        self.mode = "default"
        self.capturing = False
        self.taken = self.recorded = self.replayed = 0
        nothing = SimpleNamespace(wait_stream=lambda stream: None)
        monkeypatch.setattr(torch.cuda, "Stream", lambda: nothing)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: nothing)
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=self.replay))
        monkeypatch.setattr(torch.cuda, "graph", self.graph)
        monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: self.mode)
        monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", self.set_mode)

    def set_mode(self, mode):
        self.mode = mode

    @contextlib.contextmanager
    def graph(self, graph, stream, capture_error_mode):
        self.capturing = True
        try:
            yield
        finally:
            self.capturing = False

    def take(self):
        if self.waits and self.mode == "warn":
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        if not self.capturing:
            self.taken += 1
            return
        self.recorded += 1
        if not self.capturable:
            raise RuntimeError("operation not permitted when stream is capturing\nDetails follow.")

    def replay(self):
        self.replayed += 1

    def calls(self, count):
        """Calls a step so often; each call takes exactly one, also that which captures."""
        step = Captured(self.take)
        for call in range(1, count + 1):
            step()
            assert self.taken + self.replayed == call


def test_captured_steps_are_replayed(monkeypatch):
    engine = Engine(monkeypatch)
    engine.calls(10)
    assert engine.mode == "default"
    assert (engine.taken, engine.recorded, engine.replayed) == (EAGER_STEPS, 1, 10 - EAGER_STEPS)


def test_a_step_that_cannot_be_captured_is_still_taken(monkeypatch):
    """It is tried once, and said in one line."""
    engine = Engine(monkeypatch, capturable=False)
    with pytest.warns(UserWarning, match="cannot be captured") as said:
        engine.calls(10)
    assert len(said) == 1
    assert "\n" not in str(said[0].message)
    assert (engine.taken, engine.recorded, engine.replayed) == (10, 1, 0)


def test_a_step_that_waits_is_never_captured(monkeypatch):
    """A capture that is known to fail is not even tried."""
    engine = Engine(monkeypatch, waits=True)
    with pytest.warns(UserWarning, match="cannot be captured.*waits for the GPU") as said:
        engine.calls(10)
    assert len(said) == 1
    assert engine.mode == "default"
    assert (engine.taken, engine.recorded, engine.replayed) == (10, 0, 0)


def test_others_may_wait_meanwhile(monkeypatch):
    """Threads that prepare the next batches do wait for the GPU, and hold no step up."""
    engine = Engine(monkeypatch, waits=True)
    take = engine.take

    def with_another():
        engine.waits = True
        thread = threading.Thread(target=take)
        thread.start()
        thread.join()
        engine.waits, engine.taken = False, engine.taken - (not engine.capturing)
        take()

    engine.take = with_another
    engine.calls(10)
    assert engine.replayed == 10 - EAGER_STEPS


def addresses(run):
    """Of everything that a captured step writes to and the next one reads."""
    momentum = [s["momentum_buffer"] for s in run.step.optimizer.state.values()]
    kept = [*run.method.parameters(), *run.method.buffers(), *run.data.buffers(), *momentum]
    return [tensor.data_ptr() for tensor in [*kept, run.step.lr, run.step.meter.sums]]


@pytest.mark.parametrize("lever", [None, *LEVERS])
def test_nothing_that_a_step_writes_to_moves(tmp_path, tiny, lever):
    """Neither by steps, nor by evaluating, reading the meter and saving between them."""
    run = assembly(tmp_path, tiny, **LEVERS.get(lever, {}))
    for step in range(2):
        run.step(step)
    before = addresses(run)
    loop.evaluate(run, {"": open_data(run.step.recipe, tmp_path).test})
    run.step.meter.read()
    loop.save(RunFolder(tmp_path), run, 2, 0.0, 0)
    run.step(2)
    assert addresses(run) == before


def steps(run, first, last):
    for step in range(first, last):
        run.step(step)


# What compiling and capturing may change is compared by the mean loss of the first steps, because
# differences in rounding grow. On a CPU, weights that differ by 0.4 % change it by up to 3 %, and
# that of fifty steps by half. If nothing moved after the third step it would be 9 to 12 % more, and
# if every step after it saw the same batch, 7 to 15 % less.
COMPARED = 12


def early_loss(run):
    """The mean loss of the steps that are compared; those up to the fiftieth go on learning."""
    torch.manual_seed(7)
    means = []
    for first, last in ((0, COMPARED), (COMPARED, 50)):
        steps(run, first, last)
        sums = run.step.meter.read()
        assert sums["finite_steps"] == last - first
        means.append(averages(sums)["loss"])
    assert run.method.step.item() == 50
    assert means[1] < means[0]
    if run.step.engine == "captured":
        assert run.step._go.graph is not None, run.step._go.reason
    return means[0]


@pytest.mark.cuda
@pytest.mark.usefixtures("no_chance")
def test_captured_eager_and_plain_steps_learn_the_same(tmp_path, tiny):
    """At 32 pixels, where the kernels have convolutions of their own."""
    losses = {}
    for kind in ("captured", "eager", "plain"):
        engine = "captured" if kind == "captured" else "eager"
        run = assembly(
            tmp_path, {**tiny, "image_size": 32, "net": "wrn-10-2"}, "cuda", engine=engine
        )
        run.method.net.encoder.fused = kind != "plain"
        losses[kind] = early_loss(run)
    assert losses["captured"] == pytest.approx(losses["eager"], rel=0.05)
    assert losses["plain"] == pytest.approx(losses["eager"], rel=0.05)


@pytest.mark.cuda
@pytest.mark.parametrize("method", methods.METHODS)
def test_every_method_is_captured(tmp_path, tiny, method):
    recipe = recipes.get("digits", method)
    known = {**settings_of(recipe), **settings_of(recipe.method)}
    recipe = replace(recipe, **{k: v for k, v in tiny.items() if k in known}, labels=20, steps=30)
    dataset = open_data(recipe, tmp_path)
    torch.manual_seed(0)
    run = assemble(recipe, dataset, splits.make(dataset, recipe), torch.device("cuda"))
    steps(run, 0, 30)
    sums = run.step.meter.read()
    assert sums["finite_steps"] == 30
    assert run.step._go.graph is not None, run.step._go.reason


FAST_ENGINES = pytest.mark.parametrize(
    ("engine", "device"),
    [("compiled", "cpu"), pytest.param("captured", "cuda", marks=pytest.mark.cuda)],
)


@FAST_ENGINES
def test_the_same_images_are_seen_in_new_views_at_every_step(tmp_path, tiny, engine, device):
    run = assembly(tmp_path, tiny, device, engine=engine)
    run.step.schedule = torch.zeros_like  # nothing is learned: what is left to differ are views
    run.data.before_step(0)
    losses = []
    for _ in range(EAGER_STEPS + 4):
        for shuffler in (run.data.shuffle_x, run.data.shuffle_u):
            shuffler.cursor.zero_()
        run.step._go()
        losses.append(averages(run.step.meter.read())["loss_x"])
    assert len(set(losses)) == len(losses), losses


@pytest.mark.slow
@pytest.mark.usefixtures("no_chance")
@pytest.mark.parametrize("lever", LEVERS)
@FAST_ENGINES
def test_every_lever_is_compiled_and_captured(tmp_path, tiny, engine, device, lever):
    """And learns what it learns eagerly."""
    settings = {**tiny, "image_size": 32, "net": "wrn-10-2", "steps": 60, **LEVERS[lever]}
    fast, eager = (
        early_loss(assembly(tmp_path, settings, device, engine=one)) for one in (engine, "eager")
    )
    assert fast == pytest.approx(eager, rel=0.05)


@pytest.mark.cuda
def test_captured_steps_survive_what_happens_between_them(tmp_path, tiny):
    """Evaluation, reading the meter and writing a checkpoint."""
    run = assembly(tmp_path, tiny, "cuda", engine="captured")
    test = open_data(run.step.recipe, tmp_path).test
    steps(run, 0, 6)
    graph = run.step._go.graph
    assert graph is not None
    for first in (6, 9):
        loop.evaluate(run, {"": test})
        run.step.meter.read()
        loop.save(RunFolder(tmp_path), run, first, 0.0, 0)
        steps(run, first, first + 3)
        sums = run.step.meter.read()
        assert sums["steps"] == sums["finite_steps"] == 3
        assert 0 < sums["loss"] < 100
    assert run.method.step.item() == 12
    assert run.step._go.graph is graph


@pytest.mark.cuda
def test_captured_steps_go_on_from_a_checkpoint_as_eager_ones(tmp_path, tiny):
    run = assembly(tmp_path, tiny, "cuda", engine="captured")
    steps(run, 0, 6)
    loop.save(RunFolder(tmp_path), run, 6, 0.0, 0)
    run.step.meter.read()
    losses = []
    for engine in ("captured", "eager"):
        other = assembly(tmp_path, tiny, "cuda", engine=engine)
        assert loop.restore(RunFolder(tmp_path), other, 0)[0] == 6
        other.step.meter.read()
        steps(other, 6, 26)
        assert other.method.step.item() == 26
        losses.append(averages(other.step.meter.read())["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=0.1)


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


@pytest.mark.cuda
def test_a_step_that_waits_for_the_gpu_runs_uncaptured(tmp_path, tiny, monkeypatch):
    """One warning, and no step is lost or taken twice."""
    forward = CoMatch.forward

    def waiting(self, batch):
        assert batch.x.sum().item() == batch.x.sum().item()
        return forward(self, batch)

    monkeypatch.setattr(CoMatch, "forward", waiting)
    run = assembly(tmp_path, tiny, "cuda", engine="captured")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for step in range(EAGER_STEPS + 5):
            run.step(step)
            assert run.method.step.item() == step + 1
    assert sum("cannot be captured" in str(w.message) for w in said) == 1
    assert run.step._go.graph is None
    sums = run.step.meter.read()
    assert sums["steps"] == sums["finite_steps"] == EAGER_STEPS + 5
