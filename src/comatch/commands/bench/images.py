"""How fast images get from a disk into a step, and how much memory of the host that takes.

Four rates are measured, each adding one stage: files are read, decoded and cropped to squares,
augmented to one view, and augmented to all views of the method. For comparison, a plain
torchvision DataLoader is measured in the same run with as many workers: Pillow decodes, then one
random resized crop, one flip, a tensor. The ratio compares the two rates for one view. All files
are read once before timing, so that both find them in the system's file cache.
"""

import itertools
import os
import time
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from comatch import methods
from comatch.augment.batch import AugmentBatch
from comatch.augment.policies import Views
from comatch.commands.bench.stages import Report, silent
from comatch.config import replace, values_of
from comatch.data.image_folder import folder
from comatch.data.image_workers import default_workers, pieces
from comatch.data.reader import CHUNK, Reader
from comatch.data.streaming import Streaming, side_for
from comatch.device import synchronize
from comatch.training.capture import choose_engine
from comatch.training.recipe import Recipe
from comatch.types import Files

SECONDS = 5.0  # least time of each measurement
WARM_UP = 3  # batches
PLAIN_BATCH = 64  # small, so that batches of many workers arrive evenly
BATCH_ON_CPU = 8  # labelled images; larger batches would only take longer
MOST_FILES = 20_000  # few enough to stay in the system's file cache

Work = Callable[[Tensor], object]


