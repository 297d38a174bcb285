"""What several tests need: tiny runs, interrupted and failing runs, processes, images, batches."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from comatch import recipes
from comatch.config import settings_of
from comatch.methods.fixmatch import FixMatch
from comatch.nets import Network, build_encoder
from comatch.training.run_folder import RunFolder
from comatch.training.signals import StopRequest
from comatch.types import Batch

LONG = os.environ.get("COMATCH_FAULTS") == "long"  # `make faults`: thousands of cases, not a few

# The settings of a tiny CoMatch run: a few seconds on one core.
TINY = {
    "image_size": 8,
    "pad": 1,
    "net": "wrn-10-1",
    "batch": 10,
    "mu": 2,
    "bank_size": 60,
    "norm_momentum": 0.1,
    "ema_decay": 0.9,
    "log_every": 2,
    "eval_every": 4,
    "checkpoint_every": 3,
}
# Memories and heads of methods without labels that fit a few images.
SMALL = {
    "moco_v2": {"queue_size": 20, "norm_groups": 4},
    "byol": {"hidden_dim": 16},
    "swav": {"prototypes": 6, "hidden_dim": 16, "small_views": 2},
    "pirl": {"negatives": 10},
    "pcl": {"queue_size": 20, "norm_groups": 4, "clusters": 3, "clusterings": 2, "negatives": 4},
}
TINY_SHARED = {key: value for key, value in TINY.items() if key != "bank_size"}  # any method's

# Settings of CoMatch that change which code runs.
VARIANTS = {
    "adaptive": {"selection": "adaptive"},
    "hard labels": {"hard_labels": True},
    "muon": {"optimizer": "muon"},
}


def as_options(settings):
    """Settings as words of a command line."""
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


TINY_WORDS, TINY_SHARED_WORDS = as_options(TINY), as_options(TINY_SHARED)
FAST = ["--steps", 2, "--device", "cpu", *TINY_WORDS]  # words of a tiny run of two steps
SMALL_FOLDER = ["--set", "mu=1"]  # the folder of `make_images` has few unlabelled images


def assert_one_line_error(result, *fragments):
    """Exit code 2, and one line on stderr that has these fragments; no traceback."""
    code, _, err = result
    lines = [line for line in err.splitlines() if line.strip() and "warning:" not in line]
    assert code == 2, err
    assert len(lines) == 1, err
    assert lines[0].startswith("error: "), err
    for fragment in fragments:
        assert fragment in lines[0], err


def read_json(path):
    return json.loads(path.read_text())


def rewrite_json(path, value):
    """As a person may who changes a file of a run: without the line of the checksum."""
    path.write_text(json.dumps({key: v for key, v in value.items() if key != "checksum"}))


def interrupt_at(monkeypatch, step):
    """Request a stop after this many steps, counted over all runs."""
    steps = iter(range(1, 1000))

    class InterruptAt(StopRequest):
        @property
        def asked(self):
            return next(steps) >= step  # the loop looks once a step

        @asked.setter
        def asked(self, value):
            pass

    monkeypatch.setattr("comatch.training.signals.StopRequest", InterruptAt)


def break_fixmatch(monkeypatch, seed=None):
    """Make FixMatch's loss NaN, with one seed or with all."""
    forward = FixMatch.forward

    def broken(self, batch):
        step = forward(self, batch)
        if seed is not None and torch.initial_seed() != seed:
            return step
        return step._replace(loss=step.loss * float("nan"))

    monkeypatch.setattr(FixMatch, "forward", broken)


def settings_for(method):
    """The smallest settings, of those that the method has."""
    known = settings_of(recipes.get("digits", method))
    return {key: value for key, value in TINY.items() if key in known}


