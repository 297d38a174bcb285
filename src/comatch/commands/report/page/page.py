"""The page: facts of a run as the values that the template shows."""

import base64
import hashlib
import time
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from torch import Tensor

from comatch.commands.report.page import charts, findings
from comatch.commands.report.page.answers import LABELLED, Answers
from comatch.commands.report.page.facts import Facts, Measured
from comatch.commands.report.page.findings import Doubt
from comatch.commands.report.page.pictures import DOT, SIDE, Album, read_all
from comatch.config import labels_text
from comatch.errors import printable
from comatch.evaluation.accuracy import interval
from comatch.version import __version__

HERE = Path(__file__).parent
MOST_CELLS = 30  # classes of a confusion matrix
MOST_CLASSES = 24  # with examples
MOST_ROWS = 200  # classes of the table
FEW_FIT = 24  # images that fit no class


def render(facts: Facts) -> str:
    """The whole page as one HTML text."""
    css, script = (HERE / name for name in ("report.css", "report.js"))
    code = script.read_text()
    measured = facts.measured()
    values = {
        "name": facts.path.resolve().name,
        "version": __version__,
        "date": time.strftime("%Y-%m-%d"),
        "css": css.read_text(),
        "script": code,
        "digest": base64.b64encode(hashlib.sha256(code.encode()).digest()).decode(),
        "notes": facts.notes,
        "learned": learned_from(facts),
        "charts": charts.training_curves(facts.metrics),
        "settings": sorted((key, str(value)) for key, value in facts.settings.items()),
        "accuracy": accuracy(facts, measured),
        **(quality(measured) if measured else {}),
        **(pictures(facts, facts.answers) if facts.answers and len(facts.answers) else {}),
        **reproduction(facts),
    }
    return environment().get_template("report.html.j2").render(values)


def environment() -> jinja2.Environment:
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    found.filters["percent"] = lambda share: "" if share is None else f"{share:.1%}"
    found.globals["chart"] = charts
    return found


def learned_from(facts: Facts) -> list[tuple[str, str]]:
    """What the run was trained on, as names and values."""
    settings, split, summary = facts.settings, facts.split, facts.summary
    rows = [("Data", str(settings.get("data", "")))]
    if facts.classes:
        rows.append(("Classes", f"{len(facts.classes):,}"))
    if "labelled" in split:
        how = f" ({split['origin']})" if "origin" in split else ""
        rows.append(("Labelled images", f"{len(split['labelled']):,}{how}"))
    if "unlabelled" in split:
        used = summary.get("unlabelled")
        unused = " (not used by this method)" if used == 0 and split["unlabelled"] else ""
        rows.append(("Unlabelled images", f"{split['unlabelled']:,}{unused}"))
    if facts.dataset and facts.dataset.test:
        rows.append(("Test images", f"{len(facts.dataset.test):,}"))
    if split.get("skipped"):
        rows.append(("Images left out", f"{len(split['skipped']):,}"))
    rows.append(("Method", str(settings.get("method", ""))))
    frozen = ", frozen" if settings.get("frozen") else ""
    rows.append(("Network", f"{settings.get('net', '')}{frozen}"))
    rows.append(("Image size", f"{facts.model.get('image_size', settings.get('image_size'))} px"))
    if "steps" in summary:
        rows.append(("Training", f"{summary['steps']:,} steps, {summary['seconds']:,.0f} seconds"))
    return rows


def accuracy(facts: Facts, measured: Measured | None) -> dict[str, Any]:
    """The headline: a share, its interval if the images are known, and what it was measured on."""
    temperature = facts.model.get("temperature", 1.0)
    if measured:
        scores = measured.evaluation.scores
        return {
            "share": scores.top1,
            "interval": interval(scores.top1, scores.images),
            "images": scores.images,
            "what": measured.what,
            "top5": scores.top5,
            "calibration_error": scores.calibration_error,
            "temperature": temperature,
        }
    for key, what in (("top1", "test images"), ("validation_top1", "validation images")):
        if key in facts.summary:
            return {"share": facts.summary[key], "interval": None, "what": what}
    return {"share": None}


