"""K-fold cross-validation on the labels: an accuracy where there is no test part.

The labelled images are split into K folds. For each fold the run is trained again without these
labels, with the same settings and the same unlabelled images, and then predicts them. These
classifiers have fewer labels than the run's own, so their accuracy tends to be lower. The test part
is not used.

The predictions also calibrate the run's own classifier: a temperature is fitted to them.
"""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from comatch.classifier import load_classifier, predict_files
from comatch.commands import evaluation_files
from comatch.config import replace, require
from comatch.data import in_memory, splits
from comatch.device import choose_device, free_memory
from comatch.evaluation import Evaluation, accuracy, temperature
from comatch.files import write_text
from comatch.planning import load_dataset
from comatch.training.init_weights import check_available
from comatch.training.loop import fit
from comatch.training.progress import OpenBar, TrainingBar
from comatch.training.recipe import Recipe
from comatch.training.run_folder import Run, RunFolder, folder_of
from comatch.types import Dataset, Files


@dataclasses.dataclass(frozen=True, eq=False)
class CrossValidation(Evaluation):
    """Every labelled image, predicted by the classifier that was trained without its label."""

    temperature: float  # fitted: the run's classifier divides its log-probabilities by it
    table: Path  # CSV: label and prediction of each image


def cross_validate(
    run: str | Path | Run,
    data: Any = None,
    *,
    folds: int = 4,
    data_dir: str | Path | None = None,
    device: str = "auto",
    progress: bool = True,
) -> CrossValidation:
    """Train a classifier for each fold without the labels of the fold, and predict these.

    The classifiers are run folders in `folds` in the run's folder. Finished ones are not trained
    again, and an unfinished one is resumed. `data` is what the run learned from, if that was given
    in Python.
    """
    require(folds >= 2, f"folds={folds}: must be at least 2")
    folder, where = folder_of(run), choose_device(device)
    recipe = folder.recipe()
    require(folder.finished(), f"{folder.path} has not finished: train with --resume to go on")
    require(
        not recipe.dataset.validation and recipe.dataset.fold is None,
        f"{folder.path} held images out already: its summary has `validation_top1`",
    )
    home = Path(data_dir) if data_dir else folder.data_dir()
    given = None if data is None else in_memory.given(data)
    dataset = load_dataset(recipe.reading, home, progress, given=given)
    dataset = dataclasses.replace(dataset, test=None)
    jobs = plan_folds(folder, recipe, folds, dataset)

    parts = []
    for fold_recipe, fold_folder in jobs:
        if not fold_folder.finished():
            bar = open_bar(fold_recipe, progress)
            fit(fold_folder, fold_recipe, dataset, where, home, bar)
            free_memory(where)
        parts.append(predict_fold(fold_folder, dataset, where))
    names = [name for part in parts for name in part.names]
    p, labels = (torch.cat(column) for column in ([x.p for x in parts], [x.labels for x in parts]))

    predicted = accuracy.compare(p, labels)
    scores = accuracy.score(predicted, len(dataset.classes))
    fitted, table = temperature.fit(p, labels), folder.path / "folds" / f"{folds}.csv"
    checked = CrossValidation(dataset.classes, names, predicted, scores, fitted, table)
    write_text(table, evaluation_files.checks_csv(checked.checks))
    folder.describe("temperature", fitted)
    return checked


def plan_folds(
    folder: RunFolder, recipe: Recipe, folds: int, dataset: Dataset
) -> list[tuple[Recipe, RunFolder]]:
    """Recipe and folder of each fold. An impossible split is an error before the first run."""
    check_available(recipe.model)
    folder.load_split(dataset, recipe)  # an error if the data changed
    jobs = []
    for part in range(1, folds + 1):
        fold_recipe = replace(recipe, fold=f"{part}/{folds}")
        splits.make(dataset, fold_recipe.dataset, fold_recipe.split_seed)
        jobs.append((fold_recipe, RunFolder(folder.path / "folds" / f"{part}-of-{folds}")))
    return jobs


def open_bar(recipe: Recipe, progress: bool) -> OpenBar:
    return lambda title, steps, done: TrainingBar(
        f"{title}, fold {recipe.dataset.fold}", steps, done, show=progress
    )


class HeldOut(NamedTuple):
    """Predictions of a fold."""

    names: list[str]  # [n]
    p: Tensor  # [n, C]
    labels: Tensor  # [n]


def predict_fold(folder: RunFolder, dataset: Dataset, device: torch.device) -> HeldOut:
    """Predict the labelled images that a fold's classifier was trained without."""
    split = folder.load_split(dataset, folder.recipe())
    assert split is not None  # the fold was trained
    part = dataset.train.subset(split.validation)
    classifier = load_classifier(folder, device)
    if not isinstance(part, Files):
        return HeldOut(part.names, classifier.predict(part.images).probabilities, part.labels)
    paths = [part.root / name for name in part.names]
    found = [one.probabilities for one in predict_files(classifier, paths)]
    rows = [row for row, p in enumerate(found) if p is not None]
    require(bool(rows), f"none of the {len(part)} labelled images of a fold can be read")
    readable = part.subset(torch.tensor(rows))
    p = torch.stack([p for p in found if p is not None])
    return HeldOut(readable.names, p, readable.labels)