def start(*words, cwd, **options):
    """`comatch WORDS` as a process of its own, which can be killed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    return subprocess.Popen(
        [sys.executable, "-m", "comatch", *map(str, words)],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def make_images(root: Path, per_class: int = 12, unlabelled: int = 30, test: int = 4) -> Path:
    """A folder as a person might have it: two classes, stripes that stand and stripes that lie."""
    random = np.random.default_rng(0)

    def striped(kind: str) -> Image.Image:
        phase, period = random.integers(0, 6), random.integers(3, 6)
        stripes = ((np.arange(24) + phase) // period % 2 * 200).astype(np.uint8)
        grid = np.tile(stripes, (24, 1)) if kind == "standing" else np.tile(stripes, (24, 1)).T
        noise = random.integers(0, 40, (24, 24, 3))
        return Image.fromarray((grid[..., None] + noise).astype(np.uint8))

    for kind in ("standing", "lying"):
        for folder, count in ((kind, per_class), (f"test/{kind}", test)):
            (root / folder).mkdir(parents=True, exist_ok=True)
            for i in range(count):
                striped(kind).save(root / folder / f"{i}.png")
    (root / "unlabeled").mkdir(exist_ok=True)
    for i in range(unlabelled):
        striped(("standing", "lying")[i % 2]).save(root / "unlabeled" / f"{i}.jpg")
    return root


def write_cifar10(root: Path, per_batch: int) -> None:
    """CIFAR-10 in its binary version, with images of noise."""
    random = np.random.default_rng(0)
    folder = root / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    (folder / "batches.meta.txt").write_text("\n".join(f"class {c}" for c in range(10)) + "\n")
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        records = random.integers(0, 256, (per_batch, 3073), dtype=np.uint8)
        records[:, 0] = np.arange(per_batch) % 10
        records.tofile(folder / f"{name}.bin")


def error(value: torch.Tensor, truth: torch.Tensor) -> float:
    """How far a tensor is from what it should be, as a part of that."""
    assert value.shape == truth.shape
    value, truth = value.detach().double(), truth.detach().double()
    return ((value - truth).norm() / truth.norm()).item()


def assert_same(a, b, path=""):
    """Bit for bit, however deep."""
    assert type(a) is type(b), path
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype, path
        assert a.numpy().tobytes() == b.numpy().tobytes(), path
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), path
        for key in a:
            assert_same(a[key], b[key], f"{path}/{key}")
    elif isinstance(a, list):
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same(x, y, f"{path}/{i}")
    else:
        assert a == b, path


def photograph(width, height, seed=0):
    """Waves and some noise: neighbours resemble each other, as in photographs."""
    random = np.random.default_rng(seed)
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    waves = [np.sin(x / a + b) + np.cos(y / b + a) for a, b in random.uniform(3, 9, (3, 2))]
    pixels = 127 + 50 * np.stack(waves, 2) + random.normal(0, 5, (height, width, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def write_image(
    path: Path, colour: object = (90, 120, 150), size: tuple[int, int] = (12, 9)
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)  # type: ignore[arg-type]
    return path


def random_batches(count, b, mub, views, classes, unlabelled=None):
    """The same numbers every time, in float64; rows are drawn from so many, or are the first."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        x, *u = (
            torch.randn(n, 3, 8, 8, generator=generator, dtype=torch.float64)
            for n in (b, *[mub] * views)
        )
        y = torch.randint(classes, (b,), generator=generator)
        rows = torch.arange(mub)
        if unlabelled:
            rows = torch.randperm(unlabelled, generator=generator)[:mub]
        yield Batch(x, y, tuple(u), rows)


def make_classifier(folder: Path, classes=("lying", "standing"), image_size=8) -> Path:
    """The part of a run folder that predicts, with random weights."""
    torch.manual_seed(0)
    described = {
        "net": "wrn-10-1",
        "stem": "small",
        "image_size": image_size,
        "embedding_dim": 4,
        "classes": list(classes),
        "mean": [0.5, 0.5, 0.5],
        "std": [0.25, 0.25, 0.25],
    }
    net = Network(build_encoder("wrn-10-1", image_size, "small"), len(classes), 4)
    folder.mkdir(parents=True, exist_ok=True)
    RunFolder(folder).write_model(net, described)
    return folder
