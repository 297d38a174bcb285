"""Training on cached features of a frozen encoder."""

import json
import re
import signal
import time

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import comatch
from comatch import evaluation, methods
from comatch.augment import policies
from comatch.augment.policies import Views
from comatch.commands import export
from comatch.config import replace, values_of
from comatch.data import cached_features, sources, splits
from comatch.data.cached_features import CachedFeatures
from comatch.errors import UserError
from comatch.nets import Network, build_encoder
from comatch.nets.frozen import FrozenEncoder, freeze
from comatch.planning import Request, plan
from comatch.training import state
from comatch.training.build import build
from comatch.training.init_weights import channel_statistics
from comatch.types import Images
from helpers import TINY, as_options, assert_same, start

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
FROZEN = {**TINY, "frozen": True, "kept_views": 2}
WORDS = as_options(FROZEN)
ROTATING = ["remixmatch", "s4l_rotation"]
OTHERS = [name for name in methods.METHODS if name not in ROTATING]


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A random encoder whose batch norm has statistics."""
    torch.manual_seed(5)
    encoder = build_encoder("wrn-10-1", 8, norm_momentum=1.0)
    encoder(torch.randn(64, 3, 8, 8))
    path = tmp_path_factory.mktemp("weights") / "encoder.pt"
    torch.save(encoder.state_dict(), path)
    return path


def train(weights, out, **options):
    settings = FROZEN | options.pop("settings", {})
    given = {"labels": 20, "steps": 6, "device": "cpu", "progress": False, "init": weights}
    return comatch.train("digits", **(given | options), out=out, settings=settings)


def build_frozen(weights, folder, method=None, shared=FROZEN, **settings):
    request = Request("digits", method, init=weights, labels=20, settings=shared)
    recipe = replace(plan(request, CPU), **settings)
    dataset = sources.load("digits", folder, 8)
    torch.manual_seed(recipe.seed)
    split = splits.make(dataset, recipe.dataset, recipe.split_seed)
    return build(recipe, dataset, split, CPU, folder / "features")


class Watch:
    """Follows the filling of a cache, and asks to stop after some questions."""

    def __init__(self, stop_after=1_000_000):
        self.left = stop_after

    def progress(self, done, total):
        self.done, self.total = done, total

    def stopped(self):
        self.left -= 1
        return self.left < 0


# -------------------------------------------------------------------------------- the network


def frozen_network():
    torch.manual_seed(0)
    net = Network(build_encoder("wrn-10-1", 8, norm_momentum=0.5), 3, embedding_dim=4)
    net(torch.randn(32, 3, 8, 8))
    freeze(net)
    return net


def test_features_give_the_same_outputs_as_their_images():
    net = frozen_network()
    x = torch.randn(16, 3, 8, 8)
    with net.eval_mode(), torch.no_grad():
        features = net.encoder.net(x)
        net.encoder.measure(features)
        for from_features, from_images in zip(net(features), net(x), strict=True):
            assert torch.equal(from_features, from_images)
        assert not torch.equal(net(x).features, features)  # they are scaled


def test_only_the_heads_learn():
    net = frozen_network()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    net.train()
    out = net(torch.randn(16, 3, 8, 8))
    (out.logits.sum() + out.embedding.sum()).backward()
    for name, parameter in net.named_parameters():
        assert (parameter.grad is None) == name.startswith("encoder"), name
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]), name  # batch norm statistics too
    assert net.classifier.training
    net.eval()
    assert not net.classifier.training


def test_scaled_features_have_mean_zero_equal_deviation_and_fixed_length():
    torch.manual_seed(0)
    for width, size in ((50, 100.0), (400, 0.01)):
        features = size * (3 + torch.randn(4000, width) * torch.linspace(0.5, 2, width))
        scaling = FrozenEncoder(nn.Identity(), width)
        scaling.measure(features)
        scaled = scaling(features)
        assert scaled.mean(0).abs().max() < 1e-3
        assert scaled.std(0).max() / scaled.std(0).min() < 1.01
        assert scaled.square().sum(1).mean().sqrt().item() == pytest.approx(10, rel=1e-3)


def test_features_that_hardly_vary_are_not_enlarged():
    torch.manual_seed(0)
    features = torch.randn(100, 8)
    features[:, 0] = 7
    scaling = FrozenEncoder(nn.Identity(), 8)
    scaling.measure(features)
    assert scaling.scale[0] < 5 * scaling.scale[1:].mean()
    scaling.measure(torch.zeros(5, 8))
    assert scaling.scale.isfinite().all()


# -------------------------------------------------------------------------------- the batches


def cache(kinds=("weak", "strong", "weak"), x=6, u=30, views=3):
    """A cache whose features are the row of the image, the kind of view and its number."""
    images = [
        Images(
            torch.zeros(n, 3, 8, 8, dtype=torch.uint8), torch.arange(n), list(map(str, range(n)))
        )
        for n in (x, u)
    ]
    feed = CachedFeatures(
        *images, 4, 3, views=kinds, kept=views, width=3,
        encode=None, measure=None, folder=None, seed=0,
    )  # fmt: skip
    for kind, number in feed.passes():
        rows = torch.arange(x + u).float()
        code = {"weak": 1.0, "strong": 2.0, "contrast": 3.0}[kind]
        row = torch.stack([rows, torch.full_like(rows, code), torch.full_like(rows, number)], 1)
        feed.store(kind, number, row)
    return feed


def test_a_batch_has_the_drawn_rows_and_the_declared_views():
    feed, seen = cache(), set()
    for step in range(40):
        feed.before_step(step)
        x, y, u, rows, truth = feed.draw()
        assert torch.equal(x[:, 0].long(), y)  # labels here are rows
        assert (x[:, 1] == 1).all()
        assert torch.equal(truth, rows)
        weak, strong, other = u.unbind(1)
        for view, code in ((weak, 1), (strong, 2), (other, 1)):
            assert torch.equal(view[:, 0].long(), rows + 6)  # labelled ones come first
            assert (view[:, 1] == code).all()
        seen |= {(int(a), int(b)) for a, b in zip(weak[:, 2], other[:, 2], strict=True)}
    # Two views of the same kind are drawn independently.
    assert seen == {(a, b) for a in range(3) for b in range(3)}


def test_scaling_is_measured_on_weak_views():
    """Of labelled images, and of unlabelled ones if the method declares that view."""
    sample = cache().sample()
    assert (sample[:, 1] == 1).all()
    assert set(sample[:, 0].tolist()) == set(range(36))
    sample = cache(kinds=("strong",)).sample()
    assert (sample[:, 1] == 1).all()
    assert set(sample[:, 0].tolist()) == set(range(6))


def test_a_method_without_views():
    feed = cache(kinds=(), u=1)
    feed.before_step(0)
    drawn = feed.draw()
    assert drawn.u.unbind(1) == ()
    assert {kind for kind, _ in feed.passes()} == {"weak"}


def test_a_cache_that_is_too_large(monkeypatch):
    monkeypatch.setattr(cached_features, "LARGEST", 2 * 30 * 2 * 3 + 200)
    with pytest.raises(UserError, match="--set kept_views=1, or fewer images"):
        cache(kinds=("weak", "strong"))


# ----------------------------------------------------------------------------- filling the cache


def test_features_agree_with_the_reference(weights, tmp_path):
    """Reference implementation: every pass again, image by image, from its own seed."""
    run = build_frozen(weights, tmp_path)
    assert run.feed.prepare(Watch())
    feed, net, recipe = run.feed, run.method.net, run.recipe
    views = Views(**values_of(recipe.views), size=8)
    images = torch.cat([feed.images_x, feed.images_u])
    passes = feed.passes()
    assert len(passes) == 3 * 2
    for index, (kind, number) in enumerate(passes):
        torch.manual_seed(recipe.seed * len(passes) + index)
        policy = policies.build(kind, views)
        chunks = images.split(cached_features.ENCODE_CHUNK)
        seen = torch.cat([policy(chunk) for chunk in chunks])
        with net.eval_mode(), torch.no_grad():
            some = torch.tensor([0, 19, 20, 200, len(seen) - 1])
            x = policies.normalise(seen[some], run.mean, run.std)
            truth = torch.cat([net.encoder.net(one[None]) for one in x])
        mine = feed.features_u[feed.kinds.index(kind), some[2:] - 20, number].float()
        assert (mine - truth[2:]).abs().max() < 2e-3 * truth.abs().max()  # stored in half precision
        if kind == "weak":
            labelled = feed.features_x[some[:2], number].float()
            assert (labelled - truth[:2]).abs().max() < 2e-3 * truth.abs().max()


def test_filling_leaves_the_random_state_of_the_run(weights, tmp_path):
    run = build_frozen(weights, tmp_path)
    before = torch.get_rng_state()
    run.feed.prepare(Watch())
    assert torch.equal(before, torch.get_rng_state())


def test_each_seed_draws_other_views(weights, tmp_path):
    features = []
    for seed in (0, 1):
        run = build_frozen(weights, tmp_path, seed=seed, split_seed=0)
        run.feed.prepare(Watch())
        run.feed.finish()
        features += run.feed.features_u[:, :, 0]
    assert len({round(f.float().sum().item(), 3) for f in features}) == len(features)


def test_features_on_disk_are_not_computed_again(weights, tmp_path, monkeypatch):
    run = build_frozen(weights, tmp_path)
    run.feed.prepare(Watch())
    again = build_frozen(weights, tmp_path)
    files = sorted((tmp_path / "features").iterdir())
    files[0].write_bytes(b"damaged")
    passes, encode_all = [], again.feed.encode_all
    monkeypatch.setattr(
        again.feed, "encode_all", lambda *words: passes.append(1) or encode_all(*words)
    )
    again.feed.prepare(Watch())
    assert len(passes) == 1  # the damaged one
    assert torch.equal(run.feed.features_u, again.feed.features_u)
    assert torch.equal(run.feed.features_x, again.feed.features_x)
    assert_same(run.method.state_dict(), again.method.state_dict())


def test_stopping_keeps_finished_passes(weights, tmp_path):
    run = build_frozen(weights, tmp_path)
    assert not run.feed.prepare(Watch(stop_after=20))
    there = len(list((tmp_path / "features").iterdir()))
    assert 0 < there < len(run.feed.passes())


# -------------------------------------------------------------------------------------- a run


def test_a_run(weights, tmp_path):
    run = train(weights, tmp_path / "run", steps=60)
    folder = tmp_path / "run"
    assert not (folder / "features").exists()
    shipped = load_file(folder / "model.safetensors")
    for name, value in torch.load(weights, weights_only=True).items():
        if not name.endswith("num_batches_tracked"):
            assert torch.equal(shipped[f"encoder.net.{name}"], value), name
    assert shipped["encoder.scale"].std() > 0
    assert comatch.evaluate(run).top1 == run.summary["top1"]
    assert run.summary["top1"] > 0.3  # of ten classes, from features of a random network


def test_it_can_be_exported(weights, tmp_path):
    run = train(weights, tmp_path / "run")
    done = comatch.export(run, tmp_path / "model.pt2")
    assert done.difference < 1e-5
    p = comatch.load(run, "cpu").predict(export.random_images(7, 8)).probabilities
    assert p.std(0).max() > 1e-3  # the predictions that were compared differ between images


def test_it_can_initialise_another_run(weights, tmp_path):
    train(weights, tmp_path / "run")
    run = train(tmp_path / "run", tmp_path / "more", settings={"frozen": False, "kept_views": 4})
    assert run.summary["steps"] == 6


@pytest.mark.parametrize("method", OTHERS)
def test_every_method_learns_heads_alone(weights, tmp_path, method):
    settings = {key: value for key, value in FROZEN.items() if key != "bank_size"}
    if method.startswith("comatch"):
        settings["bank_size"] = 60
    run = build_frozen(weights, tmp_path, method, settings, steps=4)
    run.feed.prepare(Watch())
    before = {name: value.clone() for name, value in run.method.net.state_dict().items()}
    for step in range(4):
        run.step(step)
    assert run.step.meter.bad_steps() == 0
    for name, value in run.method.net.state_dict().items():
        learned = name.startswith(("classifier", "projector")) and "num_batches" not in name
        assert torch.equal(value, before[name]) != learned, name
    images = sources.load("digits", tmp_path, 8).test.images[:9]
    p = evaluation.probabilities(run.method.evaluated, images, run.mean, run.std)
    assert p.isfinite().all()


@pytest.mark.parametrize("method", ROTATING)
def test_a_method_that_rotates_images_is_refused(weights, tmp_path, method):
    settings = {key: value for key, value in FROZEN.items() if key != "bank_size"}
    with pytest.raises(UserError, match=r"rotates images.*--set frozen=no"):
        comatch.train(
            "digits", method=method, labels=20, steps=2, init=weights, device="cpu",
            settings=settings, out=tmp_path / "run", progress=False,
        )  # fmt: skip
    assert not (tmp_path / "run").exists()


def test_a_frozen_encoder_needs_weights(cli):
    code, _, err = cli("train", "digits", "--set", "frozen=yes", "--labels", 20)
    assert code == 2
    assert "frozen=yes keeps the initial weights of the encoder: add --init" in err


def test_streamed_images_are_refused(weights, images, tmp_path):
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


def test_a_run_killed_while_encoding_resumes_bit_exactly(weights, tmp_path):
    whole = start(*train_words(weights, "whole"), cwd=tmp_path)
    _, err = whole.communicate(timeout=300)
    assert whole.returncode == 0, err
    assert re.search(r"encoding [\d,]+ views of images before the first step", err)

    for count, number, code in ((2, signal.SIGKILL, -9), (6, signal.SIGINT, 130)):
        more = ["--resume"] if (tmp_path / "broken").exists() else []
        process = start(*train_words(weights, "broken"), *more, cwd=tmp_path)
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


def test_stopped_during_training(weights, tmp_path, monkeypatch):
    """The cached features are kept for the rest of the run."""
    train(weights, tmp_path / "whole")
    save = state.save

    def stop(*words):
        save(*words)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(state, "save", stop)
        with pytest.raises(KeyboardInterrupt):
            train(weights, tmp_path / "broken")
    assert (tmp_path / "broken/features").exists()
    train(weights, tmp_path / "broken", resume=True)
    for name in ("metrics.jsonl", "model.safetensors"):
        one, other = ((tmp_path / run / name).read_bytes() for run in ("whole", "broken"))
        assert one == other, name
    assert not (tmp_path / "broken/features").exists()


@pytest.mark.cuda
def test_a_run_on_a_gpu(weights, tmp_path):
    """Its accuracy is that on a CPU."""
    found = [
        train(weights, tmp_path / device, device=device, steps=60).summary["top1"]
        for device in ("cpu", "cuda")
    ]
    assert abs(found[0] - found[1]) < 0.1


# ------------------------------------------------------- normalisation that the weights expect


def channels(init, recipe="folder", **settings):
    """Mean and deviation in the recipe of a run that starts from `init`."""
    data = plan(Request("digits", recipe=recipe, init=init, settings=settings), CPU).dataset
    return data.mean, data.std


def test_images_are_normalised_as_the_weights_expect(weights, tmp_path):
    run = train(weights, tmp_path / "run")
    described = json.loads((run.path / "model.json").read_text())
    assert channels(run.path) == (tuple(described["mean"]), tuple(described["std"]))

    assert channels("timm", net="tf_efficientnet_lite0")[0] == (0.5, 0.5, 0.5)
    imagenet = (0.485, 0.456, 0.406)
    assert channels("timm:resnet18.a1_in1k", net="resnet18")[0] == imagenet
    assert channels(weights, net="resnet18")[0] == imagenet  # a file does not record them
    assert channels(weights) == (None, None)  # timm does not know this net: they are measured
    given = {"mean": (0.1, 0.2, 0.3), "std": (0.4, 0.4, 0.4)}
    assert channels("timm", net="resnet18", **given) == tuple(given.values())
    assert channels(run.path, "cifar10")[0] == (0.4914, 0.4822, 0.4465)  # the recipe's own


def test_a_folder_without_a_model_has_no_channel_statistics(tmp_path):
    assert channel_statistics(str(tmp_path), "wrn-10-1") is None


def test_the_recipe_folder_pretrained():
    recipe = plan(Request("digits", recipe="folder-pretrained"), CPU)
    assert (recipe.model.init, recipe.model.frozen, recipe.dataset.mean) == (
        "timm",
        True,
        (0.5, 0.5, 0.5),
    )
    assert recipe.optim.optimizer == "sgd"
