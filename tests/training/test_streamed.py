"""Training on images that are read from disk."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import comatch
from comatch.data import splits
from comatch.data.streaming import Streaming
from comatch.errors import UserError
from comatch.planning import Request, load_dataset, plan
from comatch.training import state
from comatch.training.build import build
from helpers import TINY

pytestmark = pytest.mark.slow

SETTINGS = {**TINY, "stream": "yes", "workers": 2, "mu": 2, "batch": 10}
OPTIONS = {"labels": 20, "steps": 7, "device": "cpu", "progress": False}


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory):
    """Vertical and horizontal stripes: JPEGs of many shapes, in ImageNet's layout."""
    root, random = tmp_path_factory.mktemp("data") / "imagenet", np.random.default_rng(0)
    for part, count in (("train", 60), ("val", 8)):
        for kind in ("standing", "lying"):
            (root / part / kind).mkdir(parents=True)
            for i in range(count):
                width, height = random.integers(12, 40, 2)
                along = np.arange(width) if kind == "standing" else np.arange(height)[:, None]
                stripes = np.broadcast_to((along // 4 % 2 * 200), (height, width))
                pixels = stripes[..., None] + random.integers(0, 40, (height, width, 3))
                image = Image.fromarray(pixels.astype(np.uint8))
                image.save(root / part / kind / f"{kind}_{i}.JPEG")
    (root / "train" / "lying" / "lying_7.JPEG").write_bytes(b"\xff\xd8\xff cut off")
    return root


def train(imagenet, out, **changes):
    return comatch.train(imagenet, out=out, settings=SETTINGS, **{**OPTIONS, **changes})


def test_a_run_from_files(imagenet, tmp_path, cli):
    run = train(imagenet, tmp_path / "run")
    assert run.summary["unreadable"] <= 1
    assert 0 <= run.summary["top1"] <= 1
    described = json.loads((run.path / "model.json").read_text())
    assert (described["image_size"], described["resize"]) == (8, 9)
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["kind"] == "eval"
    assert lines[-2]["unreadable"] == run.summary["unreadable"]
    split = json.loads((run.path / "split.json").read_text())
    assert all(name.startswith("train/") for name in split["labelled"])
    assert comatch.evaluate(run, device="cpu").top1 == pytest.approx(run.summary["top1"])
    # Prediction crops the images as evaluation does.
    names = sorted((imagenet / "val").rglob("*.JPEG"))
    labels = comatch.load(run, device="cpu").predict(names).labels
    right = [label == path.parent.name for label, path in zip(labels, names, strict=True)]
    assert np.mean(right) == pytest.approx(run.summary["top1"])
    code, _, err = cli("predict", run.path, imagenet / "val", "--device", "cpu")
    assert code == 0, err


def test_a_stopped_run_resumes_exactly(imagenet, tmp_path, monkeypatch):
    train(imagenet, tmp_path / "whole")
    save = state.save

    def stop(folder, run, step, *rest):
        save(folder, run, step, *rest)
        if step == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(state, "save", stop)
    with pytest.raises(KeyboardInterrupt):
        train(imagenet, tmp_path / "parts")
    monkeypatch.undo()
    train(imagenet, tmp_path / "parts", resume=True)
    whole, parts = (tmp_path / name / "metrics.jsonl" for name in ("whole", "parts"))
    assert whole.read_bytes() == parts.read_bytes()
    states = [torch.load(tmp_path / n / "last.pt", weights_only=True) for n in ("whole", "parts")]
    for name, value in states[0]["method"].items():
        assert torch.equal(value, states[1]["method"][name]), name
    assert torch.equal(states[0]["data"]["unreadable"], states[1]["data"]["unreadable"])


def test_channel_statistics_are_measured_on_a_sample(imagenet):
    with pytest.warns(UserWarning, match="1 images cannot be read"):
        run = build_run(imagenet, "comatch")
    assert isinstance(run.feed, Streaming)
    assert ((run.mean > 0.3) & (run.mean < 0.6)).all()
    assert run.feed.images.shape == (30, 3, 9, 9)


def build_run(imagenet, method, device="cpu", **settings):
    channels = {"mean": (0.4,) * 3, "std": (0.3,) * 3} if method != "comatch" else {}
    tiny = {k: v for k, v in SETTINGS.items() if method == "comatch" or k != "bank_size"}
    settings = {**tiny, **channels, **settings}
    where = torch.device(device)
    request = Request(imagenet, method, "folder", labels=20, settings=settings)
    recipe = plan(request, where)
    dataset = load_dataset(recipe.reading, imagenet, progress=False)
    split = splits.make(dataset, recipe.dataset, recipe.split_seed)
    return build(recipe, dataset, split, where)


def test_a_method_without_unlabelled_images(imagenet):
    run = build_run(imagenet, "supervised")
    run.step(0)
    assert run.feed.draw().u.shape == (0, 3, 9, 9)
    assert run.step.meter.read()["finite_steps"] == 1


@pytest.mark.cuda
@pytest.mark.parametrize("method", ["comatch", "supervised"])
def test_a_captured_step_reads_each_new_batch(imagenet, tmp_path, method):
    whole = shutil.copytree(imagenet, tmp_path / "whole")
    lying = whole / "train" / "lying"
    # A damaged image would be replaced by another one.
    shutil.copy(lying / "lying_8.JPEG", lying / "lying_7.JPEG")
    run = build_run(whole, method, "cuda", engine="captured")
    addresses = None
    for step in range(12):
        run.step(step)
        draw = run.feed.draw()
        addresses = addresses or [tensor.data_ptr() for tensor in draw]
        assert [tensor.data_ptr() for tensor in draw] == addresses
        rows = run.feed.shuffle_x.at(step)
        assert draw.y.tolist() == run.feed.parts[0].labels[rows].tolist()
    assert run.step.run.graph is not None, run.step.run.reason
    sums = run.step.meter.read()
    assert sums["steps"] == sums["finite_steps"] == 12


def test_a_method_that_needs_all_images(imagenet):
    with pytest.raises(UserError, match=r"all images at once.*stream=no"):
        build_run(imagenet, "label_propagation")
