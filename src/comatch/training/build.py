"""From a recipe, a data set and a split to everything that a step needs, on one device."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from comatch import distributed, methods
from comatch.config import Recipe
from comatch.data.cached_features import CachedFeatures
from comatch.data.resident import Resident
from comatch.data.splits import Split
from comatch.data.streaming import Feed, Streaming, in_pieces, side_for
from comatch.errors import UserError
from comatch.methods import Method
from comatch.nets import WideResNet, build_encoder
from comatch.nets.pretrained import Loaded
from comatch.nets.sync_batchnorm import sync_batchnorm
from comatch.training.init_weights import begin_from
from comatch.training.step import TrainStep, looks_at_everything
from comatch.types import Dataset, Files, Task

SMALLEST = 8  # side of an image of which a crop still shows something


class Assembly(NamedTuple):
    method: Method
    data: Feed
    step: TrainStep
    mean: Tensor  # [3]
    std: Tensor  # [3]
    loaded: Loaded | None = None  # what it begins from, if not from random weights


def assemble(recipe: Recipe, dataset: Dataset, split: Split, device: torch.device) -> Assembly:
    mean, std = (value.to(device) for value in normalisation(recipe, dataset))
    method = build_method(recipe, dataset, split, mean, std)
    loaded = begin_from(method, recipe, dataset.classes)
    nets: list[Any] = [method.net, method.ema.net]
    if recipe.frozen:
        for net in nets:
            net.freeze()
    sync_batchnorm(method)
    method.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    low = choose_precision(recipe.precision, device) == "bf16"
    for net in nets:
        net.compute_dtype = torch.bfloat16 if low else None
    data = build_feed(recipe, dataset, split, method, device)
    return Assembly(method, data, TrainStep(method, data, recipe, mean, std), mean, std, loaded)


def build_feed(
    recipe: Recipe, dataset: Dataset, split: Split, method: Method, device: torch.device
) -> Feed:
    """What gives the batches: from the device's memory, or from files as they are needed."""
    train = dataset.train
    if isinstance(train, Files):
        if recipe.frozen:
            raise UserError(
                "a frozen encoder looks at all images before the first step, and streamed ones "
                "never are in memory at once: use --set stream=no, or --set frozen=no"
            )
        feed = Streaming(
            train.subset(split.labelled),
            train.subset(split.unlabelled if method.views else split.unlabelled[:0]),
            recipe.batch,
            recipe.mu if method.views else 0,
            side=side_for(recipe.image_size),
            device=device,
            seed=recipe.seed,
            workers=recipe.workers,
            ahead=recipe.ahead,
        )
        if looks_at_everything(method):
            feed.everything()  # which says that this cannot be
        return feed
    unlabelled, mu = split.unlabelled, recipe.mu
    if not method.views:  # it looks at no unlabelled image, and gets one not to look at
        unlabelled, mu = split.labelled[:1], 1
    parts = train.subset(split.labelled), train.subset(unlabelled), recipe.batch, mu
    if not recipe.frozen:
        return Resident(*parts).to(device)
    return CachedFeatures(
        *parts,
        labelled_view=recipe.labelled_view,
        views=method.views,
        kept=recipe.kept_views,
        width=method.net.classifier.in_features,
    ).to(device)


def build_method(
    recipe: Recipe, dataset: Dataset, split: Split, mean: Tensor, std: Tensor
) -> Method:
    """The method with its network; settings that do not fit the data are told here."""
    check_shares(recipe)
    encoder = build_encoder(recipe.net, recipe.image_size, recipe.stem, recipe.norm_momentum)
    if isinstance(encoder, WideResNet):
        encoder.fused = recipe.fused
    task = Task(
        classes=len(dataset.classes),
        steps=recipe.steps,
        epoch=max(1, len(split.unlabelled) // (recipe.batch * recipe.mu)),
        unlabelled=len(split.unlabelled),
        mean=tuple(mean.tolist()),
        std=tuple(std.tolist()),
    )
    method = methods.build(recipe.method, encoder, task)
    if recipe.frozen and method.turns_images:
        raise UserError(
            f"{recipe.method.method} learns which way up images are, and a frozen encoder has "
            "seen them before: use another --method, or --set frozen=no"
        )
    if method.views:
        check_images(recipe)
        check_batch(recipe, len(split.unlabelled))
    return method


def choose_precision(precision: str, device: torch.device) -> str:
    """What "auto" means here. A run writes it down: it goes on as it began, wherever that is."""
    return precision if precision != "auto" else "bf16" if has_bf16(device) else "fp32"


def has_bf16(device: torch.device) -> bool:
    """Whether the hardware computes in bf16, so that it is faster than float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def check_images(recipe: Recipe) -> None:
    if recipe.image_size < SMALLEST:
        raise UserError(
            f"{recipe.method.method} learns from crops, and images of {recipe.image_size} pixels "
            f"are too small for that: --set image_size={SMALLEST} or more"
        )


def check_shares(recipe: Recipe) -> None:
    """Every rank takes the same part of a batch."""
    ranks = distributed.world()
    if recipe.batch % ranks:
        fit = max(1, recipe.batch // ranks) * ranks
        raise UserError(
            f"batch={recipe.batch} cannot be shared evenly by {ranks} processes: "
            f"--set batch={fit}, or another --nproc-per-node"
        )


def check_batch(recipe: Recipe, there: int) -> None:
    wanted = recipe.batch * recipe.mu
    if there >= wanted:
        return
    if there == 0:
        raise UserError(
            f"{recipe.method.method} needs unlabelled images and there are none: add some, "
            "keep fewer --labels, or use --method supervised"
        )
    mu, batch = there // recipe.batch, max(1, there // recipe.mu)
    hint = f"mu={mu}" if mu else f"batch={batch}"
    raise UserError(
        f"{there} unlabelled images are fewer than the {wanted} that a step takes "
        f"(batch {recipe.batch} x mu {recipe.mu}): add images, or --set {hint}"
    )


def normalisation(recipe: Recipe, dataset: Dataset) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each channel, on a scale of 0 to 1: the recipe's, or measured."""
    mean, std = recipe.mean, recipe.std
    if mean is None or std is None:
        train, cpu = dataset.train, torch.device("cpu")
        some = train.subset(torch.arange(0, len(train), max(1, len(train) // 2_000)))
        images = torch.cat([piece for piece, _ in in_pieces(some, recipe.image_size, cpu)])
        pixels = images.transpose(0, 1).flatten(1).double() / 255  # [3, n]
        mean = mean or tuple(pixels.mean(1).tolist())
        std = std or tuple(pixels.std(1).clamp(min=1e-3).tolist())
    return torch.tensor(mean), torch.tensor(std)


def description(recipe: Recipe, classes: list[str], assembly: Assembly) -> dict[str, Any]:
    """All that is needed to use the trained network: goes into model.json beside the weights."""
    projector = assembly.method.evaluated.projector
    streamed = isinstance(assembly.data, Streaming)
    return {
        "net": recipe.net,
        "stem": recipe.stem,
        "image_size": recipe.image_size,
        "resize": side_for(recipe.image_size) if streamed else recipe.image_size,
        "embedding_dim": projector.width if projector else 0,
        "frozen": recipe.frozen,
        "classes": classes,
        "mean": assembly.mean.tolist(),
        "std": assembly.std.tolist(),
        "preprocessing": "shorter side to resize, centre crop of image_size, "
        "(pixel / 255 - mean) / std",
    }