def measure(
    recipe: Recipe,
    path: Path,
    device: torch.device,
    workers: int | None = None,
    report: Report = silent,
) -> dict[str, Any]:
    """Images a second of each stage and of the plain loader, and MiB of the host's memory."""
    report("looking for images")
    files = folder(path, recipe.dataset.image_size, stream="yes").train
    assert isinstance(files, Files)  # as stream="yes" promises
    files = files.subset(torch.arange(0, len(files), -(-len(files) // MOST_FILES)))
    workers = workers or default_workers()
    if device.type == "cpu":
        recipe = replace(recipe, batch=min(recipe.optim.batch, BATCH_ON_CPU))
    views = methods.find(recipe.method.method).views
    one = replace(recipe, weak_crop="resized")
    memory = {"before": resident_mb()}

    with Reader(side_for(recipe.dataset.image_size), device, workers) as reader:
        decoder = "CPU" if reader.decode is None else "GPU"
        chunks = pieces(range(len(files)), CHUNK)
        report("reading all files once")
        for rows in chunks:
            reader.read(files, rows)
        report("timing: read")
        endless = itertools.cycle(chunks)
        rates = {"read": rate(lambda: reader.read(files, next(endless)), device)}
    stages: dict[str, Work] = {
        "read, decode": lambda images: None,
        "read, decode, one view": augmentation(one, ("weak",), device),
    }
    if len(views) > 1:
        stages[f"read, decode, {len(views)} views"] = augmentation(recipe, views, device)
    for name, work in stages.items():
        report(f"timing: {name}")
        rates[name], peak = stream_rate(recipe, files, device, workers, work)
        memory.setdefault("streaming", peak)  # without any augmentation
        memory["peak"] = largest([memory.get("peak"), peak])

    report("timing: a plain DataLoader")
    plain = plain_rate(one, files, device, workers)
    result: dict[str, Any] = {
        "workers": workers,
        "files": len(files),
        "kilobytes": sum((files.root / n).stat().st_size for n in files.names) / len(files) / 1e3,
        "batch": recipe.optim.batch * (1 + recipe.optim.mu),
        "views": list(views),
        "decoder": decoder,
        "images_per_s": rates,
        "memory_mb": memory,
        "plain": plain,
    }
    if "images_per_s" in plain:
        result["ratio"] = rates["read, decode, one view"] / plain["images_per_s"]
    return result


def rate(take: Callable[[], int], device: torch.device, warm_up: int = WARM_UP) -> float:
    """Images a second. Each call of `take` processes some images and returns their number."""
    for _ in range(warm_up):  # compiles, and uses up the batches that were read in advance
        take()
    began, taken = synchronize(device), 0
    while time.perf_counter() - began < SECONDS:
        taken += take()
    return taken / (synchronize(device) - began)


def stream_rate(
    recipe: Recipe, files: Files, device: torch.device, workers: int, work: Work
) -> tuple[float, int | None]:
    """Images a second of a training feed whose batches are given to `work`; and peak memory."""
    feed = Streaming(
        files,
        files,
        recipe.optim.batch,
        recipe.optim.mu,
        augment_batch(recipe, ("weak",), device),  # not called: `work` augments
        image_size=recipe.dataset.image_size,
        device=device,
        workers=workers,
        ahead=recipe.streaming.ahead,
    )
    steps, memory = itertools.count(), list[int | None]()

    def take() -> int:
        feed.before_step(next(steps))
        work(feed.images)
        memory.append(resident_mb(feed.reader.workers.processes))
        return len(feed.images)

    try:
        return rate(take, device), largest(memory)
    finally:
        feed.reader.close(wait=True)  # the plain loader forks, which is unsafe beside threads


def augmentation(recipe: Recipe, views: tuple[str, ...], device: torch.device) -> Work:
    """A function that makes these views of every image, as a step does."""
    batch = augment_batch(recipe, views, device)

    def augment(images: Tensor) -> list[Tensor]:
        return [batch.plain(view(images)) for view in batch.unlabelled]

    if choose_engine(recipe.engine, device) == "eager":
        return augment
    return torch.compile(augment)


def augment_batch(recipe: Recipe, views: tuple[str, ...], device: torch.device) -> AugmentBatch:
    mean, std = (torch.full((3,), 0.5, device=device) for _ in range(2))
    config = Views(**values_of(recipe.views), size=recipe.dataset.image_size)
    return AugmentBatch(views, config, mean, std)


# ---------------------------------------------------------------------------- the plain loader


class ImagePaths(TorchDataset[Tensor]):
    """Image files as torchvision's ImageFolder loads them."""

    def __init__(self, paths: list[str], transform: Callable[[Any], Tensor]) -> None:
        from torchvision.datasets.folder import default_loader

        self.paths, self.transform, self.load = paths, transform, default_loader

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:
        return self.transform(self.load(self.paths[index]))


def plain_rate(recipe: Recipe, files: Files, device: torch.device, workers: int) -> dict[str, Any]:
    """Images a second and memory of a torchvision DataLoader on the same images."""
    try:
        from torchvision import transforms
    except ImportError:
        return {"error": "torchvision is not installed"}
    chain = [
        transforms.RandomResizedCrop(recipe.dataset.image_size, scale=(recipe.views.min_area, 1.0)),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
    ]
    paths = [os.path.join(files.root, name) for name in files.names]
    loader = DataLoader(
        ImagePaths(paths, transforms.Compose(chain)),
        batch_size=min(PLAIN_BATCH, len(paths)),
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        pin_memory=device.type == "cuda",
        persistent_workers=True,
    )
    memory: list[int | None] = []

    def batches() -> Generator[Tensor, None, None]:
        while True:
            epoch: Any = iter(loader)
            for batch in epoch:
                yield batch
                memory.append(resident_mb(epoch._workers))

    endless = batches()

    def take() -> int:
        return len(next(endless).to(device, non_blocking=True))

    try:
        speed = rate(take, device, 2 * workers)
    except (OSError, RuntimeError, ValueError) as error:  # it stops at a damaged image
        return {"error": str(error).strip().splitlines()[-1]}
    finally:
        endless.close()
    return {"images_per_s": speed, "memory_mb": largest(memory)}


def largest(memory: Iterable[int | None]) -> int | None:
    """The largest known value; None if none is known."""
    return max((mb for mb in memory if mb is not None), default=None)


def resident_mb(workers: Iterable[Any] = ()) -> int | None:
    """Memory of this process and its workers in MiB; pages that they share count several times."""
    processes = ["self", *(worker.pid for worker in workers)]
    try:
        pages = [Path(f"/proc/{pid}/statm").read_text().split()[1] for pid in processes]
    except OSError:  # not Linux, or a worker that ended
        return None
    return sum(map(int, pages)) * os.sysconf("SC_PAGE_SIZE") // 2**20
