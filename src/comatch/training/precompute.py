"""Before the first step of a run whose encoder is frozen: the features of all views it may draw.

A pass looks at one view of every image. Its features are a file in RUN/features until the run is
finished, so a run that is stopped on the way goes on with the pass at hand.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from comatch import distributed, files
from comatch.augment import policies
from comatch.config import Recipe
from comatch.data.cached_features import CachedFeatures
from comatch.training.build import Assembly
from comatch.training.progress import Bar, StopRequest
from comatch.training.run_folder import RunFolder
from comatch.training.step import views_for

AT_ONCE = 128  # images


def precompute(
    folder: RunFolder, recipe: Recipe, run: Assembly, bar: Bar, stop: StopRequest
) -> bool:
    """Fills what the run draws its batches from; false if somebody asked to stop on the way."""
    data = run.data
    if not isinstance(data, CachedFeatures):
        return True
    images = torch.cat([data.images_x, data.images_u])
    width = run.method.net.classifier.in_features
    passes, views = data.passes(), views_for(recipe)
    folder.features.mkdir(exist_ok=True)
    for index, (kind, number) in enumerate(passes):

        def tell(done: int, before: int = index * len(images)) -> None:
            bar.look(before + done, len(passes) * len(images))

        path = folder.features / f"{kind}-{number}.safetensors"
        features = there = read(path, len(images), width)
        if features is None:
            # A pass draws the same whichever others are there already, and nothing from the run.
            with torch.random.fork_rng([run.mean.device] if run.mean.is_cuda else []):
                torch.manual_seed(recipe.seed * len(passes) + index)
                features = look(run, images, policies.build(kind, views), tell, stop)
        if distributed.any_rank(stop.asked):
            return False
        if there is None:
            write(path, features)
        data.keep(kind, number, features.to(run.mean.device))
    seen = data.as_labelled().float()
    nets: list[Any] = [run.method.net, run.method.ema.net]
    for net in nets:
        net.scaling.measure(seen)
    return True


@torch.no_grad()
def look(
    run: Assembly,
    images: Tensor,
    policy: Callable[[Tensor], Tensor],
    tell: Callable[[int], None],
    stop: StopRequest,
) -> Tensor:  # [N, width]
    """What the encoder says of one view of each image; of fewer, if it is to stop."""
    net, chunks = run.method.net, list[Tensor]()
    with net.eval_mode():
        for begin in range(0, len(images), AT_ONCE):
            x = policies.normalise(policy(images[begin : begin + AT_ONCE]), run.mean, run.std)
            chunks.append(net.encoder(x.contiguous(memory_format=torch.channels_last)).half())
            tell(begin + len(x))
            if stop.asked:
                break
    return torch.cat(chunks)


def write(path: Path, features: Tensor) -> None:
    content = save({"features": features.cpu()})
    files.write_file(path, lambda file: file.write(content))


def read(path: Path, images: int, width: int) -> Tensor | None:  # [images, width]
    """What an earlier session computed; one that is damaged or of another size is none."""
    try:
        features = load_file(path)["features"]
    except (OSError, SafetensorError, KeyError):
        return None
    return features if features.shape == (images, width) else None


def forget(folder: RunFolder) -> None:
    """The run is finished: what was computed ahead is of no use any more."""
    shutil.rmtree(folder.features, ignore_errors=True)
