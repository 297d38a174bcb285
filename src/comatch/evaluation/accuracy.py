"""Class probabilities of images, and scores against their labels."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from comatch import distributed
from comatch.augment.policies import normalise
from comatch.nets import Network, Output
from comatch.types import Part


def predict(net: Network, inputs: Tensor) -> Tensor:
    """p(y|x) [n, C] of inputs of a network, in evaluation mode, on the CPU."""
    with net.eval_mode(), torch.no_grad():
        return F.softmax(net(inputs).logits, dim=1).cpu()


def both(net: Network, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """f(x) [n, width] and p(y|x) [n, C] of inputs, in evaluation mode, on the CPU."""
    with net.eval_mode(), torch.no_grad():
        found = net(inputs)
        return found.features.cpu(), F.softmax(found.logits, dim=1).cpu()


def probabilities(
    net: Network, images: Tensor, mean: Tensor, std: Tensor, batch: int = 512
) -> Tensor:
    """p(y|x) [N, C] of uint8 images [N, 3, H, W], on the CPU."""
    return in_batches(net, images, mean, std, batch, lambda out: F.softmax(out.logits, dim=1))


def features(net: Network, images: Tensor, mean: Tensor, std: Tensor, batch: int = 512) -> Tensor:
    """f(x) [N, width] of uint8 images [N, 3, H, W], on the CPU."""
    return in_batches(net, images, mean, std, batch, lambda out: out.features)


def outputs(net: Network, images: Tensor, mean: Tensor, std: Tensor, batch: int = 512) -> Tensor:
    """f(x) and p(y|x) side by side, [N, width + C], of uint8 images [N, 3, H, W], on the CPU."""

    def both(out: Output) -> Tensor:
        return torch.cat([out.features, F.softmax(out.logits, dim=1)], dim=1)

    return in_batches(net, images, mean, std, batch, both)


@torch.no_grad()
def in_batches(
    net: Network,
    images: Tensor,
    mean: Tensor,
    std: Tensor,
    batch: int,
    select: Callable[[Output], Tensor],
) -> Tensor:
    """The selected output of a network in evaluation mode, batch by batch, on the CPU."""
    chunks = []
    with net.eval_mode():
        for chunk in images.split(batch):
            x = normalise(chunk.to(mean.device).float(), mean, std)
            x = x.contiguous(memory_format=torch.channels_last)
            chunks.append(select(net(x)))
    return torch.cat(chunks).cpu()


@dataclass(frozen=True)
class Scores:
    """Accuracy and calibration; all shares are between 0 and 1."""

    top1: float
    top5: float | None  # None with five classes or fewer
    recall: list[float | None]  # of each class; None: no image of it
    confused_with: list[tuple[int, float] | None]  # most frequent wrong class, its share
    calibration_error: float  # mean gap between confidence and accuracy, over 15 bins
    images: int


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Labelled images with the classes that a classifier predicts, and its scores on them."""

    classes: list[str]
    names: list[str]  # [N] of the images
    predicted: "Predicted"
    scores: Scores

    @property
    def top1(self) -> float:
        return self.scores.top1

    def confusion(self) -> Tensor:  # [C, C]
        """The number of images by class (rows) and predicted class (columns)."""
        classes = len(self.classes)
        cells = self.predicted.labels * classes + self.predicted.predictions
        return cells.bincount(minlength=classes**2).view(classes, classes)

    @cached_property
    def checks(self) -> list["LabelCheck"]:
        """Each image with label and predicted class, the most confident mistakes first."""
        labels, predictions = (
            [self.classes[c] for c in column.tolist()]
            for column in (self.predicted.labels, self.predicted.predictions)
        )
        confidence = self.predicted.confidence.tolist()
        checks = map(LabelCheck, self.names, labels, predictions, confidence)
        return sorted(checks, key=lambda one: (one.predicted == one.label, -one.probability))

    @property
    def mistakes(self) -> list["LabelCheck"]:
        return [one for one in self.checks if one.predicted != one.label]


