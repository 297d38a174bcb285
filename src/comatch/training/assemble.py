"""From a recipe, a data set and a split to everything that a step needs, on one device."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from comatch import methods
from comatch.config import Recipe
from comatch.data.resident import Resident
from comatch.data.splits import Split
from comatch.errors import UserError
from comatch.methods import Method
from comatch.nets import WideResNet, build_encoder
from comatch.training.step import TrainStep
from comatch.types import Dataset, Task

SMALLEST = 8  # side of a picture of which a crop still shows something


class Assembly(NamedTuple):
    method: Method
    data: Resident
    step: TrainStep
    mean: Tensor  # [3]
    std: Tensor  # [3]


def assemble(recipe: Recipe, dataset: Dataset, split: Split, device: torch.device) -> Assembly:
    mean, std = (value.to(device) for value in normalisation(recipe, dataset))
    method = build_method(recipe, dataset, split, mean, std)
    method.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    low = choose_precision(recipe.precision, device) == "bf16"
    for net in (method.net, method.evaluated):
        net.compute_dtype = torch.bfloat16 if low else None
    unlabelled, mu = split.unlabelled, recipe.mu
    if not method.views:  # it looks at no unlabelled picture, and gets one not to look at
        unlabelled, mu = split.labelled[:1], 1
    data = Resident(
        dataset.train.subset(split.labelled), dataset.train.subset(unlabelled), recipe.batch, mu
    ).to(device)
    return Assembly(method, data, TrainStep(method, data, recipe, mean, std), mean, std)


def build_method(
    recipe: Recipe, dataset: Dataset, split: Split, mean: Tensor, std: Tensor
) -> Method:
    """The method with its network; settings that do not fit the data are told here."""
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
    if method.views:
        check_pictures(recipe)
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


def check_pictures(recipe: Recipe) -> None:
    if recipe.image_size < SMALLEST:
        raise UserError(
            f"{recipe.method.method} learns from crops, and pictures of {recipe.image_size} pixels "
            f"are too small for that: --set image_size={SMALLEST} or more"
        )


def check_batch(recipe: Recipe, there: int) -> None:
    wanted = recipe.batch * recipe.mu
    if there >= wanted:
        return
    if there == 0:
        raise UserError(
            f"{recipe.method.method} needs unlabelled pictures and there are none: add some, "
            "keep fewer --labels, or use --method supervised"
        )
    mu, batch = there // recipe.batch, max(1, there // recipe.mu)
    hint = f"mu={mu}" if mu else f"batch={batch}"
    raise UserError(
        f"{there} unlabelled pictures are fewer than the {wanted} that a step takes "
        f"(batch {recipe.batch} x mu {recipe.mu}): add pictures, or --set {hint}"
    )


def normalisation(recipe: Recipe, dataset: Dataset) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each channel, on a scale of 0 to 1: the recipe's, or measured."""
    some = dataset.train.images[:: max(1, len(dataset.train) // 2_000)]
    pixels = some.transpose(0, 1).flatten(1).double() / 255  # [3, n]
    measured = pixels.mean(1).tolist(), pixels.std(1).clamp(min=1e-3).tolist()
    mean, std = recipe.mean or measured[0], recipe.std or measured[1]
    return torch.tensor(mean), torch.tensor(std)


def description(recipe: Recipe, classes: list[str], assembly: Assembly) -> dict[str, Any]:
    """All that is needed to use the trained network: goes into model.json beside the weights."""
    projector = assembly.method.evaluated.projector
    return {
        "net": recipe.net,
        "stem": recipe.stem,
        "image_size": recipe.image_size,
        "embedding_dim": projector.width if projector else 0,
        "classes": classes,
        "mean": assembly.mean.tolist(),
        "std": assembly.std.tolist(),
        "preprocessing": "shorter side to image_size, centre crop, (pixel / 255 - mean) / std",
    }
