"""The views of an image: named compositions of augmentations, from uint8 to float32 images.

A method declares `views = ("weak", "strong", "contrast")`, and `build` returns the function of each
name. A new policy is a function marked `@policy`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from comatch.augment import colour, geometry
from comatch.config import Config, check_name, setting


@dataclass(frozen=True)
class ViewConfig(Config):
    """The settings of all views."""

    flip: bool = setting(True, "mirror images at random; not for digits, for example")
    weak_crop: str = setting(
        "pad",
        "weak view: pad (shift by a few pixels) or resized (enlarge a random crop)",
        choices=("pad", "resized"),
    )
    pad: int = setting(4, "maximum shift of a pad crop in pixels", least=0)
    min_area: float = setting(0.2, "minimum share of the image in a resized crop", above=0, most=1)
    cutout: float = setting(
        0.5, "side of the cutout as a share of the image's side", least=0, most=1
    )
    jitter: float = setting(
        0.4, "contrastive views: largest change of brightness and contrast", least=0, most=1
    )
    saturation: float = setting(
        0.4, "contrastive views: largest change of saturation", least=0, most=1
    )
    hue: float = setting(
        0.1, "contrastive views: largest change of hue, as a share of the circle", least=0, most=0.5
    )
    blur: float = setting(0.0, "contrastive views: probability of a blur", least=0, most=1)
    other_blur: float = setting(0.0, "view `other`: probability of a blur instead", least=0, most=1)
    other_solarize: float = setting(
        0.0, "view `other`: probability of inverting bright pixels", least=0, most=1
    )
    small_side: float = setting(
        96 / 224, "side of a small view as a share of that of others", above=0, most=1
    )
    small_area: float = setting(
        0.14, "maximum share of the image in a small view; the minimum is 0.05", above=0.05, most=1
    )


@dataclass(frozen=True)
class Views(ViewConfig):
    """The settings of the views, with two values that are not settings."""

    size: int | None = None  # side of the views; default: that of the images
    fill: float = 128.0  # the grey of cutouts and of pixels outside the image


SMALLEST_AREA = 0.05  # of a small view
PUZZLE_AREA = 0.6  # smallest of a jigsaw puzzle

Policy = Callable[[Tensor, Views], Tensor]
POLICIES: dict[str, Policy] = {}


def policy(function: Policy) -> Policy:
    POLICIES[function.__name__] = function
    return function


def build(name: str, views: Views) -> Callable[[Tensor], Tensor]:
    """The policy: from uint8 [N, 3, H, W] to float32 of the views' size, in 0 .. 255."""
    check_name(name, POLICIES, "view")
    chosen = POLICIES[name]
    return lambda images: chosen(images.float(), views)


