"""Training on cached features of a frozen encoder."""

import json
import re
import signal
import time

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

import comatch
from comatch import evaluation, methods
from comatch.commands import export
from comatch.config import replace
from comatch.data import cached_features, sources, splits
from comatch.data.cached_features import Cached, CachedFeatures, FeatureConfig
from comatch.data.features import Encoder
from comatch.errors import UserError
from comatch.nets import build_encoder
from comatch.nets.frozen import build_frozen
from comatch.planning import Request, plan
from comatch.projection import Projection
from comatch.training import state
from comatch.training.build import build
from comatch.training.init_weights import channel_statistics
from comatch.types import Images
from helpers import TINY, as_options, assert_same, start

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
FROZEN = {**TINY, "frozen": True, "views": 6}
SHARED = {key: value for key, value in FROZEN.items() if key != "bank_size"}  # any method's
WORDS = as_options(FROZEN)
ROTATING = ["remixmatch", "s4l_rotation"]
OTHERS = [name for name in methods.METHODS if name not in (*ROTATING, "distill")]


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


def build_run(weights, folder, method=None, shared=FROZEN, **settings):
    request = Request("digits", method, init=weights, labels=20, settings=shared)
    recipe = replace(plan(request, CPU), **settings)
    dataset = sources.load("digits", folder, 8)
    torch.manual_seed(recipe.seed)
    split = splits.make(dataset, recipe.dataset, recipe.split_seed)
    return build(recipe, dataset, split, CPU)


class Watch:
    """Follows the encoding, and asks to stop after some questions."""

    def __init__(self, stop_after=1_000_000):
        self.left, self.went_on = stop_after, False

    def progress(self, done, total):
        self.done, self.total = done, total

    def stopped(self):
        self.left -= 1
        return self.left < 0

    def go_on(self):
        self.went_on = True


# -------------------------------------------------------------------------------- the network


def test_only_the_heads_learn():
    torch.manual_seed(0)
    encoder = build_encoder("wrn-10-1", 8, norm_momentum=0.5)
    net = build_frozen(encoder, 16, 3, 4, "leaky_relu")
    nn.init.normal_(net.encoder.projection.matrix)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    net.train()
    out = net(torch.randn(16, 3, 8, 8))
    (out.logits.sum() + out.embedding.sum()).backward()
    for name, parameter in net.named_parameters():
        assert (parameter.grad is None) == name.startswith("encoder"), name
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]), name  # batch norm statistics too


# -------------------------------------------------------------------------------- the batches


def feed(kinds=("weak", "strong", "contrast_weak"), x=6, u=30, views=6, counts=None):
    """A feed whose features are the row of the image and the number of the view."""
    parts = [
        Images(
            torch.zeros(n, 3, 8, 8, dtype=torch.uint8), torch.arange(n), list(map(str, range(n)))
        )
        for n in (x, u)
    ]
    encoder = Encoder("none", 2, 8, lambda: None)
    projection = Projection(2, 2)
    config = FeatureConfig()
    made = CachedFeatures(
        *parts, 4, 3, kinds=[kind.split("_")[-1] for kind in kinds], encoder=encoder,
        projection=projection, config=config, device=CPU,
    )  # fmt: skip
    for name, n in (("x", x), ("u", u)):
        row = torch.arange(n).float()[:, None].expand(n, views)
        number = torch.arange(views).float().expand(n, views)
        every = torch.stack([row, number], 2).half()  # [n, V, 2]
        weak = [v for v in range(views) if v < 2 or v % 2 == 0]
        strong = [v for v in range(views) if v not in weak]
        setattr(made, f"cached_{name}", Cached(every[:, weak], every[:, strong], every[:, 0]))
        count = torch.full((n,), views) if counts is None else counts(n)
        getattr(made, f"views_{name}").copy_(count)
    return made


