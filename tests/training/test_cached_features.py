"""An encoder that stays as it is: its features are computed once, and only the heads learn."""

import json
import re
import signal
import time

import pytest
import torch
from safetensors.torch import load_file

import comatch
from comatch import api, evaluation, methods
from comatch.augment import policies
from comatch.commands import export as portable
from comatch.config import Recipe, replace
from comatch.data import cached_features as kept_module
from comatch.data import sources, splits
from comatch.data.cached_features import CachedFeatures
from comatch.errors import UserError
from comatch.nets import Network, build_encoder
from comatch.nets.network import Scaling
from comatch.training import init_weights as initial
from comatch.training import precompute as ahead
from comatch.training.build import assemble
from comatch.training.loop import Interrupted
from comatch.training.progress import StopRequest, TrainingBar
from comatch.training.run_folder import RunFolder
from comatch.types import Images
from helpers import TINY, assert_same, start

CPU = torch.device("cpu")
FROZEN = {**TINY, "frozen": True, "kept_views": 2}
WORDS = [word for key, value in FROZEN.items() for word in ("--set", f"{key}={value}")]
TURNING = ["remixmatch", "s4l_rotation"]
OTHERS = [name for name in methods.METHODS if name not in TURNING]


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """An encoder whose batch norm has seen something."""
    torch.manual_seed(5)
    encoder = build_encoder("wrn-10-1", 8, norm_momentum=1.0)
    encoder(torch.randn(64, 3, 8, 8))
    path = tmp_path_factory.mktemp("weights") / "encoder.pt"
    torch.save(encoder.state_dict(), path)
    return path


def train(weights, out, **options):
    settings = FROZEN | options.pop("settings", {})
    usual = {"labels": 20, "steps": 6, "device": "cpu", "progress": False, "init": weights}
    return comatch.train("digits", **(usual | options), out=out, settings=settings)


def assembled(weights, folder, method=None, **settings):
    recipe = api.plan(CPU, "digits", method, {"init": str(weights), "labels": 20}, FROZEN)
    recipe = replace(recipe, **settings)
    dataset = sources.load("digits", folder, 8)
    torch.manual_seed(recipe.seed)
    return recipe, assemble(recipe, dataset, splits.make(dataset, recipe), CPU)


def look(recipe, run, folder, stop=None):
    (folder / "run").mkdir(exist_ok=True)
    bar = TrainingBar("", 1, 0, show=False)
    stop = stop or StopRequest()
    return ahead.precompute(RunFolder(folder / "run"), recipe, run, bar, stop)


# -------------------------------------------------------------------------------- the network


def frozen_network():
    torch.manual_seed(0)
    net = Network(build_encoder("wrn-10-1", 8, norm_momentum=0.5), 3, embedding_dim=4)
    net(torch.randn(32, 3, 8, 8))
    net.freeze()
    return net


def test_features_stand_for_the_images_they_are_of():
    net = frozen_network()
    x = torch.randn(16, 3, 8, 8)
    with net.eval_mode(), torch.no_grad():
        features = net.encoder(x)
        net.scaling.measure(features)
        for said, truth in zip(net(features), net(x), strict=True):
            assert torch.equal(said, truth)
        assert not torch.equal(net(x).features, features)  # they are scaled


def test_the_encoder_stays_as_it_is_and_the_heads_learn():
    net = frozen_network()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    net.train()
    out = net(torch.randn(16, 3, 8, 8))
    (out.logits.sum() + out.embedding.sum()).backward()
    for name, parameter in net.named_parameters():
        assert (parameter.grad is None) == name.startswith("encoder"), name
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]), name  # statistics of batch norm among them
    assert net.classifier.training
    net.eval()
    assert not net.classifier.training


def test_scaled_features():
    """About zero, as wide in every direction, and as long whatever the encoder is."""
    torch.manual_seed(0)
    for width, size in ((50, 100.0), (400, 0.01)):
        features = size * (3 + torch.randn(4000, width) * torch.linspace(0.5, 2, width))
        scaling = Scaling(width)
        scaling.measure(features)
        scaled = scaling(features)
        assert scaled.mean(0).abs().max() < 1e-3
        assert scaled.std(0).max() / scaled.std(0).min() < 1.01
        assert scaled.square().sum(1).mean().sqrt().item() == pytest.approx(10, rel=1e-3)


def test_what_hardly_varies_is_not_blown_up():
    torch.manual_seed(0)
    features = torch.randn(100, 8)
    features[:, 0] = 7
    scaling = Scaling(8)
    scaling.measure(features)
    usual = scaling.scale[1:].mean()
    assert scaling.scale[0] < 5 * usual
    scaling.measure(torch.zeros(5, 8))
    assert scaling.scale.isfinite().all()


