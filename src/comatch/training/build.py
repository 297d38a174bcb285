"""From a recipe, a data set and a split to everything that training needs, on one device."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from comatch import methods
from comatch.augment import policies
from comatch.augment.batch import AugmentBatch
from comatch.augment.policies import Views
from comatch.config import values_of
from comatch.data.cached_features import CachedFeatures
from comatch.data.feed import Feed
from comatch.data.resident import Resident
from comatch.data.splits import Split
from comatch.data.streaming import Streaming, in_pieces, side_for
from comatch.device import choose_precision
from comatch.methods import Method
from comatch.nets import WideResNet, build_encoder
from comatch.nets.frozen import freeze
from comatch.nets.pretrained import Loaded
from comatch.nets.sync_batchnorm import sync_batchnorm
from comatch.training.checks import check
from comatch.training.init_weights import load_initial
from comatch.training.recipe import Recipe
from comatch.training.step import TrainStep
from comatch.types import Dataset, Files, Task


class Built(NamedTuple):
    """A run that is ready for its first step."""

    recipe: Recipe
    classes: list[str]
    method: Method
    feed: Feed
    step: TrainStep
    mean: Tensor  # [3]
    std: Tensor  # [3]
    loaded: Loaded | None = None  # the initial weights, if they are not random


def build(
    recipe: Recipe,
    dataset: Dataset,
    split: Split,
    device: torch.device,
    cache: Path = Path("features"),
) -> Built:
    """Build method, feed and step. A feed of cached features keeps its files in `cache`."""
    mean, std = (value.to(device) for value in normalisation(recipe, dataset))
    method = build_method(recipe, dataset, split, mean, std)
    loaded = load_initial(method, recipe.model, recipe.dataset.image_size, dataset.classes)
    nets: list[Any] = [method.net, method.ema.net]
    if recipe.model.frozen:
        for net in nets:
            freeze(net)
    sync_batchnorm(method)
    method.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    bf16 = choose_precision(recipe.precision, device) == "bf16"
    for net in nets:
        net.compute_dtype = torch.bfloat16 if bf16 else None
    views = Views(**values_of(recipe.views), size=recipe.dataset.image_size)
    augment = AugmentBatch(method.views, views, mean, std)
    feed = build_feed(recipe, dataset, split, method, augment, views, cache)
    step = TrainStep(method, feed, recipe, device)
    return Built(recipe, dataset.classes, method, feed, step, mean, std, loaded)


def build_method(
    recipe: Recipe, dataset: Dataset, split: Split, mean: Tensor, std: Tensor
) -> Method:
    """The method with its network. Settings that do not fit method or data are an error."""
    model, optim = recipe.model, recipe.optim
    encoder = build_encoder(
        model.net,
        recipe.dataset.image_size,
        model.stem,
        model.norm_momentum,
        model.zero_last_gamma,
    )
    if isinstance(encoder, WideResNet):
        encoder.fused = model.fused
    unlabelled = len(unlabelled_rows(recipe, split))
    task = Task(
        classes=len(dataset.classes),
        steps=optim.steps,
        epoch=max(1, unlabelled // (optim.batch * optim.mu)),
        unlabelled=unlabelled,
        mean=tuple(mean.tolist()),
        std=tuple(std.tolist()),
    )
    method = methods.build(recipe.method, encoder, task)
    for net in (method.net, method.ema.net):
        if net.projector:
            net.projector.set_activation(model.head_activation)  # type: ignore[union-attr, operator]
    check(recipe, method, dataset.train, len(split.unlabelled))
    return method


def unlabelled_rows(recipe: Recipe, split: Split) -> Tensor:
    """The images that a step uses without labels; of some methods, labelled ones are among them."""
    too = methods.find(recipe.method.method).labelled_too
    return torch.cat([split.unlabelled, split.labelled]) if too else split.unlabelled


def build_feed(
    recipe: Recipe,
    dataset: Dataset,
    split: Split,
    method: Method,
    augment: AugmentBatch,
    views: Views,
    cache: Path,
) -> Feed:
    """The feed for these images: read from disk, in device memory, or as cached features."""
    train, optim, device = dataset.train, recipe.optim, augment.mean.device
    unlabelled, mu = unlabelled_rows(recipe, split), optim.mu
    if isinstance(train, Files):
        return Streaming(
            train.subset(split.labelled),
            train.subset(unlabelled if method.views else unlabelled[:0]),
            optim.batch,
            optim.mu if method.views else 0,
            augment,
            side=side_for(recipe.dataset.image_size),
            device=device,
            seed=recipe.seed,
            workers=recipe.streaming.workers,
            ahead=recipe.streaming.ahead,
        )
    if not method.views:  # the method uses no unlabelled image, and the feed cannot be empty
        unlabelled, mu = split.labelled[:1], 1
    parts = train.subset(split.labelled), train.subset(unlabelled), optim.batch, mu
    if not recipe.model.frozen:
        return Resident(*parts, augment).to(device)
    return CachedFeatures(
        *parts,
        views=method.views,
        kept=recipe.model.kept_views,
        width=method.net.classifier.in_features,
        encode=frozen_encoder(method, augment, views),
        measure=lambda features: [
            net.encoder.measure(features)  # type: ignore[operator, union-attr]
            for net in (method.net, method.ema.net)
        ],
        folder=cache,
        seed=recipe.seed,
    ).to(device)


def frozen_encoder(
    method: Method, augment: AugmentBatch, views: Views
) -> Callable[[str, Tensor], Tensor]:
    """A function from a kind of view and images [n, 3, H, W] to features [n, width]."""

    @torch.no_grad()
    def encode(kind: str, images: Tensor) -> Tensor:
        with method.net.eval_mode():
            view = augment.plain(policies.build(kind, views)(images))
            features: Tensor = method.net.encoder.net(view)  # type: ignore[operator]
        return features

    return encode


def normalisation(recipe: Recipe, dataset: Dataset) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each channel, on a scale of 0 to 1: the recipe's, or measured."""
    mean, std = recipe.dataset.mean, recipe.dataset.std
    if mean is None or std is None:
        train, cpu = dataset.train, torch.device("cpu")
        some = train.subset(torch.arange(0, len(train), max(1, len(train) // 2_000)))
        size = recipe.dataset.image_size
        images = torch.cat([piece for piece, _ in in_pieces(some, size, cpu)])
        pixels = images.transpose(0, 1).flatten(1).double() / 255  # [3, n]
        mean = mean or tuple(pixels.mean(1).tolist())
        std = std or tuple(pixels.std(1).clamp(min=1e-3).tolist())
    return torch.tensor(mean), torch.tensor(std)


def description(run: Built) -> dict[str, Any]:
    """What is needed to use the trained network: model.json beside the weights."""
    projector = run.method.evaluated.projector
    model, size = run.recipe.model, run.recipe.dataset.image_size
    return {
        "net": model.net,
        "stem": model.stem,
        "image_size": size,
        "resize": side_for(size) if isinstance(run.feed, Streaming) else size,
        "embedding_dim": projector.width if projector else 0,
        "head_activation": model.head_activation,
        "frozen": model.frozen,
        "classes": run.classes,
        "mean": run.mean.tolist(),
        "std": run.std.tolist(),
        "preprocessing": "shorter side to resize, centre crop of image_size, "
        "(pixel / 255 - mean) / std",
    }