def normalise(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """The input of a network: 0 .. 255 scaled to 0 .. 1, then each channel standardised."""
    return (images / 255 - mean[:, None, None]) / std[:, None, None]


def denormalise(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """The inverse of `normalise`."""
    return (images * std[:, None, None] + mean[:, None, None]) * 255


@policy
def weak(images: Tensor, views: Views) -> Tensor:
    """A crop and a flip, which leave the class recognisable."""
    if views.weak_crop == "resized":
        images = _random_part(images, views)
    else:
        spare = images.shape[-1] - (views.size or images.shape[-1])
        offsets = geometry.sample_pad_crop(len(images), views.pad, images.device, spare)
        images = geometry.pad_crop(images, offsets, views.pad, views.size)
    return _maybe_flip(images, views)


@policy
def strong(images: Tensor, views: Views) -> Tensor:
    """The weak view, two of the fourteen operations, and a cutout."""
    images = weak(images, views)
    n, _, height, width = images.shape
    for _ in range(2):
        drawn = sample_operation(n, images.device)
        images = operate(images, drawn, views.fill)
    centres = geometry.sample_cutout(n, height, width, images.device)
    return geometry.cutout(images, centres, int(views.cutout * height), views.fill)


@policy
def contrast(images: Tensor, views: Views) -> Tensor:
    """A random crop, a flip, colour jitter or greyscale: the view of contrastive learning."""
    return _distort(_maybe_flip(_random_part(images, views), views), views, views.blur)


@policy
def other(images: Tensor, views: Views) -> Tensor:
    """The second view of BYOL: `contrast` with another blur, and some images solarized."""
    images = _maybe_flip(_random_part(images, views), views)
    images = _distort(images, views, views.other_blur)
    solarized = colour.solarize(images, torch.full((len(images),), 128, device=images.device))
    return torch.where(_chance(views.other_solarize, images), solarized, images)


@policy
def small(images: Tensor, views: Views) -> Tensor:
    """A small view of SwAV's multi-crop: `contrast` of a small part at a low resolution."""
    n, _, height, width = images.shape
    side = round(views.small_side * (views.size or height))
    boxes = geometry.sample_resized_crop(
        n, height, width, SMALLEST_AREA, images.device, max_area=views.small_area
    )
    images = geometry.resized_crop(images, boxes, side)
    return _distort(_maybe_flip(images, views), views, views.blur)


@policy
def jigsaw(images: Tensor, views: Views) -> Tensor:
    """PIRL's puzzle: nine patches of a large crop, in a random order for each image.

    In proportion to 224 pixels, the crop has 255, a cell of it 85 and the patch in it 64.
    """
    n, channels, height, width = images.shape
    scale = (views.size or height) / 224
    cell, patch = round(85 * scale), round(64 * scale)
    boxes = geometry.sample_resized_crop(n, height, width, PUZZLE_AREA, images.device)
    images = _maybe_flip(geometry.resized_crop(images, boxes, 3 * cell), views)
    images = _distort(images, views, 0.0)
    cells = images.unflatten(3, (3, cell)).unflatten(2, (3, cell))  # [N, 3, row, y, column, x]
    cells = cells.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)  # [N, 9, 3, cell, cell]
    order = torch.rand(n, 9, device=images.device).argsort(1)
    cells = cells.gather(1, order[:, :, None, None, None].expand_as(cells)).flatten(0, 1)
    offsets = geometry.sample_pad_crop(9 * n, 0, images.device, cell - patch + 1)
    patches = geometry.pad_crop(cells, offsets, 0, patch).unflatten(0, (n, 3, 3))
    return patches.permute(0, 3, 1, 4, 2, 5).reshape(n, channels, 3 * patch, 3 * patch)


def _distort(images: Tensor, views: Views, blur: float) -> Tensor:
    """Colour jitter, greyscale and blur, each for some images."""
    n, device = len(images), images.device
    drawn = colour.sample_jitter(n, views.jitter, views.hue, device, views.saturation)
    images = torch.where(_chance(0.8, images), colour.jitter(images, drawn), images)
    images = torch.where(_chance(0.2, images), colour.grey(images), images)
    if not blur:
        return images
    blurred = colour.gaussian_blur(images, colour.sample_sigmas(n, device))
    return torch.where(_chance(blur, images), blurred, images)


OPERATIONS = (
    "identity",
    "autocontrast",
    "equalize",
    "rotate",
    "solarize",
    "colour",
    "contrast",
    "brightness",
    "sharpness",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
    "posterize",
)


class Operation(NamedTuple):
    """One of the fourteen operations for each image, always at full strength."""

    kind: Tensor  # [N] index into OPERATIONS
    sign: Tensor  # [N] -1 or 1: direction of rotation, shear or translation


def sample_operation(n: int, device: torch.device) -> Operation:
    """Each of the fourteen has the same probability; half of the draws are not applied."""
    kind = torch.randint(len(OPERATIONS), (n,), device=device)
    applied = torch.rand(n, device=device) < 0.5
    sign = 2 * torch.randint(2, (n,), device=device) - 1
    return Operation(kind * applied, sign.float())  # 0 is the identity


def operate(images: Tensor, drawn: Operation, fill: float) -> Tensor:
    """Each image with its own operation, in three steps for the whole batch.

    The steps map values, blend images with a degenerate one, and move pixels. Each step computes
    all operations of its kind for all images, and is the identity for images with another.
    """
    height, width = images.shape[-2:]
    kind, sign = drawn
    images = images.round()  # as in Pillow: interpolation noise must not show in a flat image
    images = by_kind(
        OPERATIONS,
        kind,
        images,
        autocontrast=colour.autocontrast(images),
        equalize=colour.equalize(images),
        posterize=colour.posterize(images, torch.full_like(kind, 4)),
        # The authors' threshold is 256, above all values, so their solarize has no effect.
        solarize=colour.solarize(images, torch.full_like(kind, 256)),
    )
    degenerate = by_kind(
        OPERATIONS,
        kind,
        images,  # a blend with itself is the identity
        colour=colour.grey(images),
        contrast=colour.mean_grey(images),
        brightness=images.new_zeros(()),
        sharpness=colour.smooth(images),
    )
    images = colour.blend(images, degenerate, torch.full_like(sign, 1.9))
    still = geometry.translate_x(torch.zeros_like(sign))
    matrix = by_kind(
        OPERATIONS,
        kind,
        still,
        rotate=geometry.rotation(30 * sign, height, width),
        shear_x=geometry.shear_x(0.3 * sign),
        shear_y=geometry.shear_y(0.3 * sign),
        translate_x=geometry.translate_x(10 / 32 * width * sign),
        translate_y=geometry.translate_y(10 / 32 * height * sign),
    )
    return geometry.affine(images, matrix, fill)


def by_kind(
    operations: tuple[str, ...], kind: Tensor, otherwise: Tensor, **candidates: Tensor
) -> Tensor:
    """For each image the candidate with the name of its operation, else `otherwise`."""
    kind = kind.view(-1, *[1] * (otherwise.ndim - 1))
    for name, candidate in candidates.items():
        otherwise = torch.where(kind == operations.index(name), candidate, otherwise)
    return otherwise


def _random_part(images: Tensor, views: Views) -> Tensor:
    n, _, height, width = images.shape
    boxes = geometry.sample_resized_crop(n, height, width, views.min_area, images.device)
    return geometry.resized_crop(images, boxes, views.size)


def _maybe_flip(images: Tensor, views: Views) -> Tensor:
    if not views.flip:
        return images
    return geometry.flip(images, geometry.sample_flip(len(images), images.device))


def _chance(probability: float, images: Tensor) -> Tensor:
    """True with this probability, independently for each image."""
    return torch.rand(len(images), 1, 1, 1, device=images.device) < probability
