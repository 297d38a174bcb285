"""How fast images come from a disk into a step, and how much memory of the host that takes.

Measured is what training does, stage upon stage: files are read, decoded and squared, augmented to
one view, and to all the views of the method. Beside it, in the same run and with as many workers,
stands a plain torchvision DataLoader: Pillow decodes, one random resized crop, one flip, a tensor.
One view is what both make, so the ratio is of those two. All files have been read before the clock
starts, so that both find them where the system keeps what was read lately.
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
from torch.utils.data import Dataset as PlainDataset

from comatch import methods
from comatch.augment import policies
from comatch.commands.bench.stages import Say, silent
from comatch.config import Recipe, replace
from comatch.data.image_folder import folder
from comatch.data.image_workers import default_workers, pieces
from comatch.data.reader import CHUNK, Reader
from comatch.data.streaming import Streaming, side_for
from comatch.training.loop import wait_for
from comatch.training.step import choose_engine, views_for
from comatch.types import Files

SECONDS = 5.0  # that each stage is timed for, at least
WARM_UP = 3  # batches before
PLAIN_BATCH = 64  # small, so that batches of many workers come evenly
ON_CPU = 8  # labelled images a batch: larger ones would only take longer
MOST_FILES = 20_000  # few enough to stay in the system's memory once they were read

Work = Callable[[Tensor], object]


def measure(
    recipe: Recipe,
    path: Path,
    device: torch.device,
    workers: int | None = None,
    say: Say = silent,
) -> dict[str, Any]:
    """Images a second of each stage and of the plain loader, and MiB of the host's memory."""
    say("looking for images")
    files = folder(path, recipe.image_size, stream="yes").train
    assert isinstance(files, Files)  # which is what "yes" means
    files = files.subset(torch.arange(0, len(files), -(-len(files) // MOST_FILES)))
    workers = workers or default_workers()
    recipe = replace(recipe, batch=min(recipe.batch, ON_CPU if device.type == "cpu" else 2**20))
    views = methods.METHODS[recipe.method.method].views
    one = replace(recipe, weak_crop="resized")
    memory = {"before": resident_mb()}

    with Reader(side_for(recipe.image_size), device, workers) as reader:
        decoder = "CPU" if reader.decode is None else "GPU"
        every = pieces(range(len(files)), CHUNK)
        say("reading them once")
        for rows in every:
            reader.read(files, rows)
        say("timing: read")
        again = itertools.cycle(every)
        rates = {"read": rate(lambda: reader.read(files, next(again)), device)}
    stages: dict[str, Work] = {
        "read, decode": lambda images: None,
        "read, decode, one view": augmentation(one, ("weak",), device),
    }
    if len(views) > 1:
        stages[f"read, decode, {len(views)} views"] = augmentation(recipe, views, device)
    for name, work in stages.items():
        say(f"timing: {name}")
        rates[name], seen = stream_rate(recipe, files, device, workers, work)
        memory.setdefault("streaming", seen)  # before anything is augmented
        memory["peak"] = most([memory.get("peak"), seen])

    say("timing: a plain DataLoader")
    plain = plain_rate(one, files, device, workers)
    result: dict[str, Any] = {
        "workers": workers,
        "files": len(files),
        "kilobytes": sum((files.root / n).stat().st_size for n in files.names) / len(files) / 1e3,
        "batch": recipe.batch * (1 + recipe.mu),
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
    """Images a second, where each call takes some of them."""
    for _ in range(warm_up):  # until it is compiled, and what was prepared ahead is used up
        take()
    began, taken = wait_for(device), 0
    while time.perf_counter() - began < SECONDS:
        taken += take()
    return taken / (wait_for(device) - began)


def stream_rate(
    recipe: Recipe, files: Files, device: torch.device, workers: int, work: Work
) -> tuple[float, int | None]:
    """Of batches as a step takes them, given to some work on the device; and the most memory."""
    feed = Streaming(
        files,
        files,
        recipe.batch,
        recipe.mu,
        side=side_for(recipe.image_size),
        device=device,
        workers=workers,
        ahead=recipe.ahead,
    )
    steps, memory = itertools.count(), list[int | None]()

    def take() -> int:
        feed.before_step(next(steps))
        work(feed.images)
        memory.append(resident_mb(feed.reader.workers.processes))
        return len(feed.images)

    try:
        return rate(take, device), most(memory)
    finally:
        feed.reader.close(wait=True)  # processes are forked later: better without threads


def augmentation(recipe: Recipe, views: tuple[str, ...], device: torch.device) -> Work:
    """These views of every image, as the step makes them."""
    chosen = [policies.build(name, views_for(recipe)) for name in views]
    mean, std = (torch.full((3,), 0.5, device=device) for _ in range(2))

    def augment(images: Tensor) -> list[Tensor]:
        seen = [policies.normalise(policy(images), mean, std) for policy in chosen]
        return [view.contiguous(memory_format=torch.channels_last) for view in seen]

    if choose_engine(recipe.engine, device) == "eager":
        return augment
    return torch.compile(augment)


# ---------------------------------------------------------------------------- the plain loader


class Plain(PlainDataset[Tensor]):
    """Files as torchvision's ImageFolder would give them."""

    def __init__(self, paths: list[str], transform: Callable[[Any], Tensor]) -> None:
        from torchvision.datasets.folder import default_loader

        self.paths, self.transform, self.load = paths, transform, default_loader

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:
        return self.transform(self.load(self.paths[index]))


def plain_rate(recipe: Recipe, files: Files, device: torch.device, workers: int) -> dict[str, Any]:
    """The same images through processes that do everything for one image at a time."""
    try:
        from torchvision import transforms
    except ImportError:
        return {"error": "torchvision is not installed"}
    chain = [
        transforms.RandomResizedCrop(recipe.image_size, scale=(recipe.min_area, 1.0)),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
    ]
    paths = [os.path.join(files.root, name) for name in files.names]
    loader = DataLoader(
        Plain(paths, transforms.Compose(chain)),
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
            passing: Any = iter(loader)
            for batch in passing:
                yield batch
                memory.append(resident_mb(passing._workers))

    endless = batches()

    def take() -> int:
        return len(next(endless).to(device, non_blocking=True))

    try:
        speed = rate(take, device, 2 * workers)
    except (OSError, RuntimeError, ValueError) as error:  # it stops at an image that is damaged
        return {"error": str(error).strip().splitlines()[-1]}
    finally:
        endless.close()
    return {"images_per_s": speed, "memory_mb": most(memory)}


def most(memory: Iterable[int | None]) -> int | None:
    """Of what is known; nothing if nothing is."""
    return max((mb for mb in memory if mb is not None), default=None)


def resident_mb(workers: Iterable[Any] = ()) -> int | None:
    """Memory that this process holds now, with its workers; some of theirs is shared."""
    processes = ["self", *(worker.pid for worker in workers)]
    try:
        pages = [Path(f"/proc/{pid}/statm").read_text().split()[1] for pid in processes]
    except OSError:  # no Linux, or a worker that ended
        return None
    return sum(map(int, pages)) * os.sysconf("SC_PAGE_SIZE") // 2**20