def quality(measured: Measured) -> dict[str, Any]:
    """Tables and charts of the predictions of labelled images."""
    found = measured.evaluation
    scores, counts, classes = found.scores, found.confusion(), found.classes
    images = counts.sum(1).tolist()
    rows = [
        {
            "name": name,
            "images": count,
            "recall": recall,
            "interval": None if recall is None else interval(recall, count),
            "confused": confused and (classes[confused[0]], confused[1]),
        }
        for name, count, recall, confused in zip(
            classes, images, scores.recall, scores.confused_with, strict=True
        )
    ]
    rows.sort(key=lambda row: 2.0 if row["recall"] is None else row["recall"])
    wrong = counts.clone().fill_diagonal_(0)
    pairs = [
        (classes[i // len(classes)], classes[i % len(classes)], int(wrong.flatten()[i]))
        for i in wrong.flatten().argsort(descending=True, stable=True)[:20].tolist()
        if wrong.flatten()[i]
    ]
    predicted = found.predicted
    return {
        "by_class": rows[:MOST_ROWS],
        "more_classes": max(0, len(rows) - MOST_ROWS),
        "confusion": confusion(classes, counts) if len(classes) <= MOST_CELLS else None,
        "confused_pairs": pairs,
        "bins": charts.reliability(predicted.confidence, predicted.labels == predicted.predictions),
    }


def confusion(classes: list[str], counts: Tensor) -> list[dict[str, Any]]:
    """A row for each class: counts by predicted class, and their shares of the row."""
    shares = counts / counts.sum(1, keepdim=True).clamp(min=1)
    cells = zip(classes, counts.tolist(), shares.tolist(), strict=True)
    return [{"name": name, "cells": list(zip(row, some, strict=True))} for name, row, some in cells]


def pictures(facts: Facts, answers: Answers) -> dict[str, Any]:
    """Everything that shows images: examples, doubts, copies, unknown images, the map."""
    album, classes = Album(), facts.classes
    images = read_all(answers.sources)

    def card(row: int) -> dict[str, Any]:
        label = int(answers.labels[row])
        return {
            "name": answers.names[row],
            "part": str(answers.parts[row]),
            "label": classes[label] if label >= 0 else None,
            "predicted": classes[int(answers.predicted[row])],
            "probability": float(answers.confidence[row]),
            "fit": None if answers.fit is None else float(answers.fit[row]),
            "picture": album.take(images[row], SIDE),
        }

    def cards(rows: list[int]) -> list[dict[str, Any]]:
        return [card(row) for row in rows]

    examples = findings.examples(answers, len(classes), MOST_CLASSES)
    doubts = findings.doubtful_labels(answers, classes, facts.checks)
    pairs = findings.copies(answers, images)
    strange = findings.unknown(answers).tolist()
    return {
        "examples": [
            {
                "name": classes[one.number],
                "images": one.images,
                "kinds": [
                    (head, cards(rows))
                    for head, rows in (
                        ("Most confident", one.surest),
                        ("Least confident", one.least_sure),
                        ("Mistakes", one.mistakes),
                    )
                    if rows
                ],
            }
            for one in examples
        ],
        "fewer_classes": len(classes) > MOST_CLASSES,
        "doubts": [doubt_row(one, card) for one in doubts[: findings.LISTED]],
        "all_doubts": len(doubts),
        "cross_validated": bool(facts.checks),
        "copies": [
            (card(a), card(b), findings.leaks(answers, (a, b)))
            for a, b in pairs[: findings.PAIRS]
        ],
        "all_copies": len(pairs),
        "strange": cards(strange[:FEW_FIT]),
        "all_strange": len(strange),
        "rated": len(answers) - len(answers.rows(LABELLED)),
        "fit_below": findings.UNKNOWN,
        "map": map_of(answers, classes, album, images),
    }  # fmt: skip


def doubt_row(one: Doubt, card: Any) -> dict[str, Any]:
    plain = {"picture": "", **one._asdict()}
    return plain | {"picture": card(one.row)["picture"]} if one.row is not None else plain


def map_of(
    answers: Answers, classes: list[str], album: Album, images: list[np.ndarray | None]
) -> dict[str, Any]:
    """The points of the map with what a pointer shows, for the script of the page."""
    rows, places, projection = findings.on_the_map(answers)
    predicted, confidence = answers.predicted.tolist(), answers.confidence.tolist()
    points = [
        {
            "x": round(float(x), 4),
            "y": round(float(y), 4),
            "class": predicted[row],
            "part": str(answers.parts[row]),
            "label": classes[int(answers.labels[row])] if answers.labels[row] >= 0 else None,
            "name": printable(answers.names[row]),
            "probability": round(confidence[row], 4),
            "fit": None if answers.fit is None else round(float(answers.fit[row]), 4),
            "picture": album.take(images[row], DOT),
        }
        for row, (x, y) in zip(rows, places, strict=True)
    ]
    return {"points": points, "classes": classes, "projection": projection}


def reproduction(facts: Facts) -> dict[str, Any]:
    """How the run was made: commands, commits, versions, and checksums of data and split."""
    settings = facts.settings
    return {
        "sessions": facts.sessions,
        "fingerprint": facts.split.get("fingerprint"),
        "seed": settings.get("seed"),
        "labels": labels_text(settings.get("labels")),
    }