# ------------------------------------------------------------------------------- what is drawn


def kept(kinds=("weak", "strong", "weak"), labelled_view="weak", x=6, u=30, views=3):
    """Features that tell of which kind, view and image they are."""
    images = [
        Images(
            torch.zeros(n, 3, 8, 8, dtype=torch.uint8), torch.arange(n), list(map(str, range(n)))
        )
        for n in (x, u)
    ]
    data = CachedFeatures(
        *images, 4, 3, labelled_view=labelled_view, views=kinds, kept=views, width=3
    )
    for kind, number in data.passes():
        rows = torch.arange(x + u).float()
        code = {"weak": 1.0, "strong": 2.0, "contrast": 3.0}[kind]
        told = torch.stack([rows, torch.full_like(rows, code), torch.full_like(rows, number)], 1)
        data.keep(kind, number, told)
    return data


def test_a_batch_is_of_the_rows_and_kinds_that_were_asked_for():
    data, seen = kept(), set()
    for step in range(40):
        data.before_step(step)
        x, y, u, rows, truth = data.draw()
        assert torch.equal(x[:, 0].long(), y)  # labels here are rows
        assert (x[:, 1] == 1).all()
        assert torch.equal(truth, rows)
        weak, strong, other = u.unbind(1)
        for view, code in ((weak, 1), (strong, 2), (other, 1)):
            assert torch.equal(view[:, 0].long(), rows + 6)  # labelled ones come first
            assert (view[:, 1] == code).all()
        seen |= {(int(a), int(b)) for a, b in zip(weak[:, 2], other[:, 2], strict=True)}
    assert seen == {(a, b) for a in range(3) for b in range(3)}  # the same kind is drawn twice


def test_labelled_images_in_a_view_of_their_own():
    data = kept(kinds=("weak",), labelled_view="strong")
    assert {kind for kind, _ in data.passes()} == {"weak", "strong"}
    data.before_step(0)
    assert (data.draw().x[:, 1] == 2).all()


def test_what_features_are_scaled_by():
    """The labelled view, of unlabelled images too if it is one of theirs."""
    seen = kept().as_labelled()
    assert (seen[:, 1] == 1).all()
    assert set(seen[:, 0].tolist()) == set(range(36))
    seen = kept(kinds=("weak",), labelled_view="strong").as_labelled()
    assert (seen[:, 1] == 2).all()
    assert set(seen[:, 0].tolist()) == set(range(6))


def test_a_method_without_views():
    data = kept(kinds=(), u=1)
    data.before_step(0)
    drawn = data.draw()
    assert drawn.u.unbind(1) == ()
    assert {kind for kind, _ in data.passes()} == {"weak"}


def test_more_than_memory_holds(monkeypatch):
    monkeypatch.setattr(kept_module, "LARGEST", 2 * 30 * 2 * 3 + 200)
    with pytest.raises(UserError, match="--set kept_views=1, or fewer images"):
        kept(kinds=("weak", "strong"))


# ------------------------------------------------------------------------------ looking ahead


def test_features_are_what_the_encoder_says_of_the_views(weights, tmp_path):
    """The slow twin: each pass again, image by image, from its own seed."""
    recipe, run = assembled(weights, tmp_path)
    assert look(recipe, run, tmp_path)
    data, net = run.data, run.method.net
    images = torch.cat([data.images_x, data.images_u])
    passes = data.passes()
    assert len(passes) == 3 * 2
    for index, (kind, number) in enumerate(passes):
        torch.manual_seed(recipe.seed * len(passes) + index)
        policy = policies.build(kind, ahead.views_for(recipe))
        views = torch.cat([policy(chunk) for chunk in images.split(ahead.AT_ONCE)])
        with net.eval_mode(), torch.no_grad():
            some = torch.tensor([0, 19, 20, 200, len(views) - 1])
            x = policies.normalise(views[some], run.mean, run.std)
            truth = torch.cat([net.encoder(one[None]) for one in x])
        mine = data.features_u[data.kinds.index(kind), some[2:] - 20, number].float()
        assert (mine - truth[2:]).abs().max() < 2e-3 * truth.abs().max()  # they are kept in half
        if kind == "weak":
            labelled = data.features_x[some[:2], number].float()
            assert (labelled - truth[:2]).abs().max() < 2e-3 * truth.abs().max()


def test_looking_draws_nothing_from_the_run(weights, tmp_path):
    recipe, run = assembled(weights, tmp_path)
    before = torch.get_rng_state()
    look(recipe, run, tmp_path)
    assert torch.equal(before, torch.get_rng_state())


