"""What a run's classifier says of the images of the run: test, labelled and unlabelled ones."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from comatch.classifier import TrainedClassifier
from comatch.data import splits
from comatch.data.streaming import in_pieces
from comatch.errors import UserError
from comatch.evaluation.known_images import KnownImages
from comatch.files import read_json
from comatch.planning import load_dataset
from comatch.training.out_of_distribution import CONFIDENT
from comatch.training.run_folder import RunFolder
from comatch.types import UNLABELLED, Dataset, Files, Images, Part

TEST, HELD_OUT, LABELLED, NOT_LABELLED = "test", "validation", "labelled", "unlabelled"
MOST = {TEST: 10_000, HELD_OUT: 2_000, LABELLED: 2_000, NOT_LABELLED: 2_000}


@dataclass(frozen=True, eq=False)
class Answers:
    """Images of a run with the answers of its classifier, in the order of the parts."""

    names: list[str]  # [N]
    parts: np.ndarray  # [N] TEST, LABELLED, ...
    labels: Tensor  # [N] UNLABELLED where the class is not known, or was hidden from training
    probabilities: Tensor  # [N, C]
    features: Tensor  # [N, width]
    fit: Tensor | None  # [N] None: no image is labelled
    distance: Tensor | None  # [N] from the labelled images: the fit in another form
    sources: list[Path | Tensor]  # [N] where the pixels are

    def __len__(self) -> int:
        return len(self.names)

    @property
    def predicted(self) -> Tensor:
        return self.probabilities.argmax(1)

    @property
    def confidence(self) -> Tensor:
        return self.probabilities.amax(1)

    def rows(self, *parts: str) -> Tensor:
        return torch.from_numpy(np.flatnonzero(np.isin(self.parts, parts)))


def collect(folder: RunFolder, classifier: TrainedClassifier) -> tuple[Dataset, Answers, list[str]]:
    """The data set of a run, the answers on its images, and notes on what was left out."""
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        reading = folder.reading()
        dataset = load_dataset(reading, folder.data_dir(), progress=False)
        split = read_json(folder.split)
        if split["fingerprint"] != splits.fingerprint(dataset.train):
            notes.append("The images or their labels have changed since the run.")
        dataset = with_classes(dataset, classifier.classes)
        classifier.expect(sum(len(part) for part in (dataset.train, dataset.test) if part))
        found = []
        for name, part in parts_of(dataset, split):
            some = sampled(part, MOST[name])
            if len(some) < len(part):
                notes.append(f"{len(some):,} of {len(part):,} {name} images are used here.")
            answered = answer(classifier, name, some, Path(reading.dataset.data))
            found += [answered] if answered else []
    if not found:
        raise UserError("none of them can be read")
    notes += [str(one.message) for one in caught if issubclass(one.category, UserWarning)]
    return dataset, rated(concatenate(found), classifier.known_images), notes


def rated(answers: Answers, known: KnownImages | None) -> Answers:
    """The answers with the fit of each image, also of a run of a version without it."""
    labelled = answers.rows(LABELLED)
    if known is None and len(labelled):
        free = answers.rows(NOT_LABELLED)
        free = free[answers.confidence[free] > CONFIDENT]
        known = KnownImages.learn(answers.features[labelled], answers.features[free])
    if known is None:
        return answers
    features = answers.features
    return replace(answers, fit=known.fit(features), distance=known.distance(features))


def with_classes(dataset: Dataset, classes: list[str]) -> Dataset:
    """The data set with the classes of the classifier; labels of other classes are left out."""
    if dataset.classes == classes:
        return dataset
    place = {name: i for i, name in enumerate(classes)}
    number = torch.tensor([*(place.get(name, UNLABELLED) for name in dataset.classes), UNLABELLED])

    def renumbered(part: Part) -> Part:
        return replace(part, labels=number[part.labels])

    test = dataset.test and renumbered(dataset.test)
    return replace(dataset, classes=classes, train=renumbered(dataset.train), test=test)


def parts_of(dataset: Dataset, split: dict[str, Any]) -> Iterator[tuple[str, Part]]:
    """The images by their use in the run. Labels that training did not see are left out.

    Validation images that were drawn by seed count as unlabelled here: the split only has their
    number.
    """
    train = dataset.train
    row = {name: i for i, name in enumerate(train.names)}
    labelled = [row[name] for name in split["labelled"] if name in row]
    held_out = [row[name] for name in split["validation"] if name in row]
    free = torch.ones(len(train), dtype=torch.bool)
    free[labelled + held_out] = False
    hidden = replace(train, labels=torch.full_like(train.labels, UNLABELLED))
    parts = {
        TEST: dataset.test,
        HELD_OUT: train.subset(torch.tensor(held_out, dtype=torch.long)),
        LABELLED: train.subset(torch.tensor(labelled, dtype=torch.long)),
        NOT_LABELLED: hidden.subset(free.nonzero().flatten()),
    }
    return ((name, part) for name, part in parts.items() if part)


def sampled(part: Part, most: int) -> Part:
    """At most so many images, evenly over the part."""
    return part.subset(torch.arange(0, len(part), -(-len(part) // most)))


def answer(classifier: TrainedClassifier, name: str, part: Part, root: Path) -> Answers | None:
    """The answers on one part, without the images that cannot be read; None if none can."""
    numbered = replace(part, labels=torch.arange(len(part)))  # to know the rows of each piece
    size, device = classifier.image_size, classifier.mean.device
    rows, found = [], []
    for images, some in in_pieces(numbered, size, device, side=classifier.resize, some=False):
        rows.append(some)
        found.append(classifier.predict(images))
    if not rows:
        return None
    seen = torch.cat(rows)
    names = [part.names[i] for i in seen.tolist()]
    on_disk = part.root if isinstance(part, Files) else root
    sources: list[Path | Tensor] = [on_disk / one for one in names]
    if isinstance(part, Images) and not root.is_dir():
        sources = list(part.images[seen])
    return Answers(
        names,
        np.full(len(names), name),
        part.labels[seen],
        torch.cat([one.probabilities for one in found]),
        torch.cat([one.features for one in found]),
        None,
        None,
        sources,
    )


def concatenate(parts: Sequence[Answers]) -> Answers:
    return Answers(
        [name for part in parts for name in part.names],
        np.concatenate([part.parts for part in parts]),
        torch.cat([part.labels for part in parts]),
        torch.cat([part.probabilities for part in parts]),
        torch.cat([part.features for part in parts]),
        None,
        None,
        [source for part in parts for source in part.sources],
    )
