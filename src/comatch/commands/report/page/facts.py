"""What a report tells of a run, apart from pictures: read from its folder and from its images."""

import csv
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from comatch.classifier import load_classifier
from comatch.commands.report.page import answers as run_answers
from comatch.commands.report.page.answers import HELD_OUT, TEST, Answers
from comatch.commands.report.runs import Run, flatten
from comatch.device import choose_device
from comatch.errors import UserError
from comatch.evaluation import Evaluation
from comatch.evaluation.accuracy import LabelCheck, Predicted, compare, score
from comatch.files import read_json
from comatch.training.run_folder import RunFolder
from comatch.types import Dataset


class Measured(NamedTuple):
    """Predictions of images with a label that the classifier was not trained on."""

    what: str  # these images, in words
    evaluation: Evaluation


@dataclass(frozen=True, eq=False)
class Facts:
    """A run as far as it can be read. What is missing is None, and a note says why."""

    path: Path
    settings: dict[str, Any]
    summary: dict[str, Any]
    split: dict[str, Any]
    model: dict[str, Any]
    sessions: list[dict[str, Any]]
    metrics: dict[str, dict[int, float]]
    classes: list[str]
    checks: list[LabelCheck]  # every label with its prediction by cross-validation
    folds: int
    dataset: Dataset | None
    answers: Answers | None
    notes: list[str]

    def measured(self) -> Measured | None:
        """Of the test images; else of cross-validation; else of validation images."""
        return (
            self.of_part(TEST, "test images")
            or self.cross_validated()
            or self.of_part(HELD_OUT, "validation images")
        )

    def of_part(self, part: str, what: str) -> Measured | None:
        if self.answers is None:
            return None
        rows = self.answers.rows(part)
        rows = rows[self.answers.labels[rows] >= 0]
        if not len(rows):
            return None
        predicted = compare(self.answers.probabilities[rows], self.answers.labels[rows])
        names = [self.answers.names[row] for row in rows.tolist()]
        return self.scored(what, names, predicted)

    def cross_validated(self) -> Measured | None:
        number = {name: i for i, name in enumerate(self.classes)}
        known = [one for one in self.checks if {one.label, one.predicted} <= number.keys()]
        if not known:
            return None
        labels, predictions = (
            torch.tensor([number[name] for name in names])
            for names in ([c.label for c in known], [c.predicted for c in known])
        )
        confidence = torch.tensor([one.probability for one in known])
        found = self.scored(
            f"labels, by {self.folds}-fold cross-validation",
            [one.path for one in known],
            Predicted(labels, predictions, labels == predictions, confidence),
        )
        scores = replace(found.evaluation.scores, top5=None)  # which is not recorded
        return found._replace(evaluation=replace(found.evaluation, scores=scores))

    def scored(self, what: str, names: list[str], predicted: Predicted) -> Measured:
        scores = score(predicted, len(self.classes))
        return Measured(what, Evaluation(self.classes, names, predicted, scores))


def read(path: Path, device: str = "auto") -> Facts:
    """The facts of a run of any version."""
    run, folder, notes = Run(path), RunFolder(path), []

    def optional(file: Path) -> dict[str, Any]:
        return read_json(file) if file.exists() else {}

    summary, split, model = map(optional, (folder.summary, folder.split, folder.model))
    if not summary:
        notes.append("The run has not finished: this is its last saved state.")
    sessions = optional(folder.environment).get("sessions", [])
    classes = model.get("classes") or split.get("classes") or []
    checks, folds = cross_validation(path)
    dataset = found = None
    try:
        classifier = load_classifier(folder, choose_device(device))
        dataset, found, more = run_answers.collect(folder, classifier)
        notes += more
    except (UserError, KeyError) as error:
        notes.append(f"The images of the run cannot be shown: {error}")
    settings = flatten(run.recipe)
    return Facts(
        path, settings, summary, split, model, sessions, run.all_metrics(), classes, checks, folds,
        dataset, found, notes,
    )  # fmt: skip


def cross_validation(path: Path) -> tuple[list[LabelCheck], int]:
    """The answers of the newest `comatch evaluate --folds`, and its number of folds."""
    tables = sorted((path / "folds").glob("*.csv"), key=lambda file: file.stat().st_mtime)
    if not tables:
        return [], 0
    with tables[-1].open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        rows = list(csv.DictReader(file))
    try:
        checks = [
            LabelCheck(row["path"], row["label"], row["predicted"], float(row["probability"]))
            for row in rows
        ]
        return checks, int(tables[-1].stem)
    except (KeyError, ValueError, TypeError):
        raise UserError(f"{tables[-1]} was not written by comatch evaluate --folds") from None
