"""The contract of a method. A new method is tested because it is in METHODS."""

import copy
import dataclasses

import pytest
import torch
import torch._inductor.config

import comatch
from comatch import methods
from comatch.augment.policies import POLICIES
from comatch.nets import build_encoder
from comatch.types import Task
from helpers import SMALL, random_batches

CLASSES, B, MU = 4, 8, 2
TASK = Task(CLASSES, steps=10, unlabelled=20)
ALL = {**methods.METHODS, **methods.PRETRAINING}


def build(name):
    torch.manual_seed(0)
    config = dataclasses.replace(methods.config(name), **SMALL.get(name, {}))
    return methods.build(config, build_encoder("wrn-10-1", 8), TASK).double()


def batches(method, count):
    labelled = B if method.uses_labels else 0
    return random_batches(count, labelled, B * MU, len(method.views), CLASSES, TASK.unlabelled)


def forward(method, batch):
    """With random numbers that depend on the step alone."""
    torch.manual_seed(int(method.step))
    return method(batch)


def take(method, batch, lr=0.1):
    """One step of SGD."""
    step = forward(method, batch)
    method.zero_grad()
    step.loss.backward()
    with torch.no_grad():
        for p in method.parameters():
            if p.requires_grad and p.grad is not None:
                p.sub_(lr * p.grad)
    method.after_step(step.remember)
    return step


@pytest.fixture(params=ALL)
def method(request):
    return build(request.param)


def test_views_and_docstring(method):
    assert set(method.views) <= set(POLICIES)
    assert type(method).__doc__
    assert type(method).__doc__.splitlines()[0].endswith((".", ","))


def test_a_step_is_finite_and_changes_every_parameter(method):
    before = {n: p.detach().clone() for n, p in method.named_parameters() if p.requires_grad}
    for batch in batches(method, 3):
        step = take(method, batch)
        assert step.loss.isfinite()
        assert step.loss.shape == ()
        for value in step.metrics.values():
            assert value.shape == ()
            assert not value.requires_grad
        for name, rows in step.remember.items():
            assert callable(getattr(method, name).push)
            for tensor in rows if isinstance(rows, tuple) else (rows,):
                assert not tensor.requires_grad
    for name, p in method.named_parameters():
        if p.requires_grad:
            assert not torch.equal(p, before[name]), name
    assert method.step.item() == 3


def test_forward_writes_nothing_but_batch_norm(method):
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    before = copy.deepcopy(method.state_dict())
    method(next(batches(method, 1)))
    for name, value in method.state_dict().items():
        if not name.endswith(statistics):
            assert torch.equal(value, before[name]), name


def test_state_dict_is_the_whole_state(method):
    first, *rest = batches(method, 4)
    take(method, first)
    other = build(method.Config.method)
    other.load_state_dict(method.state_dict())
    for batch in rest:
        assert torch.equal(take(method, batch).loss, take(other, batch).loss)
    for name, value in method.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


@pytest.mark.parametrize("evaluate", ["raw", "ema"])
def test_raw_or_averaged_weights_are_evaluated(method, evaluate):
    if not method.uses_labels:
        assert method.evaluated is method.net
        return
    method.config = dataclasses.replace(method.config, evaluate=evaluate)
    assert method.evaluated is (method.net if evaluate == "raw" else method.ema.net)
    assert ("averaged" in method.evaluated_weights) == (evaluate == "ema")


def test_averaged_weights_are_evaluated_unless_the_paper_says_otherwise():
    raw = [n for n in methods.METHODS if methods.config(n).evaluate == "raw"]
    assert raw == ["comatch_momentum"]


@pytest.mark.parametrize("name", methods.METHODS)
def test_images_without_labels(build_run, name):
    """Labelled images are among them where the method's own paper has them in that loss."""
    if not methods.METHODS[name].views:
        return
    run = build_run(method=name, labels=40)
    too = name in ("vat", "pi_model", "mean_teacher", "temporal_ensembling", "distill")
    truth, labelled = run.feed.labels_u, run.feed.labels_x
    assert len(truth) == (1438 if too else 1398)
    if too:
        assert torch.equal(run.feed.images_u[-40:], run.feed.images_x)
        assert torch.equal(truth[-40:], labelled)
    assert run.method.task.unlabelled == len(truth)


@pytest.mark.slow
@torch._inductor.config.patch(fallback_random=True)  # the random numbers of eager mode
def test_compiled_agrees_with_eager_in_float64(method):
    """One graph without a break, to 1e-9 over three steps.

    Generating code takes long, so only the two forms of CoMatch do: `test_comatch` has the other.
    """
    torch._dynamo.reset()
    other = build(method.Config.method)
    backend = "inductor" if method.Config.method == "comatch_momentum" else "aot_eager"
    fast = torch.compile(other, fullgraph=True, backend=backend)
    for batch in batches(method, 3):
        eager = take(method, batch)
        torch.manual_seed(int(other.step))
        compiled = fast(batch)
        torch.testing.assert_close(eager.loss, compiled.loss, rtol=1e-9, atol=1e-11)
        other.zero_grad()
        compiled.loss.backward()
        with torch.no_grad():
            for p in other.parameters():
                if p.requires_grad:
                    p.sub_(0.1 * p.grad)
        other.after_step(compiled.remember)
    for name, value in method.state_dict().items():
        torch.testing.assert_close(value, other.state_dict()[name], rtol=1e-7, atol=1e-9)


METHOD = """
import torch
import torch.nn.functional as F
from comatch.methods import Method, Step

class HardLabels(Method):
    views = ("weak", "strong")

    def forward(self, batch):
        weak, strong = batch.u
        x, w, s = self.logits(batch.x, weak, strong)
        labels = w.detach().argmax(1)
        return Step(F.cross_entropy(x, batch.y) + F.cross_entropy(s, labels), {}, {}, labels)
"""


def test_a_method_in_a_file(tmp_path, tiny):
    file = tmp_path / "hard_labels.py"
    file.write_text(METHOD)
    del tiny["bank_size"]
    options = {"labels": 20, "method": str(file), "steps": 4, "progress": False, "settings": tiny}
    run = comatch.train("digits", **options, out=tmp_path / "run")
    assert run.summary["method"] == "hard_labels"
    assert comatch.load(run).predict(torch.zeros(2, 3, 8, 8, dtype=torch.uint8)).labels
    again = comatch.train("digits", **options, out=tmp_path / "run", resume=True)
    assert again.summary == run.summary


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist"),
        ("x = 1", "must define one subclass of comatch.methods.Method, not 0"),
        (METHOD + METHOD.replace("HardLabels", "Other"), "not 2"),
        ("import nowhere_to_be_found", "cannot be imported: ModuleNotFoundError"),
        ("def forward(:", "cannot be imported: SyntaxError"),
    ],
)
def test_a_file_without_a_usable_method(tmp_path, cli, content, message):
    file = tmp_path / "mine.py"
    if content is not None:
        file.write_text(content)
    code, _, err = cli("train", "digits", "--method", file)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
