"""How fast images are encoded by a frozen network, and how soon that gives a classifier.

`measure` compares the engine with eager PyTorch on the same views, and times views read from a
folder. `measure_folder` times whole runs of `comatch train`, start of the process included.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from comatch.commands.bench.stages import Report, silent
from comatch.data import feature_store, view_reader, views
from comatch.data.features import Encoder, groups
from comatch.data.image_folder import folder
from comatch.device import synchronize
from comatch.errors import UserError
from comatch.nets import build_encoder
from comatch.nets.encoders import Recommended
from comatch.nets.engine import Engine, eager
from comatch.training.recipe import Recipe
from comatch.types import Files

SECONDS = 5.0  # least time of each measurement
BATCHES = 4  # of different images
FULL = 26  # views


def measure_rate(one: Recommended, device: torch.device) -> float:
    """Views a second of an encoder, with random weights: they do not change the speed."""
    net = build_encoder(one.name.split(".")[0], one.image_size, "standard")
    mean, std = (torch.full((3,), 0.5, device=device) for _ in range(2))
    engine = Engine(net, mean, std, one.image_size, device)
    images = random_images(BATCHES * engine.batch, one.image_size)
    return rate(engine, images, device, seconds=2)


def rate(
    encode: Callable[[Tensor], Tensor],
    images: Tensor,
    device: torch.device,
    seconds: float = SECONDS,
) -> float:
    """Images a second."""
    encode(images)  # compiles
    began, done = synchronize(device), 0
    while time.perf_counter() - began < seconds:
        encode(images)
        done += len(images)
    return done / (synchronize(device) - began)


def random_images(number: int, size: int) -> Tensor:
    return torch.randint(0, 256, (number, 3, size, size), dtype=torch.uint8)


def measure(
    recipe: Recipe, encoder: Encoder, path: Path, device: torch.device, report: Report = silent
) -> dict[str, Any]:
    """Views a second: eager PyTorch, the engine, and with reading and augmentation."""
    report("looking for images")
    files = folder(path, recipe.dataset.image_size, stream="yes").train
    assert isinstance(files, Files)  # as stream="yes" promises
    report("converting the network")
    engine: Any = encoder.load()
    images = first_views(files, BATCHES * engine.batch, encoder.size)
    report("timing: eager PyTorch")
    plain = eager(engine.module, device, engine.batch, torch.contiguous_format)
    rates = {"eager PyTorch": rate(plain, images, device)}
    report(f"timing: {engine.name}")
    rates[engine.name] = rate(engine, images, device)
    report("timing: with reading and augmentation")
    rates["with reading and augmentation"] = pipeline_rate(files, encoder, engine)
    difference = (engine(images) - plain(images)).norm(dim=1) / plain(images).norm(dim=1)
    return {
        "files": len(files),
        "batch": engine.batch,
        "views_per_s": rates,
        "ratio": rates[engine.name] / rates["eager PyTorch"],
        "largest_difference": difference.max().item(),
    }


def first_views(files: Files, number: int, size: int) -> Tensor:
    """The plain views of the first images, repeated if there are too few."""
    rows = list(range(min(number, len(files))))
    digests = digests_of(files)
    found = [r.pixels[:, 0].copy() for r in view_reader.render(files, rows, digests, [0], size)]
    if not found or not sum(map(len, found)):
        raise UserError(f"{files.root} has no image that can be read")
    pixels = torch.from_numpy(np.concatenate(found))
    return pixels.repeat(-(-number // len(pixels)), 1, 1, 1)[:number]


def digests_of(files: Files) -> list[views.Digest]:
    """The digests of the files, which worker processes compare with what they read."""
    return [feature_store.hash_file(str(files.root / name)) for name in files.names]


def pipeline_rate(files: Files, encoder: Encoder, engine: Engine) -> float:
    """Views a second from the files to features, in the largest group of views."""
    numbers = groups(FULL)[-1]
    digests = digests_of(files)
    chunks = view_reader.render(files, range(len(files)), digests, numbers, encoder.size)
    for found in islice(chunks, view_reader.LANES):  # start of the processes
        engine(found.pixels.reshape(-1, 3, encoder.size, encoder.size))
    began, done = time.perf_counter(), 0
    for found in chunks:
        engine(found.pixels.reshape(-1, 3, encoder.size, encoder.size))
        done += len(found.rows) * len(numbers)
        if time.perf_counter() - began > 2 * SECONDS:
            break
    chunks.close()  # type: ignore[attr-defined]
    if not done:
        raise UserError(f"{files.root} has too few images to measure: about 100 are enough")
    return done / (time.perf_counter() - began)


# --------------------------------------------------------------------------- whole commands


def measure_folder(words: list[str], report: Report = silent) -> dict[str, float]:
    """Seconds of `comatch train WORDS` with an empty and with a filled feature cache."""
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as temporary:
        cache, home = Path(temporary) / "cache", Path(temporary)
        for name, views_of_each in (
            ("first classifier, 2 views", ["--set", "views=2"]),
            (f"the other views up to {FULL}", ["--set", f"views={FULL}"]),
            (f"{FULL} views, cached", ["--set", f"views={FULL}"]),
        ):
            report(f"timing: {name}")
            out = str(home / f"run{len(seconds)}")
            seconds[name] = time_command(["train", *words, *views_of_each, "--out", out], cache)
    return seconds


def time_command(words: list[str], cache: Path) -> float:
    environment = {**os.environ, "COMATCH_CACHE": str(cache)}
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "comatch", *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise UserError(f"comatch {' '.join(words)}: {done.stderr.strip().splitlines()[-1]}")
    return time.perf_counter() - began
