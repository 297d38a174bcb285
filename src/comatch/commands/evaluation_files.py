"""The files of `comatch evaluate --out`: scores, confusion matrix and mistakes."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from comatch import files, tables
from comatch.errors import UserError, printable
from comatch.evaluation import Evaluation
from comatch.evaluation.accuracy import LabelCheck, interval

SCORES, CONFUSION, FIGURE = "scores.json", "confusion.csv", "confusion.png"
MISTAKES = "mistakes.csv"
MOST_NUMBERS = 20  # classes up to which the figure has numbers
MOST_NAMES = 60  # and names


def check_free(folder: Path) -> None:
    """Raise an error if one of the files exists: nothing is overwritten."""
    for name in (SCORES, CONFUSION, FIGURE, MISTAKES):
        if (folder / name).exists():
            raise UserError(f"{folder / name} exists: choose another --out")


def write(evaluation: Evaluation, folder: Path) -> None:
    """Write scores.json, confusion.csv, confusion.png and mistakes.csv."""
    files.make_folder(folder)
    texts = {
        SCORES: json.dumps(scores_json(evaluation), indent=2) + "\n",
        CONFUSION: confusion_csv(evaluation.classes, evaluation.confusion()),
        MISTAKES: checks_csv(evaluation.mistakes),
    }
    files.write_texts(folder, texts)
    draw(evaluation, folder / FIGURE)


def scores_json(evaluation: Evaluation) -> dict[str, Any]:
    """All scores, with the 95 % confidence interval of the accuracy and the recall by class."""
    plain = dataclasses.asdict(evaluation.scores)
    confused = plain.pop("confused_with")
    recalls = plain.pop("recall")
    classes = {
        name: {
            "recall": recall,
            "most_confused_with": other and evaluation.classes[other[0]],
            "share_confused": other and other[1],
        }
        for name, recall, other in zip(evaluation.classes, recalls, confused, strict=True)
    }
    return plain | {"interval": interval(plain["top1"], plain["images"]), "classes": classes}


def confusion_csv(classes: Sequence[str], confusion: Tensor) -> str:
    """A row for each class, a column for each predicted class."""
    return tables.to_csv(
        [
            {"class": name, **{f"predicted {c}": n for c, n in zip(classes, row, strict=True)}}
            for name, row in zip(classes, confusion.tolist(), strict=True)
        ]
    )


def checks_csv(checks: Sequence[LabelCheck]) -> str:
    rows = [one._asdict() | {"probability": f"{one.probability:.6f}"} for one in checks]
    return tables.to_csv(rows, LabelCheck._fields)


def draw(evaluation: Evaluation, path: Path) -> None:
    """The confusion matrix: the share of each class that is predicted as each class."""
    import matplotlib  # slow to import
    from matplotlib.figure import Figure

    from comatch import figures

    counts, names = evaluation.confusion(), [shortened(name) for name in evaluation.classes]
    shares = counts / counts.sum(1, keepdim=True).clamp(min=1)
    side = min(14.0, 2.5 + 0.45 * len(names))
    with matplotlib.rc_context({**figures.STYLE, "axes.grid": False, "text.parse_math": False}):
        figure = Figure(figsize=(side + 0.8, side), layout="constrained")
        axes = figure.add_subplot()
        drawn = axes.imshow(shares.numpy(), cmap="Blues", vmin=0, vmax=1)
        axes.set(xlabel="predicted class", ylabel="class")
        if len(names) <= MOST_NAMES:
            places = range(len(names))
            axes.set_xticks(places, names, rotation=90)
            axes.set_yticks(places, names)
        if len(names) <= MOST_NUMBERS:
            for i, row in enumerate(counts.tolist()):
                for j, count in enumerate(row):
                    colour = "white" if shares[i, j] > 0.5 else "black"
                    if count:
                        axes.text(j, i, count, ha="center", va="center", color=colour, fontsize=8)
        bar = figure.colorbar(drawn, shrink=0.6)
        bar.set_label("share of the class")
        figures.save(figure, path, ["png"])


def shortened(name: str, most: int = 24) -> str:
    name = printable(name)
    return name if len(name) <= most else f"{name[: most - 1]}…"
