"""One training step: eager, compiled and captured."""

import json
import warnings

import pytest
import torch
import torch._inductor.config

import comatch
from comatch import methods
from comatch.augment import policies
from comatch.errors import UserError
from comatch.methods import CoMatch
from comatch.planning import load_dataset
from comatch.training import loop, state
from comatch.training.capture import EAGER_STEPS
from comatch.training.meter import averages
from comatch.training.run_folder import RunFolder
from helpers import VARIANTS

pytestmark = pytest.mark.slow


def take_steps(run, first, last):
    for step in range(first, last):
        run.step(step)


def load_test(run, folder):
    recipe = run.recipe
    return load_dataset(recipe.reading, folder, progress=False).test


@pytest.mark.parametrize(
    ("method", "settings"),
    [("supervised", {}), *(("comatch", settings) for settings in ({}, *VARIANTS.values()))],
)
def test_training_loss_falls(tmp_path, tiny, method, settings):
    if method == "supervised":
        del tiny["bank_size"]
    run = comatch.train(
        "digits", labels=20, method=method, steps=30, out=tmp_path / "run", progress=False,
        settings={**tiny, "lr": 0.1, "log_every": 1, **settings},
    )  # fmt: skip
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss_x"] for line in lines if line["kind"] == "train"]
    assert sum(losses[-3:]) < 0.6 * sum(losses[:3])


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
    saved = torch.load(out / "last.pt", weights_only=True)
    assert saved["step"] == 3  # written every third step; the sixth went wrong
    assert all(v.isfinite().all() for v in saved["method"].values())
    assert comatch.load(out).predict(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))


# ------------------------------------------------------------------------- addresses stay


def addresses(run):
    """The addresses of everything that a captured step writes and the next one reads."""
    momentum = [s["momentum_buffer"] for s in run.step.optimizer.state.values()]
    tensors = [*run.method.parameters(), *run.method.buffers(), *run.feed.buffers(), *momentum]
    return [tensor.data_ptr() for tensor in [*tensors, run.step.lr, run.step.meter.sums]]


@pytest.mark.parametrize("variant", [None, *VARIANTS])
def test_no_tensor_of_a_step_changes_its_address(build_run, tmp_path, variant):
    """Neither steps nor evaluating, reading the meter and saving between them move anything."""
    run = build_run(**VARIANTS.get(variant, {}))
    take_steps(run, 0, 2)
    before = addresses(run)
    loop.evaluate(run, {"": load_test(run, tmp_path)}, last=False)
    run.step.meter.read()
    state.save(RunFolder(tmp_path), run, 2, 0.0, 0)
    run.step(2)
    assert addresses(run) == before


# ---------------------------------------------------------------- compiled and captured steps


@pytest.fixture
def same_draws():
    """Compiled steps draw the same random numbers as eager ones."""
    torch._dynamo.reset()
    with torch._inductor.config.patch(fallback_random=True):
        yield


@pytest.fixture
def fixed_views(monkeypatch):
    """Views without random numbers: runs then differ by rounding alone."""
    torch._dynamo.reset()
    views = {
        "weak": lambda images, _: images,
        "strong": lambda images, _: images.roll(3, 3),
        "contrast": lambda images, _: images.roll(3, 2),
    }
    monkeypatch.setattr(policies, "POLICIES", views)


@pytest.mark.usefixtures("same_draws")
def test_compiled_step_agrees_with_eager(build_run):
    runs = [build_run(engine=engine, precision="fp32") for engine in ("eager", "compiled")]
    for run in runs:
        torch.manual_seed(7)
        take_steps(run, 0, 2)
    eager, compiled = (run.method.state_dict() for run in runs)
    assert torch.equal(runs[0].feed.shuffle_u.order, runs[1].feed.shuffle_u.order)
    for name, value in eager.items():
        torch.testing.assert_close(value, compiled[name], rtol=1e-2, atol=1e-3, msg=name)


# Engines are compared by the mean loss of the first steps, because differences in rounding grow.
# On a CPU, weights that differ by 0.4 % change this loss by up to 3 %, and that of fifty steps by
# half. If nothing moved after the third step it would be 9 to 12 % more, and if every step after it
# saw the same batch, 7 to 15 % less.
COMPARED = 12


def early_loss(run):
    """The mean loss of the steps that are compared. The steps up to the fiftieth must go on."""
    torch.manual_seed(7)
    means = []
    for first, last in ((0, COMPARED), (COMPARED, 50)):
        take_steps(run, first, last)
        sums = run.step.meter.read()
        assert sums["finite_steps"] == last - first
        means.append(averages(sums)["loss"])
    assert run.method.step.item() == 50
    assert means[1] < means[0]
    if run.step.engine == "captured":
        assert run.step.run.graph is not None, run.step.run.reason
    return means[0]


