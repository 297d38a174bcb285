"""CTAugment: the strength of augmentations is learned during training (ReMixMatch, 3.2.1).

Each operation has 17 strengths, its bins. The weight of a bin measures how well the network
predicts labelled images with this strength. It is updated with probes, labelled images whose bins
are drawn uniformly:

    w <- rho w + (1 - rho) match,   match = 1 - 1/2 sum_c | p_c - y_c |

Training images get bins in proportion to their weights, among those whose weight is at least a
share of the operation's largest. This is as in the authors' code. Their text compares the weight
itself, which leaves no bin if the network is unsure everywhere.

The operations and their ranges are those of the paper's appendix, from bin 0 to bin 16 in equal
steps; within a bin the strength is constant. Rescale has only one of its two parameters, the
share; the interpolation is always bilinear.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from comatch.augment import colour, geometry
from comatch.augment.policies import by_kind

OPERATIONS = (
    "identity",
    "autocontrast",
    "blur",
    "brightness",
    "colour",
    "contrast",
    "cutout",
    "equalize",
    "invert",
    "posterize",
    "rescale",
    "rotate",
    "sharpness",
    "shear_x",
    "shear_y",
    "smooth",
    "solarize",
    "translate_x",
    "translate_y",
)
BINS = 17
DEPTH = 2  # operations for each image
FILL = 128.0  # the grey of cutouts and of pixels outside the image


class Drawn(NamedTuple):
    """The operations of each image, first to last."""

    kind: Tensor  # [N, depth] index into OPERATIONS
    bin: Tensor  # [N, depth]
    centre: Tensor  # [N, depth, 2] (y, x) of the square, for cutout


class CTAugment(nn.Module):
    """Two random operations for each image, with learned strengths."""

    weights: Tensor  # [operations, bins]

    def __init__(self, decay: float = 0.99, threshold: float = 0.8) -> None:
        super().__init__()
        self.decay, self.threshold = decay, threshold
        self.register_buffer("weights", torch.ones(len(OPERATIONS), BINS))

    def forward(self, images: Tensor) -> Tensor:
        """Augment training images."""
        return augment(images, sample(images, self.chances()))

    def probe(self, images: Tensor) -> tuple[Tensor, Drawn]:
        """Images with uniformly drawn bins, and the draw: the arguments of `push`."""
        drawn = sample(images, torch.ones_like(self.weights))
        return augment(images, drawn), drawn

    def chances(self) -> Tensor:  # [operations, bins]
        """The probability of each bin, up to a factor for each operation."""
        share = self.weights / self.weights.amax(1, keepdim=True).clamp(min=1e-12)
        return share * (share >= self.threshold)

    @torch.no_grad()
    def push(self, kind: Tensor, bin: Tensor, match: Tensor) -> None:
        """Update the weights with probes: their bins [B, depth] and their match [B].

        A bin with several probes is updated once, with the mean of their matches, as far as that
        number of updates would: w <- rho^n w + (1 - rho^n) mean. So their order does not matter.
        """
        cell = (kind * BINS + bin).flatten()  # [B depth]
        match = match[:, None].expand(kind.shape).flatten().to(self.weights.dtype)
        # Sums over a table are deterministic; `index_add_` is not.
        cells = torch.arange(self.weights.numel(), device=cell.device)
        hit = (cell[:, None] == cells).to(match.dtype)  # [B depth, operations * bins]
        hits = hit.sum(0).view_as(self.weights)
        mean = (hit * match[:, None]).sum(0).view_as(self.weights) / hits.clamp(min=1)
        self.weights.copy_(torch.lerp(mean, self.weights, self.decay**hits))


def sample(images: Tensor, chances: Tensor) -> Drawn:
    """Operations drawn uniformly, their bins in proportion to `chances` [operations, bins]."""
    n, _, height, width = images.shape
    kind = torch.randint(len(OPERATIONS), (n, DEPTH), device=images.device)
    below = chances.cumsum(1)[kind]  # [N, depth, bins]
    point = torch.rand(n, DEPTH, 1, device=images.device) * below[..., -1:]
    bin = (below <= point).sum(2).clamp(max=BINS - 1)
    centre = geometry.sample_cutout(n * DEPTH, height, width, images.device)
    return Drawn(kind, bin, centre.unflatten(0, (n, DEPTH)))


def augment(images: Tensor, drawn: Drawn) -> Tensor:
    for i in range(DEPTH):
        images = operate(images, *(column[:, i] for column in drawn))
    return images


def operate(images: Tensor, kind: Tensor, bin: Tensor, centre: Tensor) -> Tensor:
    """Each image with its own operation and strength, as in `policies.operate`.

    Operations on colours are a blend of the image with another image, and operations that move
    pixels are a matrix. For images with another operation, these are the identity.
    """
    height, width = images.shape[-2:]
    images = images.round()  # interpolation noise must not show in a flat image
    level = bin.to(images.dtype) / (BINS - 1)  # [N] 0 .. 1
    swing = 0.3 * (2 * level - 1)  # -0.3 .. 0.3
    none, one = torch.zeros_like(level), torch.ones_like(level)
    smooth = colour.smooth(images)
    other = by_kind(
        OPERATIONS,
        kind,
        images,
        autocontrast=colour.autocontrast(images),
        blur=colour.blur(images),
        brightness=images.new_zeros(()),
        colour=colour.grey(images),
        contrast=colour.mean_grey(images),
        equalize=colour.equalize(images),
        invert=colour.invert(images),
        posterize=colour.posterize(images, 1 + bin * 8 // BINS),  # 1 .. 8 bits
        sharpness=smooth,
        smooth=smooth,
        solarize=colour.solarize(images, 256 * level),
    )
    kept = by_kind(  # of the image itself
        OPERATIONS,
        kind,
        one,
        **dict.fromkeys(("autocontrast", "blur", "equalize", "invert", "smooth"), 1 - level),
        **dict.fromkeys(("brightness", "colour", "contrast", "sharpness"), level),
        **dict.fromkeys(("posterize", "solarize"), none),
    )
    images = colour.blend(images, other, kept)
    matrix = by_kind(
        OPERATIONS,
        kind,
        geometry.translate_x(none),
        rescale=geometry.zoom((1 + level) / 2, height, width),
        rotate=geometry.rotation(150 * swing, height, width),  # -45 .. 45 degrees
        shear_x=geometry.shear_x(swing),
        shear_y=geometry.shear_y(swing),
        translate_x=geometry.translate_x(width * swing),
        translate_y=geometry.translate_y(height * swing),
    )
    images = geometry.affine(images, matrix, FILL)
    side = by_kind(OPERATIONS, kind, none, cutout=level * min(height, width) / 2)
    return geometry.cutout(images, centre, side.round().long(), FILL)