def test_other_seeds_see_other_views(weights, tmp_path):
    features = []
    for seed in (0, 1):
        recipe, run = assembled(weights, tmp_path, seed=seed, split_seed=0)
        look(recipe, run, tmp_path)
        ahead.forget(RunFolder(tmp_path / "run"))
        features += run.data.features_u[:, :, 0]
    assert len({round(f.float().sum().item(), 3) for f in features}) == len(features)


def test_what_was_seen_is_not_looked_at_again(weights, tmp_path, monkeypatch):
    recipe, run = assembled(weights, tmp_path)
    look(recipe, run, tmp_path)
    again = assembled(weights, tmp_path)[1]
    files = sorted((tmp_path / "run/features").iterdir())
    files[0].write_bytes(b"damaged")
    looked = []
    see = ahead.look
    monkeypatch.setattr(ahead, "look", lambda *words: looked.append(1) or see(*words))
    look(recipe, again, tmp_path)
    assert len(looked) == 1  # the damaged one
    assert torch.equal(run.data.features_u, again.data.features_u)
    assert torch.equal(run.data.features_x, again.data.features_x)
    assert_same(run.method.state_dict(), again.method.state_dict())


def test_stopping_on_the_way(weights, tmp_path):
    class Later(StopRequest):
        looks = 0

        @property
        def asked(self):
            self.looks += 1
            return self.looks > 20

        @asked.setter
        def asked(self, value):
            pass

    recipe, run = assembled(weights, tmp_path)
    assert not look(recipe, run, tmp_path, Later())
    there = len(list((tmp_path / "run/features").iterdir()))
    assert 0 < there < len(run.data.passes())


# -------------------------------------------------------------------------------------- a run


def test_a_run(weights, tmp_path):
    run = train(weights, tmp_path / "run", steps=60)
    folder = tmp_path / "run"
    assert not (folder / "features").exists()
    shipped = load_file(folder / "model.safetensors")
    for name, value in torch.load(weights, weights_only=True).items():
        if not name.endswith("num_batches_tracked"):
            assert torch.equal(shipped[f"encoder.{name}"], value), name
    assert shipped["scaling.scale"].std() > 0
    assert comatch.evaluate(run).top1 == run.summary["top1"]
    assert run.summary["top1"] > 0.3  # of ten classes, from features of a random network


def test_it_can_be_exported(weights, tmp_path):
    run = train(weights, tmp_path / "run")
    done = comatch.export(run, tmp_path / "model.pt2")
    assert done.difference < 1e-5
    p = comatch.load(run, "cpu").predict(portable.random_images(7, 8)).probabilities
    assert p.std(0).max() > 1e-3  # or nothing would have been compared


def test_another_run_may_begin_from_it(weights, tmp_path):
    train(weights, tmp_path / "run")
    run = train(tmp_path / "run", tmp_path / "more", settings={"frozen": False, "kept_views": 4})
    assert run.summary["steps"] == 6


@pytest.mark.parametrize("method", OTHERS)
def test_every_method_that_leaves_images_alone(weights, tmp_path, method):
    settings = {key: value for key, value in FROZEN.items() if key != "bank_size"}
    if method.startswith("comatch"):
        settings["bank_size"] = 60
    given = {"init": str(weights), "labels": 20, "steps": 4}
    recipe = api.plan(CPU, "digits", method, given, settings)
    dataset = sources.load("digits", tmp_path, 8)
    run = assemble(recipe, dataset, splits.make(dataset, recipe), CPU)
    look(recipe, run, tmp_path)
    before = {name: value.clone() for name, value in run.method.net.state_dict().items()}
    for step in range(4):
        run.step(step)
    assert run.step.meter.bad_steps() == 0
    for name, value in run.method.net.state_dict().items():
        learned = name.startswith(("classifier", "projector")) and "num_batches" not in name
        assert torch.equal(value, before[name]) != learned, name
    images = dataset.test.images[:9]
    p = evaluation.probabilities(run.method.evaluated, images, run.mean, run.std)
    assert p.isfinite().all()


@pytest.mark.parametrize("method", TURNING)
def test_a_method_that_turns_images(weights, tmp_path, method):
    settings = {key: value for key, value in FROZEN.items() if key != "bank_size"}
    with pytest.raises(UserError, match=r"which way up images are.*--set frozen=no"):
        comatch.train(
            "digits", method=method, labels=20, steps=2, init=weights, device="cpu",
            settings=settings, out=tmp_path / "run", progress=False,
        )  # fmt: skip
    assert not (tmp_path / "run").exists()


def test_without_weights(cli):
    code, _, err = cli("train", "digits", "--set", "frozen=yes", "--labels", 20)
    assert code == 2
    assert "frozen=yes keeps the weights that a run begins with: add --init" in err


def test_streamed_images(weights, images, tmp_path):
    settings = {**FROZEN, "stream": "yes", "batch": 4}
    with pytest.raises(UserError, match="--set stream=no"):
        comatch.train(
            images, init=weights, settings=settings, device="cpu", steps=2,
            out=tmp_path / "run", progress=False,
        )  # fmt: skip


