"""How good is a classifier, if its few labels are all that is known?

Each label is asked once of a classifier that did not know it: the labelled images are dealt into
parts, and for each part the run is trained again without it, with the same settings and the same
unlabelled images. These classifiers know fewer labels than the run's own, so their accuracy is
rather too low than too high for it. The test part, where there is one, is not looked at.

What they say of those labels also tells how much too sure they are: from then on, the run's own
classifier is that much less sure.
"""

import dataclasses
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from comatch import api
from comatch.commands import compare as comparison
from comatch.commands.report.runs import as_csv
from comatch.config import Recipe, replace, require
from comatch.data import splits
from comatch.evaluation import Scores, accuracy, temperature
from comatch.files import read_json, write_file
from comatch.training.init_weights import check_there
from comatch.training.loop import validation_part
from comatch.training.progress import TrainingBar
from comatch.training.run_folder import RunFolder
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
    run: str | Path | api.Run,
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
    folder, where = api.folder_of(run), api.choose_device(device)
    recipe = folder.recipe()
    require(folder.finished(), f"{folder.path} has not finished: train with --resume to go on")
    require(
        not recipe.validation and recipe.fold is None,
        f"{folder.path} held images back already: its summary has `validation_top1`",
    )
    home = Path(data_dir) if data_dir else folder.data_dir()
    dataset = dataclasses.replace(api.open_data(recipe, home, progress), test=None)
    jobs = jobs_for(folder, recipe, folds, dataset)

    answers = []
    for one, part in jobs:
        if not part.finished():
            api.learn(part, one, dataset, where, home, open_bar(one, progress))
            comparison.clear_away(where)
        answers.append(ask(part, dataset, device))
    names, p, labels = (
        [name for answer in answers for name in answer.names],
        torch.cat([answer.p for answer in answers]),
        torch.cat([answer.labels for answer in answers]),
    )
    judged = accuracy.judge(p, labels)
    asked = told(names, judged, dataset.classes)
    table = folder.path / "folds" / f"{folds}.csv"
    text = as_csv([one._asdict() | {"probability": f"{one.probability:.6f}"} for one in asked])
    write_file(table, lambda file: file.write(text.encode()))
    heat = temperature.fit(p, labels)
    folder.describe("temperature", heat)
    return CrossValidation(accuracy.score(judged, len(dataset.classes)), heat, asked, table)


def jobs_for(
    folder: RunFolder, recipe: Recipe, folds: int, dataset: Dataset
) -> list[tuple[Recipe, RunFolder]]:
    """What is trained for each fold, and where; what cannot be is told before the first is."""
    check_there(recipe.init)
    splits.restore(dataset, recipe, read_json(folder.split))  # the data must be what it was
    jobs = []
    for part in range(1, folds + 1):
        one = replace(recipe, fold=f"{part}/{folds}")
        splits.make(dataset, one)
        jobs.append((one, RunFolder(folder.path / "folds" / f"{part}-of-{folds}")))
    return jobs


def open_bar(recipe: Recipe, progress: bool) -> api.OpenBar:
    return lambda title, steps, done: TrainingBar(
        f"{title}, fold {recipe.fold}", steps, done, show=progress
    )


class Answer(NamedTuple):
    names: list[str]  # [n]
    p: Tensor  # [n, C]
    labels: Tensor  # [n] the truth


def ask(folder: RunFolder, dataset: Dataset, device: str) -> Answer:
    """What a classifier makes of the labelled images that were kept from it."""
    split = splits.restore(dataset, folder.recipe(), read_json(folder.split))
    part = validation_part(dataset, split)
    assert part is not None  # a fold has a label at least
    classifier = api.load(folder.path, device)
    if not isinstance(part, Files):
        return Answer(part.names, classifier.predict(part.images).probabilities, part.labels)
    paths = [part.root / name for name in part.names]
    found = [p for _, p, _ in api.predict_files(classifier, paths)]
    rows = [row for row, p in enumerate(found) if p is not None]
    require(bool(rows), f"none of the {len(part)} labelled images that are asked can be read")
    read = part.subset(torch.tensor(rows))
    return Answer(read.names, torch.stack([p for p in found if p is not None]), read.labels)


def told(names: list[str], judged: accuracy.Judged, classes: list[str]) -> list[Asked]:
    """By name, the surest mistakes first."""
    labels, guesses = (
        [classes[c] for c in column.tolist()] for column in (judged.labels, judged.guesses)
    )
    asked = map(Asked, names, labels, guesses, judged.confidence.tolist())
    return sorted(asked, key=lambda one: (one.guess == one.label, -one.probability))
