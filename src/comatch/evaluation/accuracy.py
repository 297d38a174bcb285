"""Class probabilities of pictures, and what they are worth."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from comatch.augment.policies import normalise
from comatch.data.streaming import in_pieces
from comatch.nets import Network
from comatch.types import Part


@torch.no_grad()
def probabilities(
    net: Network, images: Tensor, mean: Tensor, std: Tensor, batch: int = 512
) -> Tensor:
    """p(y|x) [N, C] of uint8 pictures [N, 3, H, W], on the CPU."""
    chunks = []
    with net.at_rest():
        for chunk in images.split(batch):
            x = normalise(chunk.to(mean.device).float(), mean, std)
            x = x.contiguous(memory_format=torch.channels_last)
            chunks.append(F.softmax(net(x).logits, dim=1))
    return torch.cat(chunks).cpu()


@dataclass(frozen=True)
class Scores:
    """Shares between 0 and 1."""

    top1: float
    top5: float | None  # none with five classes or fewer
    per_class: list[float | None]  # share of each class that is found; none: not in this part
    calibration_error: float  # mean gap between confidence and accuracy, over 15 bins
    pictures: int


def score(p: Tensor, labels: Tensor) -> Scores:
    """Compares probabilities [N, C] with the truth [N]."""
    right = p.argmax(1) == labels
    top5 = None
    if p.shape[1] > 5:
        top5 = (p.topk(5, dim=1).indices == labels[:, None]).any(1).float().mean().item()
    found = [right[labels == c] for c in range(p.shape[1])]
    return Scores(
        top1=right.double().mean().item(),
        top5=top5,
        per_class=[f.double().mean().item() if len(f) else None for f in found],
        calibration_error=calibration_error(p.amax(1), right),
        pictures=len(labels),
    )


def score_part(
    part: Part,
    predict: Callable[[Tensor], Tensor],
    image_size: int,
    device: torch.device,
    workers: int | None = None,
) -> Scores:
    """What `predict` (pictures to p [n, C]) makes of a part, in memory or still files."""
    seen = [
        (predict(images), labels) for images, labels in in_pieces(part, image_size, device, workers)
    ]
    p, labels = (torch.cat(pieces) for pieces in zip(*seen, strict=True))
    return score(p, labels)


def calibration_error(confidence: Tensor, right: Tensor, bins: int = 15) -> float:
    """Expected calibration error: is a picture called 90 % sure right nine times out of ten?"""
    bin_of = (confidence * bins).long().clamp(max=bins - 1)
    error = 0.0
    for b in range(bins):
        here = bin_of == b
        if here.any():
            gap = (confidence[here].double().mean() - right[here].double().mean()).abs()
            error += gap.item() * here.double().mean().item()
    return error
