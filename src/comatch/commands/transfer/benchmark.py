"""What the features are tried on: images, and for each class which of them show it."""

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from sklearn.metrics import average_precision_score
from torch import Tensor

from comatch.api import warn_of_skipped
from comatch.commands.transfer.record import MEAN_AP
from comatch.commands.transfer.voc2007 import voc2007
from comatch.data import sources
from comatch.data.splits import fingerprint
from comatch.errors import UserError
from comatch.types import UNLABELLED, Files, Part

VOC = "voc2007"


@dataclass(frozen=True)
class Benchmark:
    """Targets are 1 where an image shows the class, -1 where it does not, 0 where nobody says."""

    name: str
    classes: list[str]  # [C]
    train: Part  # whose labels are the rows, 0 to N - 1: they tell which image is which
    train_y: Tensor  # [N, C]
    test: Part
    test_y: Tensor  # [M, C]
    several: bool  # whether an image may show more than one class

    @property
    def measure(self) -> str:
        return MEAN_AP if self.several else "accuracy"

    def score(self, decisions: Tensor, y: Tensor) -> float:
        """What decisions [n, C] are worth, by targets [n, C].

        Accuracy or, where an image may show several classes, the area under precision and recall
        of each class, and the mean of those.
        """
        if not self.several:
            return (decisions.argmax(1) == y.argmax(1)).double().mean().item()
        found = [
            average_precision_score(t[t != 0] > 0, s[t != 0])
            for s, t in zip(decisions.T.cpu().numpy(), y.T.cpu().numpy(), strict=True)
            if (t > 0).any()
        ]
        return float(sum(found) / len(found))

    @cached_property  # it asks for the length of every file
    def digest(self) -> str:
        """Other images or labels have another one; the size at which they are seen has none."""
        everything = hashlib.sha256("\n".join([*self.classes, *self.train.names]).encode())
        everything.update("\n".join(self.test.names).encode())
        everything.update(self.train_y.numpy().tobytes() + self.test_y.numpy().tobytes())
        for part in (self.train, self.test):
            if isinstance(part, Files):  # else it is a named source, always of the same images
                everything.update(fingerprint(part).encode())
        return everything.hexdigest()


def open_benchmark(data: str, data_dir: Path, image_size: int, progress: bool = True) -> Benchmark:
    """VOC 2007, or anything that can be trained on and has a test part.

    A folder's images stay files, which are read as the encoder wants to see them.
    """
    if data == VOC:
        classes, train, train_y, test, test_y = voc2007(data_dir, progress)
        return Benchmark(VOC, classes, numbered(train), train_y, numbered(test), test_y, True)
    stream = "no" if data in sources.SOURCES else "yes"
    dataset = sources.load(data, data_dir, image_size, progress, stream=stream)
    warn_of_skipped(dataset)
    if dataset.test is None:
        raise UserError(
            f"{data} has no test part: add a folder 'test' with labelled images, or 'train' and "
            "'val' as ImageNet has them"
        )
    known = dataset.train.subset((dataset.train.labels != UNLABELLED).nonzero()[:, 0])
    targets = [shown(part.labels, len(dataset.classes)) for part in (known, dataset.test)]
    return Benchmark(
        dataset.name,
        dataset.classes,
        numbered(known),
        targets[0],
        numbered(dataset.test),
        targets[1],
        several=False,
    )


def shown(labels: Tensor, classes: int) -> Tensor:  # [N, C]
    """In a byte each: Places205 has half a thousand million of them."""
    targets = torch.full((len(labels), classes), -1, dtype=torch.int8)
    targets[torch.arange(len(labels)), labels] = 1
    return targets


def numbered(part: Part) -> Part:
    return replace(part, labels=torch.arange(len(part)))