def train_words(weights, out):
    words = ["train", "digits", "--labels", 20, "--steps", 12, "--device", "cpu", "--init", weights]
    return [*words, *WORDS, "--set", "kept_views=8", "--out", out]


def wait_for_files(process, folder, count):
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if len(list(folder.glob("features/*.safetensors"))) >= count:
            return
        time.sleep(0.002)
    assert process.poll() is None, process.communicate()


@pytest.mark.slow
def test_killed_while_looking_and_resumed_is_byte_identical(weights, tmp_path):
    whole = start(*train_words(weights, "whole"), cwd=tmp_path)
    _, err = whole.communicate(timeout=300)
    assert whole.returncode == 0, err
    assert re.search(r"looking at [\d,]+ views of images before the first step", err)

    for count, number, code in ((2, signal.SIGKILL, -9), (6, signal.SIGINT, 130)):
        process = start(*train_words(weights, "broken"), "--resume", cwd=tmp_path)
        wait_for_files(process, tmp_path / "broken", count)
        process.send_signal(number)
        _, err = process.communicate(timeout=120)
        assert process.returncode == code, err
        assert not (tmp_path / "broken/last.pt").exists()
    last = start("train", "--out", "broken", "--resume", cwd=tmp_path)
    _, err = last.communicate(timeout=300)
    assert last.returncode == 0, err
    for name in ("model.safetensors", "model.json", "metrics.jsonl", "split.json", "config.json"):
        one, other = ((tmp_path / run / name).read_bytes() for run in ("whole", "broken"))
        assert one == other, name
    assert not (tmp_path / "broken/features").exists()


def test_stopped_in_the_middle_of_training(weights, tmp_path, monkeypatch):
    """Features are still there for the rest of the run."""
    train(weights, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr("comatch.training.loop.distributed.any_rank", lambda asked: True)
        patch.setattr("comatch.training.loop.precompute", look_without_stopping)
        with pytest.raises(Interrupted):
            train(weights, tmp_path / "broken")
    assert (tmp_path / "broken/features").exists()
    train(weights, tmp_path / "broken", resume=True)
    for name in ("metrics.jsonl", "model.safetensors"):
        one, other = ((tmp_path / run / name).read_bytes() for run in ("whole", "broken"))
        assert one == other, name
    assert not (tmp_path / "broken/features").exists()


def look_without_stopping(*words):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("comatch.training.precompute.distributed.any_rank", lambda asked: asked)
        return ahead.precompute(*words)


@pytest.mark.cuda
def test_a_run_on_a_gpu(weights, tmp_path):
    """Captured as every other run is, and as good as on a CPU."""
    found = [
        train(weights, tmp_path / device, device=device, steps=60).summary["top1"]
        for device in ("cpu", "cuda")
    ]
    assert abs(found[0] - found[1]) < 0.1


# ------------------------------------------------------------------- what weights are used to


def plan(init, **settings):
    given = {"init": str(init), "data": "digits"}
    return api.plan(CPU, "folder", None, given, settings)


def test_images_are_normalised_as_the_weights_saw_them(weights, tmp_path):
    run = train(weights, tmp_path / "run")
    described = json.loads((run.path / "model.json").read_text())
    like_the_run = plan(run.path)
    assert (list(like_the_run.mean), list(like_the_run.std)) == (
        described["mean"],
        described["std"],
    )

    assert plan("timm", net="tf_efficientnet_lite0").mean == (0.5, 0.5, 0.5)
    imagenet = (0.485, 0.456, 0.406)
    assert plan("timm:resnet18.a1_in1k", net="resnet18").mean == imagenet
    assert plan(weights, net="resnet18").mean == imagenet  # a file does not tell
    assert plan(weights).mean is None  # nor does timm know this net: measured
    given = plan("timm", net="resnet18", mean=(0.1, 0.2, 0.3), std=(0.4, 0.4, 0.4))
    assert given.mean == (0.1, 0.2, 0.3)
    recipe = api.plan(CPU, "cifar10", None, {"init": str(run.path)}, {})
    assert recipe.mean == (0.4914, 0.4822, 0.4465)  # the recipe's


def test_an_odd_folder_tells_nothing(tmp_path):
    assert initial.colours(str(tmp_path), "wrn-10-1") is None


def test_the_recipe():
    recipe = api.plan(CPU, "folder-pretrained", None, {"data": "digits"}, {})
    assert isinstance(recipe, Recipe)
    assert (recipe.init, recipe.frozen, recipe.mean) == ("timm", True, (0.5, 0.5, 0.5))
    assert recipe.optimizer == "sgd"
