"""The data on which features are evaluated: images, and which classes each of them shows."""

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from sklearn.metrics import average_precision_score
from torch import Tensor

from comatch.commands.transfer.record import MEAN_AP, PCL_AP
from comatch.commands.transfer.voc2007 import voc2007
from comatch.data import sources
from comatch.data.splits import fingerprint
from comatch.errors import UserError
from comatch.planning import warn_of_unused
from comatch.types import UNLABELLED, Files, Part

VOC = "voc2007"
STRICT, PCL = "strict", "pcl"  # protocols of VOC 2007


@dataclass(frozen=True)
class Benchmark:
    """A training and a test part with targets.

    A target is 1 if the image shows the class, -1 if it does not, and 0 if that is unknown. The
    labels of both parts are their rows, 0 to N - 1.
    """

    name: str
    classes: list[str]  # [C]
    train: Part
    train_y: Tensor  # [N, C]
    test: Part
    test_y: Tensor  # [M, C]
    multi_label: bool  # whether an image may show more than one class
    protocol: str = STRICT

    @property
    def measure(self) -> str:
        average = PCL_AP if self.protocol == PCL else MEAN_AP
        return average if self.multi_label else "accuracy"

    @property
    def positive_weight(self) -> float:
        """How much an image that shows a class counts in the loss of its SVM."""
        return 2.0 if self.protocol == PCL else 1.0

    def score(self, decisions: Tensor, y: Tensor) -> float:
        """Accuracy of decisions [n, C] on targets [n, C], or the mean average precision.

        With several classes an image, it is the mean over classes of the area under the curve of
        precision and recall, interpolated or not.
        """
        if not self.multi_label:
            return (decisions.argmax(1) == y.argmax(1)).double().mean().item()
        average = interpolated if self.protocol == PCL else average_precision_score
        precisions = [
            average(t[t != 0] > 0, s[t != 0])
            for s, t in zip(decisions.T.cpu().numpy(), y.T.cpu().numpy(), strict=True)
            if (t > 0).any()
        ]
        return float(sum(precisions) / len(precisions))

    @cached_property  # it reads the size of every file
    def digest(self) -> str:
        """A hash of images and labels. The size at which images are seen is not part of it."""
        digest = hashlib.sha256("\n".join([*self.classes, *self.train.names]).encode())
        digest.update("\n".join(self.test.names).encode())
        digest.update(self.train_y.numpy().tobytes() + self.test_y.numpy().tobytes())
        for part in (self.train, self.test):
            if isinstance(part, Files):  # the images of a named data set never change
                digest.update(fingerprint(part).encode())
        return digest.hexdigest()


def interpolated(shown: np.ndarray, scores: np.ndarray) -> float:
    """Average precision where the precision at a recall is the highest at that recall or more."""
    hits = shown[np.argsort(-scores, kind="stable")]
    precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
    best = np.maximum.accumulate(precision[::-1])[::-1]
    return float(best[hits].mean())  # each image of the class adds the same to the recall


def open_benchmark(
    data: str, data_dir: Path, image_size: int, progress: bool = True, protocol: str = STRICT
) -> Benchmark:
    """VOC 2007, or any data to train on that has a test part.

    The images of a folder stay files, which are read with the encoder's preprocessing. Protocol
    `strict` leaves out the images in which a class is hard to see, for that class; `pcl` counts
    them as images without the class.
    """
    if data == VOC:
        classes, train, train_y, test, test_y = voc2007(data_dir, progress)
        if protocol == PCL:
            train_y, test_y = (y.masked_fill(y == 0, -1) for y in (train_y, test_y))
        parts = numbered(train), train_y, numbered(test), test_y
        return Benchmark(VOC, classes, *parts, multi_label=True, protocol=protocol)
    stream = "no" if data in sources.SOURCES else "yes"
    dataset = sources.load(data, data_dir, image_size, progress, stream=stream)
    warn_of_unused(dataset)
    if dataset.test is None:
        raise UserError(
            f"{data} has no test part: add a folder 'test' with labelled images, or 'train' and "
            "'val' as ImageNet has them"
        )
    labelled = dataset.train.subset((dataset.train.labels != UNLABELLED).nonzero()[:, 0])
    train_y, test_y = (to_targets(p.labels, len(dataset.classes)) for p in (labelled, dataset.test))
    return Benchmark(
        dataset.name,
        dataset.classes,
        numbered(labelled),
        train_y,
        numbered(dataset.test),
        test_y,
        multi_label=False,
    )


def to_targets(labels: Tensor, classes: int) -> Tensor:  # [N, C]
    """Targets of one byte each: Places205 has 500 million of them."""
    targets = torch.full((len(labels), classes), -1, dtype=torch.int8)
    targets[torch.arange(len(labels)), labels] = 1
    return targets


def numbered(part: Part) -> Part:
    """The part with its rows as labels."""
    return replace(part, labels=torch.arange(len(part)))