class LabelCheck(NamedTuple):
    """A labelled image and its prediction."""

    path: str
    label: str
    predicted: str
    probability: float  # of the predicted class


class Predicted(NamedTuple):
    """A few numbers of each image: for many classes, storing all probabilities takes too much."""

    labels: Tensor  # [N] the true class
    predictions: Tensor  # [N] the predicted class
    in_top5: Tensor  # [N] bool: the true class is among the five with the highest probability
    confidence: Tensor  # [N] probability of the predicted class


def compare(p: Tensor, labels: Tensor) -> Predicted:
    """Probabilities [N, C] beside the labels [N]."""
    five = p.topk(min(5, p.shape[1]), dim=1).indices
    return Predicted(labels, p.argmax(1), (five == labels[:, None]).any(1), p.amax(dim=1))


def concatenate(pieces: Iterable[Predicted]) -> Predicted:
    return Predicted(*(torch.cat(column) for column in zip(*pieces, strict=True)))


def score(predicted: Predicted, classes: int) -> Scores:
    labels, predictions, in_top5, confidence = predicted
    right = predictions == labels
    of_class = [predictions[labels == c] for c in range(classes)]
    return Scores(
        top1=mean(right),
        top5=in_top5.float().mean().item() if classes > 5 else None,
        recall=[mean(found == c) if len(found) else None for c, found in enumerate(of_class)],
        confused_with=[most_confused(found, c) for c, found in enumerate(of_class)],
        calibration_error=calibration_error(confidence, right),
        images=len(labels),
    )


def interval(share: float, images: int) -> tuple[float, float]:
    """The 95 % confidence interval of an accuracy of `share`, measured on so many images.

    Wilson's interval: it stays between 0 and 1, also for few images.
    """
    z = 1.96
    centre = (share + z**2 / (2 * images)) / (1 + z**2 / images)
    spread = (share * (1 - share) / images + (z / (2 * images)) ** 2) ** 0.5
    half = z * spread / (1 + z**2 / images)
    return max(0.0, centre - half), min(1.0, centre + half)


def mean(holds: Tensor) -> float:
    """The share of True."""
    return holds.double().mean().item()


def most_confused(predictions: Tensor, label: int) -> tuple[int, float] | None:
    """The most frequent wrong class among predictions [n] for images of one class, its share."""
    wrong = predictions[predictions != label]
    if not len(wrong):
        return None
    count, most = wrong.bincount().max(0)
    return int(most), int(count) / len(predictions)


Pieces = Iterable[tuple[Tensor, Tensor]]  # inputs [n, ...] and labels [n]


def evaluate(
    part: Part,
    pieces: Callable[[Part], Pieces],
    predict: Callable[[Tensor], Tensor],
    classes: list[str],
) -> Evaluation:
    """Evaluate `predict`, inputs to p [n, C] on the CPU, on the images of a part.

    `pieces` turns a part into inputs, without the images that cannot be read. Each rank predicts
    its share of the images, and all ranks return the same.
    """
    numbered = replace(part, labels=torch.arange(len(part)))  # to know the rows of each piece
    mine = numbered
    if len(part) >= distributed.world() > 1:
        mine = mine.subset(torch.arange(distributed.rank(), len(part), distributed.world()))
    found = [(rows, compare(predict(images), part.labels[rows])) for images, rows in pieces(mine)]
    if mine is not numbered:
        found = [piece for pieces in distributed.collect(found) for piece in pieces]
    predicted = concatenate(predictions for _, predictions in found)
    names = [part.names[row] for rows, _ in found for row in rows.tolist()]
    return Evaluation(classes, names, predicted, score(predicted, len(classes)))


def calibration_error(confidence: Tensor, right: Tensor, bins: int = 15) -> float:
    """Expected calibration error: the mean gap between confidence and accuracy, by confidence."""
    bin_of = (confidence * bins).long().clamp(max=bins - 1)
    error = 0.0
    for b in range(bins):
        here = bin_of == b
        if here.any():
            gap = (confidence[here].double().mean() - right[here].double().mean()).abs()
            error += gap.item() * here.double().mean().item()
    return error