@pytest.mark.cuda
@pytest.mark.usefixtures("fixed_views")
def test_captured_eager_and_unfused_steps_agree(build_run):
    """At 32 pixels, where there are fused convolution kernels."""
    losses = {}
    for kind in ("captured", "eager", "unfused"):
        engine = "captured" if kind == "captured" else "eager"
        run = build_run("cuda", image_size=32, net="wrn-10-2", engine=engine)
        run.method.net.encoder.fused = kind != "unfused"
        losses[kind] = early_loss(run)
    assert losses["captured"] == pytest.approx(losses["eager"], rel=0.05)
    assert losses["unfused"] == pytest.approx(losses["eager"], rel=0.05)


@pytest.mark.cuda
@pytest.mark.parametrize("method", methods.METHODS)
def test_every_method_is_captured(build_run, method):
    run = build_run("cuda", method, steps=30)
    take_steps(run, 0, 30)
    sums = run.step.meter.read()
    assert sums["finite_steps"] == 30
    assert run.step.run.graph is not None, run.step.run.reason


FAST_ENGINES = pytest.mark.parametrize(
    ("engine", "device"),
    [("compiled", "cpu"), pytest.param("captured", "cuda", marks=pytest.mark.cuda)],
)


@FAST_ENGINES
def test_every_step_sees_new_views_of_the_same_images(build_run, engine, device):
    run = build_run(device, engine=engine)
    run.step.schedule = torch.zeros_like  # with a learning rate of zero, only the views change
    run.feed.before_step(0)
    losses = []
    for _ in range(EAGER_STEPS + 4):
        for shuffler in (run.feed.shuffle_x, run.feed.shuffle_u):
            shuffler.cursor.zero_()
        run.step.run()
        losses.append(averages(run.step.meter.read())["loss_x"])
    assert len(set(losses)) == len(losses), losses


ALL_VARIANTS = {key: value for settings in VARIANTS.values() for key, value in settings.items()}


@pytest.mark.usefixtures("fixed_views")
@FAST_ENGINES
def test_variants_learn_the_same_on_every_engine(build_run, engine, device):
    settings = {"image_size": 32, "net": "wrn-10-2", "steps": 60, **ALL_VARIANTS}
    fast, eager = (
        early_loss(build_run(device, engine=one, **settings)) for one in (engine, "eager")
    )
    assert fast == pytest.approx(eager, rel=0.05)


@pytest.mark.cuda
def test_captured_steps_continue_after_evaluation_and_checkpoint(build_run, tmp_path):
    run = build_run("cuda", engine="captured")
    test = load_test(run, tmp_path)
    take_steps(run, 0, 6)
    graph = run.step.run.graph
    assert graph is not None
    for first in (6, 9):
        loop.evaluate(run, {"": test}, last=False)
        run.step.meter.read()
        state.save(RunFolder(tmp_path), run, first, 0.0, 0)
        take_steps(run, first, first + 3)
        sums = run.step.meter.read()
        assert sums["steps"] == sums["finite_steps"] == 3
        assert 0 < sums["loss"] < 100
    assert run.method.step.item() == 12
    assert run.step.run.graph is graph


@pytest.mark.cuda
def test_captured_steps_resume_as_eager_ones(build_run, tmp_path):
    run = build_run("cuda", engine="captured")
    take_steps(run, 0, 6)
    state.save(RunFolder(tmp_path), run, 6, 0.0, 0)
    run.step.meter.read()
    losses = []
    for engine in ("captured", "eager"):
        other = build_run("cuda", engine=engine)
        assert state.restore(RunFolder(tmp_path), other)[0] == 6
        other.step.meter.read()
        take_steps(other, 6, 26)
        assert other.method.step.item() == 26
        losses.append(averages(other.step.meter.read())["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=0.1)


@pytest.mark.cuda
def test_a_step_never_waits_for_the_gpu(build_run):
    run = build_run("cuda", engine="eager")
    take_steps(run, 0, 3)
    torch.cuda.set_sync_debug_mode("error")
    try:
        run.step(3)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.cuda
def test_a_step_that_waits_for_the_gpu_is_not_captured(build_run, monkeypatch):
    """One warning, and no step is skipped or taken twice."""
    forward = CoMatch.forward

    def waiting(self, batch):
        assert batch.x.sum().item() == batch.x.sum().item()
        return forward(self, batch)

    monkeypatch.setattr(CoMatch, "forward", waiting)
    run = build_run("cuda", engine="captured")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for step in range(EAGER_STEPS + 5):
            run.step(step)
            assert run.method.step.item() == step + 1
    assert sum("cannot be captured" in str(w.message) for w in said) == 1
    assert run.step.run.graph is None
    sums = run.step.meter.read()
    assert sums["steps"] == sums["finite_steps"] == EAGER_STEPS + 5