def test_a_batch_has_the_drawn_rows_and_the_declared_kinds_of_views():
    made, seen = feed(), set()
    for step in range(60):
        made.before_step(step)
        x, y, u, rows, truth = made.draw()
        assert torch.equal(x[:, 0].long(), y)  # labels here are rows
        assert set(x[:, 1].tolist()) <= {0, 1, 2, 4}
        assert torch.equal(truth, rows)
        weak, strong, other = u.unbind(1)
        for view, numbers in ((weak, {0, 1, 2, 4}), (strong, {3, 5}), (other, {0, 1, 2, 4})):
            assert torch.equal(view[:, 0].long(), rows)
            assert set(view[:, 1].tolist()) <= numbers
        seen |= {(int(a), int(b)) for a, b in zip(weak[:, 1], other[:, 1], strict=True)}
    assert seen == {(a, b) for a in (0, 1, 2, 4) for b in (0, 1, 2, 4)}  # drawn independently


@pytest.mark.parametrize("most", [2, 3, 4, 5, 6])
def test_only_views_that_an_image_has_are_drawn(most):
    """After a stop, some images have fewer views than others."""
    made = feed(counts=lambda n: torch.where(torch.arange(n) % 2 == 0, 6, most))
    drawn = {"weak": set(), "strong": set()}
    for step in range(80):
        made.before_step(step)
        _, _, u, rows, _ = made.draw()
        few = rows % 2 == 1
        drawn["weak"] |= set(u[few, 0, 1].tolist())
        drawn["strong"] |= set(u[few, 1, 1].tolist())
    weak = {0, 1, 2, 4} & set(range(most))
    strong = {3, 5} & set(range(most))
    assert drawn["weak"] == weak
    assert drawn["strong"] == (strong or weak)


def test_a_method_without_views():
    made = feed(kinds=(), u=1)
    made.before_step(0)
    assert made.draw().u.unbind(1) == ()


def test_all_images_are_the_labelled_and_the_unlabelled_ones():
    made = feed()
    made.cached_x = Cached(*(part + 100 for part in made.cached_x))  # unlike the unlabelled ones
    x, y, u, _ = made.everything()
    assert torch.equal(torch.cat(list(x))[:, 0].long(), 100 + y)
    assert torch.equal(torch.cat(list(u))[:, 0].long(), torch.arange(30))


def test_examples_have_all_views_that_every_labelled_image_has():
    made = feed(counts=lambda n: torch.where(torch.arange(n) % 2 == 0, 6, 4))
    x, y, u = made.examples()
    assert torch.equal(x[:, :, 0].long(), y[:, None].expand(6, 4))
    assert torch.equal(x[:, :, 1].sort(1).values, torch.arange(4.0).expand(6, 4))
    assert (x[:, 0, 1] == 0).all()  # the plain view is the first
    assert torch.equal(u[:, 0].long(), torch.arange(30))


def test_features_that_do_not_fit_into_memory(weights, tmp_path, monkeypatch):
    monkeypatch.setattr(cached_features, "LARGEST", 1000)
    with pytest.raises(UserError, match="--set views="):
        build_run(weights, tmp_path).feed.prepare(Watch())


# ------------------------------------------------------------------------------------ encoding


def test_features_agree_with_the_network_that_is_saved(weights, tmp_path):
    """The plain view of an image in the feed is what the trained network sees of it."""
    run = build_run(weights, tmp_path)
    watch = Watch()
    assert run.feed.prepare(watch)
    assert watch.went_on
    assert watch.done == watch.total == 6 * (len(run.feed.views_x) + len(run.feed.views_u))
    images = sources.load("digits", tmp_path, 8).test
    pieces = list(run.feed.inputs(images))
    inputs = torch.cat([x for x, _ in pieces])
    labels = torch.cat([y for _, y in pieces])
    assert torch.equal(labels, images.labels)
    saved = run.trained
    with saved.eval_mode(), torch.no_grad():
        x = (images.images.float() / 255 - run.mean[:, None, None]) / run.std[:, None, None]
        truth = saved.encoder(x)
    assert (inputs - truth).norm() < 0.01 * truth.norm()  # features are kept in half precision
    p = evaluation.probabilities(saved, images.images, run.mean, run.std)
    q = evaluation.predict(run.method.evaluated, inputs)
    assert (p - q).abs().max() < 0.01


def test_encoding_leaves_the_random_state_of_the_run(weights, tmp_path):
    run = build_run(weights, tmp_path)
    before = torch.get_rng_state()
    run.feed.prepare(Watch())
    assert torch.equal(before, torch.get_rng_state())


