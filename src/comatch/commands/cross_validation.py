"""K-fold cross-validation on the labels: an accuracy where there is no test part.

The labelled images are dealt into K folds. For each fold the run is trained again without it, with
the same settings and the same unlabelled images, and then predicts it. These classifiers have fewer
labels than the run's own, so their accuracy is rather too low. The test part is not used.

The predictions also calibrate the run's own classifier: a temperature is fitted to them.
"""

import dataclasses
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from comatch.classifier import load_classifier, predict_files
from comatch.config import replace, require
from comatch.data import splits
from comatch.device import choose_device, free_memory
from comatch.evaluation import Scores, accuracy, temperature
from comatch.files import write_file
from comatch.planning import load_dataset
from comatch.tables import to_csv
from comatch.training.init_weights import check_exists
from comatch.training.loop import fit
from comatch.training.progress import OpenBar, TrainingBar
from comatch.training.recipe import Recipe
from comatch.training.run_folder import Run, RunFolder, folder_of
from comatch.types import Dataset, Files


class Asked(NamedTuple):
    """A labelled image, and what a classifier that did not know its label takes it for."""

    path: str
    label: str
    guess: str
    probability: float  # of the guess


@dataclasses.dataclass(frozen=True)
class CrossValidation:
    scores: Scores
    temperature: float  # by which the logarithms of probabilities are divided from now on
    asked: list[Asked]  # every labelled image, the surest mistakes first
    table: Path  # the same as CSV

    @property
    def mistakes(self) -> list[Asked]:
        return [one for one in self.asked if one.guess != one.label]


def cross_validate(
    run: str | Path | Run,
    *,
    folds: int = 4,
    data_dir: str | Path | None = None,
    device: str = "auto",
    progress: bool = True,
) -> CrossValidation:
    """Trains a classifier for each fold, without that part of the labels, and asks it for them.

    They lie in `folds` in the run's folder. Finished ones are not trained again, and one that was
    stopped goes on.
    """
    require(folds >= 2, f"folds={folds}: must be at least 2")
    folder, where = folder_of(run), choose_device(device)
    recipe = folder.recipe()
    require(folder.finished(), f"{folder.path} has not finished: train with --resume to go on")
    require(
        not recipe.dataset.validation and recipe.dataset.fold is None,
        f"{folder.path} held images back already: its summary has `validation_top1`",
    )
    home = Path(data_dir) if data_dir else folder.data_dir()
    dataset = load_dataset(recipe.dataset, recipe.streaming, home, progress)
    dataset = dataclasses.replace(dataset, test=None)
    jobs = jobs_for(folder, recipe, folds, dataset)

    answers = []
    for one, part in jobs:
        if not part.finished():
            fit(part, one, dataset, where, home, open_bar(one, progress))
            free_memory(where)
        answers.append(ask(part, dataset, where))
    names, p, labels = (
        [name for answer in answers for name in answer.names],
        torch.cat([answer.p for answer in answers]),
        torch.cat([answer.labels for answer in answers]),
    )
    judged = accuracy.compare(p, labels)
    asked = told(names, judged, dataset.classes)
    table = folder.path / "folds" / f"{folds}.csv"
    text = to_csv([one._asdict() | {"probability": f"{one.probability:.6f}"} for one in asked])
    write_file(table, lambda file: file.write(text.encode()))
    heat = temperature.fit(p, labels)
    folder.describe("temperature", heat)
    return CrossValidation(accuracy.score(judged, len(dataset.classes)), heat, asked, table)


def jobs_for(
    folder: RunFolder, recipe: Recipe, folds: int, dataset: Dataset
) -> list[tuple[Recipe, RunFolder]]:
    """What is trained for each fold, and where; what cannot be is told before the first is."""
    check_exists(recipe.model.init)
    folder.load_split(dataset, recipe)  # the data must be what it was
    jobs = []
    for part in range(1, folds + 1):
        one = replace(recipe, fold=f"{part}/{folds}")
        splits.make(dataset, one.dataset, one.split_seed)
        jobs.append((one, RunFolder(folder.path / "folds" / f"{part}-of-{folds}")))
    return jobs


def open_bar(recipe: Recipe, progress: bool) -> OpenBar:
    return lambda title, steps, done: TrainingBar(
        f"{title}, fold {recipe.dataset.fold}", steps, done, show=progress
    )


class Answer(NamedTuple):
    names: list[str]  # [n]
    p: Tensor  # [n, C]
    labels: Tensor  # [n] the truth


def ask(folder: RunFolder, dataset: Dataset, device: torch.device) -> Answer:
    """What a classifier makes of the labelled images that were kept from it."""
    split = folder.load_split(dataset, folder.recipe())
    assert split is not None  # the fold was trained
    part = dataset.train.subset(split.validation)
    classifier = load_classifier(folder, device)
    if not isinstance(part, Files):
        return Answer(part.names, classifier.predict(part.images).probabilities, part.labels)
    paths = [part.root / name for name in part.names]
    found = [p for _, p, _ in predict_files(classifier, paths)]
    rows = [row for row, p in enumerate(found) if p is not None]
    require(bool(rows), f"none of the {len(part)} labelled images that are asked can be read")
    read = part.subset(torch.tensor(rows))
    return Answer(read.names, torch.stack([p for p in found if p is not None]), read.labels)


def told(names: list[str], judged: accuracy.Predicted, classes: list[str]) -> list[Asked]:
    """By name, the surest mistakes first."""
    labels, guesses = (
        [classes[c] for c in column.tolist()] for column in (judged.labels, judged.predictions)
    )
    asked = map(Asked, names, labels, guesses, judged.confidence.tolist())
    return sorted(asked, key=lambda one: (one.guess == one.label, -one.probability))
