"""Class probabilities of images, and what they are worth."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from comatch import distributed
from comatch.augment.policies import normalise
from comatch.data.streaming import in_pieces
from comatch.nets import Network, Output
from comatch.types import Part


def probabilities(
    net: Network, images: Tensor, mean: Tensor, std: Tensor, batch: int = 512
) -> Tensor:
    """p(y|x) [N, C] of uint8 images [N, 3, H, W], on the CPU."""
    return look(net, images, mean, std, batch, lambda seen: F.softmax(seen.logits, dim=1))


def features(net: Network, images: Tensor, mean: Tensor, std: Tensor, batch: int = 512) -> Tensor:
    """f(x) [N, width] of uint8 images [N, 3, H, W], on the CPU."""
    return look(net, images, mean, std, batch, lambda seen: seen.features)


@torch.no_grad()
def look(
    net: Network,
    images: Tensor,
    mean: Tensor,
    std: Tensor,
    batch: int,
    keep: Callable[[Output], Tensor],
) -> Tensor:
    """What is kept of what a network makes of images, some at a time."""
    chunks = []
    with net.eval_mode():
        for chunk in images.split(batch):
            x = normalise(chunk.to(mean.device).float(), mean, std)
            x = x.contiguous(memory_format=torch.channels_last)
            chunks.append(keep(net(x)))
    return torch.cat(chunks).cpu()


@dataclass(frozen=True)
class Scores:
    """Shares between 0 and 1."""

    top1: float
    top5: float | None  # none with five classes or fewer
    per_class: list[float | None]  # share of each class that is found; none: not in this part
    taken_for: list[tuple[int, float] | None]  # the wrong class it is most often given, how often
    calibration_error: float  # mean gap between confidence and accuracy, over 15 bins
    images: int


class Judged(NamedTuple):
    """What is kept of each image: with many classes, p itself would be much to keep."""

    labels: Tensor  # [N]
    guesses: Tensor  # [N] the likeliest class
    among_five: Tensor  # [N] bool: the truth is one of the five likeliest classes
    confidence: Tensor  # [N]


def judge(p: Tensor, labels: Tensor) -> Judged:
    """Compares probabilities [N, C] with the truth [N]."""
    five = p.topk(min(5, p.shape[1]), dim=1).indices
    return Judged(labels, p.argmax(1), (five == labels[:, None]).any(1), p.amax(dim=1))


def together(judged: Iterable[Judged]) -> Judged:
    return Judged(*(torch.cat(column) for column in zip(*judged, strict=True)))


def score(judged: Judged, classes: int) -> Scores:
    labels, guesses, among_five, confidence = judged
    right = guesses == labels
    given = [guesses[labels == c] for c in range(classes)]
    return Scores(
        top1=share(right),
        top5=among_five.float().mean().item() if classes > 5 else None,
        per_class=[share(g == c) if len(g) else None for c, g in enumerate(given)],
        taken_for=[most_frequent_mistake(g, c) for c, g in enumerate(given)],
        calibration_error=calibration_error(confidence, right),
        images=len(labels),
    )


def interval(share: float, images: int) -> tuple[float, float]:
    """Where the true share lies, 19 times out of 20, if `share` of so many images were right.

    Wilson's: unlike plus or minus two deviations it stays between 0 and 1, with few images too.
    """
    z = 1.96
    middle = (share + z**2 / (2 * images)) / (1 + z**2 / images)
    spread = (share * (1 - share) / images + (z / (2 * images)) ** 2) ** 0.5
    reach = z * spread / (1 + z**2 / images)
    return max(0.0, middle - reach), min(1.0, middle + reach)


def share(true: Tensor) -> float:
    return true.double().mean().item()


def most_frequent_mistake(guesses: Tensor, truth: int) -> tuple[int, float] | None:
    """Of what images of one class are taken for [n]: the most frequent wrong class, its share."""
    wrong = guesses[guesses != truth]
    if not len(wrong):
        return None
    count, most = wrong.bincount().max(0)
    return int(most), int(count) / len(guesses)


def score_part(
    part: Part,
    predict: Callable[[Tensor], Tensor],
    classes: int,
    image_size: int,
    device: torch.device,
    workers: int | None = None,
) -> Scores:
    """What `predict` (images to p [n, C]) makes of a part, in memory or still files.

    Ranks share the images, and all get the scores.
    """
    mine = part
    if len(part) >= distributed.world() > 1:
        mine = part.subset(torch.arange(distributed.rank(), len(part), distributed.world()))
    pieces = in_pieces(mine, image_size, device, workers)
    judged = together(judge(predict(images), labels) for images, labels in pieces)
    return score(together(distributed.collect(judged)) if mine is not part else judged, classes)


def calibration_error(confidence: Tensor, right: Tensor, bins: int = 15) -> float:
    """Expected calibration error: is an image called 90 % sure right nine times out of ten?"""
    bin_of = (confidence * bins).long().clamp(max=bins - 1)
    error = 0.0
    for b in range(bins):
        here = bin_of == b
        if here.any():
            gap = (confidence[here].double().mean() - right[here].double().mean()).abs()
            error += gap.item() * here.double().mean().item()
    return error