def test_ctrl_c_trains_with_the_views_there_are(weights, tmp_path):
    run = build_run(weights, tmp_path)
    watch = Watch(stop_after=120)  # after all images have two views, before they have six
    assert run.feed.prepare(watch)
    counts = torch.cat([run.feed.views_x, run.feed.views_u])
    assert counts.min() >= 2
    assert counts.sum() < 6 * len(counts)
    assert run.feed.counts()["views"] == pytest.approx(counts.float().mean().item())
    for step in range(3):
        run.step(step)
    assert run.step.meter.bad_steps() == 0


def test_ctrl_c_before_every_image_has_two_views_stops_the_run(weights, tmp_path):
    watch = Watch(stop_after=3)
    assert not build_run(weights, tmp_path).feed.prepare(watch)
    assert not watch.went_on


def test_unreadable_images_are_replaced(weights, tmp_path):
    """They turn up when they are encoded; the labelled ones by others of their class."""
    root, random = tmp_path / "photos", np.random.default_rng(0)
    for kind in ("cat", "dog", "unlabeled"):
        (root / kind).mkdir(parents=True)
        for number in range(12):
            pixels = random.integers(0, 256, (12, 12, 3), np.uint8)
            Image.fromarray(pixels).save(root / kind / f"{number}.png")
    for name in ("cat/3.png", "unlabeled/5.png"):
        (root / name).write_bytes((root / name).read_bytes()[:100])
    settings = FROZEN | {"batch": 4, "mu": 1}
    with pytest.warns(UserWarning, match="cannot be read|were left out"):
        run = comatch.train(
            root, init=weights, settings=settings, steps=3, device="cpu", recipe="folder",
            out=tmp_path / "run", progress=False,
        )  # fmt: skip
    last = json.loads((run.path / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] == 3


def test_the_only_labelled_image_of_a_class_must_be_readable(weights, tmp_path):
    root = tmp_path / "photos"
    for kind in ("cat", "dog", "unlabeled"):
        (root / kind).mkdir(parents=True)
        for number in range(1 if kind == "dog" else 6):
            pixels = np.random.default_rng(number).integers(0, 256, (12, 12, 3), np.uint8)
            Image.fromarray(pixels).save(root / kind / f"{number}.png")
    dog = root / "dog/0.png"
    dog.write_bytes(dog.read_bytes()[:100])
    with pytest.raises(UserError, match=r"dog/0\.png"):
        comatch.train(
            root, init=weights, settings=FROZEN | {"batch": 4, "mu": 1}, steps=3, device="cpu",
            recipe="folder", out=tmp_path / "run", progress=False,
        )  # fmt: skip


# -------------------------------------------------------------------------------------- a run


def test_a_run(weights, tmp_path):
    run = train(weights, tmp_path / "run", steps=60)
    shipped = load_file(run.path / "model.safetensors")
    for name, value in torch.load(weights, weights_only=True).items():
        if not name.endswith("num_batches_tracked"):
            assert torch.equal(shipped[f"encoder.net.{name}"], value), name
    assert shipped["encoder.projection.matrix"].std() > 0
    assert comatch.evaluate(run).top1 == pytest.approx(run.summary["top1"], abs=0.003)
    assert run.summary["top1"] > 0.3  # of ten classes, from features of a random network


def test_a_second_run_encodes_nothing(weights, tmp_path, monkeypatch):
    first = train(weights, tmp_path / "first")
    engines = []
    monkeypatch.setattr("comatch.training.build.Engine", lambda *_: engines.append(1))
    second = train(weights, tmp_path / "second")
    assert engines == []
    assert_same(*(load_file(run.path / "model.safetensors") for run in (first, second)))


def test_other_weights_have_other_features(weights, tmp_path):
    other = tmp_path / "other.pt"
    changed = torch.load(weights, weights_only=True)
    changed["conv.weight" if "conv.weight" in changed else next(iter(changed))] += 0.1
    torch.save(changed, other)
    encoders = [build_run(path, tmp_path).feed.encoder.name for path in (weights, other)]
    assert encoders[0] != encoders[1]


def test_it_can_be_exported(weights, tmp_path):
    run = train(weights, tmp_path / "run")
    done = comatch.export(run, tmp_path / "model.pt2")
    assert done.difference < 1e-5
    p = comatch.load(run, "cpu").predict(export.random_images(7, 8)).probabilities
    assert p.std(0).max() > 1e-3  # the predictions that were compared differ between images


def test_it_can_initialise_another_run(weights, tmp_path):
    train(weights, tmp_path / "run")
    run = train(tmp_path / "run", tmp_path / "more", settings={"frozen": False})
    assert run.summary["steps"] == 6


@pytest.mark.parametrize("method", OTHERS)
def test_every_method_learns_heads_alone(weights, tmp_path, method):
    shared = SHARED | ({"bank_size": 60} if method.startswith("comatch") else {})
    run = build_run(weights, tmp_path, method, shared, steps=4, views=4)
    run.feed.prepare(Watch())
    before = {name: value.clone() for name, value in run.method.net.state_dict().items()}
    for step in range(4):
        run.step(step)
    assert run.step.meter.bad_steps() == 0
    for name, value in run.method.net.state_dict().items():
        learned = name.startswith(("classifier", "projector")) and "num_batches" not in name
        assert torch.equal(value, before[name]) != learned, name


@pytest.mark.parametrize("method", ROTATING)
def test_a_method_that_rotates_images_is_refused(weights, tmp_path, method):
    with pytest.raises(UserError, match=r"rotates images.*--set frozen=no"):
        comatch.train(
            "digits", method=method, labels=20, steps=2, init=weights, device="cpu",
            settings=SHARED, out=tmp_path / "run", progress=False,
        )  # fmt: skip
    assert not (tmp_path / "run").exists()


def test_a_frozen_encoder_needs_weights(cli):
    code, _, err = cli("train", "digits", "--set", "frozen=yes", "--labels", 20)
    assert code == 2
    assert "frozen=yes keeps the initial weights of the encoder: add --init" in err


def train_words(weights, out):
    words = ["train", "digits", "--labels", 20, "--steps", 12, "--device", "cpu", "--init", weights]
    return [*words, *WORDS, "--set", "views=26", "--out", out]


def wait_for_rows(process, cache, bytes_of_all):
    """Wait until the cache has so many bytes."""
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if sum(path.stat().st_size for path in cache.rglob("*.keys")) >= bytes_of_all:
            return
        time.sleep(0.002)
    assert process.poll() is None, process.communicate()


def test_a_run_killed_while_encoding_resumes_bit_exactly(weights, tmp_path, monkeypatch):
    monkeypatch.setenv("COMATCH_CACHE", str(tmp_path / "cache of whole"))
    whole = start(*train_words(weights, "whole"), cwd=tmp_path)
    _, err = whole.communicate(timeout=300)
    assert whole.returncode == 0, err
    assert re.search(r"encoding [\d,]+ views of images before the first step", err)

    cache = tmp_path / "cache"
    monkeypatch.setenv("COMATCH_CACHE", str(cache))
    process = start(*train_words(weights, "broken"), cwd=tmp_path)
    wait_for_rows(process, cache, 20 * 1437)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=120)
    assert not (tmp_path / "broken/last.pt").exists()
    last = start("train", "--out", "broken", "--resume", cwd=tmp_path)
    _, err = last.communicate(timeout=300)
    assert last.returncode == 0, err
    for name in ("model.safetensors", "model.json", "metrics.jsonl", "split.json", "config.json"):
        one, other = ((tmp_path / run / name).read_bytes() for run in ("whole", "broken"))
        assert one == other, name


def test_stopped_during_training(weights, tmp_path, monkeypatch, own_feature_cache):
    """It goes on with the same features, even if the cache was emptied meanwhile."""
    train(weights, tmp_path / "whole")
    save = state.save

    def stop(*words):
        save(*words)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(state, "save", stop)
        with pytest.raises(KeyboardInterrupt):
            train(weights, tmp_path / "broken")
    for path in own_feature_cache.rglob("*.features"):
        path.unlink()
    train(weights, tmp_path / "broken", resume=True)
    for name in ("metrics.jsonl", "model.safetensors"):
        one, other = ((tmp_path / run / name).read_bytes() for run in ("whole", "broken"))
        assert one == other, name


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


def test_the_recipe_photos():
    recipe = plan(Request("digits", recipe="photos"), CPU)
    assert (recipe.model.init, recipe.model.frozen, recipe.dataset.mean) == (
        "timm",
        True,
        (0.5, 0.5, 0.5),
    )
    assert recipe.optim.optimizer == "sgd"
