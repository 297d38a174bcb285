"""`comatch evaluate` and `comatch predict`: what a run's classifier is worth, and what it says."""

import codecs
import csv
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track

from comatch.cli.console import err, out, resumable, say
from comatch.cli.options import DataDirOption, DeviceOption, RunArgument
from comatch.errors import UserError


def evaluate(
    run: RunArgument,
    data_dir: DataDirOption = None,
    folds: Annotated[
        int | None,
        typer.Option(
            metavar="K", help="Ask each label of one of K classifiers that do not know it."
        ),
    ] = None,
    device: DeviceOption = "auto",
) -> None:
    """Score a run's classifier on the test part of its data, class by class.

    Where there is no test part, [bold]--folds 4[/] trains four more classifiers,
    each without a quarter of the labels, and asks them for those. It names the
    labels that they contradict, and if they were too sure, probabilities allow
    for it from then on. Stop it whenever you like: the same command goes on.
    """
    from comatch import api
    from comatch.commands.report import tables

    def show(scores: api.evaluation.Scores) -> None:
        out.print(tables.scores(scores, api.folder_of(run).description()["classes"]))

    if folds is None:
        show(api.evaluate(run, data_dir=data_dir, device=device))
        return
    from comatch.commands.cross_validation import cross_validate

    with resumable():
        checked = cross_validate(run, folds=folds, data_dir=data_dir, device=device)
    show(checked.scores)
    if checked.mistakes:
        out.print(tables.contradicted(checked.mistakes))
    say(f"every label and what it was taken for: {checked.table}")
    if checked.temperature > 1:
        heat = f"temperature {checked.temperature:.2f}"
        say(f"it was too sure: `comatch predict` allows for that from now on ({heat})")


def predict(
    run: RunArgument,
    images: Annotated[list[Path], typer.Argument(help="Images, or folders of images.")],
    table: Annotated[
        Path, typer.Option("--out", help="CSV to write: path, label, probability, classes.")
    ] = Path("predictions.csv"),
    sheet: Annotated[
        Path | None,
        typer.Option(help="PNG to draw: of each class the surest and the least sure images."),
    ] = None,
    device: DeviceOption = "auto",
) -> None:
    """Classify images with a run's classifier and write a table of the results."""
    from comatch import api
    from comatch.data.image_folder import find_images
    from comatch.files import atomic_writer

    classifier = api.load(run, device)
    paths = find_images(images)
    unread: list[str] = []
    found: list[tuple[Path, str, float]] = []
    try:
        with atomic_writer(table) as file:
            writer = csv.writer(codecs.getwriter("utf-8")(file))
            writer.writerow(["path", "label", "probability", *classifier.classes])
            rows = api.predict_files(classifier, paths)
            for path, p, why in track(rows, "classifying", len(paths), console=err, transient=True):
                if p is None:
                    unread.append(f"{path}: {why}")
                    continue
                best = int(p.argmax())
                shares = [f"{share:.6f}" for share in p.tolist()]
                writer.writerow([path, classifier.classes[best], shares[best], *shares])
                if sheet is not None:
                    found.append((path, classifier.classes[best], float(p[best])))
    except OSError as error:
        raise UserError(f"cannot write {table}: {error.strerror}") from None
    for line in unread:
        err.print(f"skipped {line}", soft_wrap=True, highlight=False, markup=False)
    if len(unread) == len(paths):
        raise UserError("none of the images could be read")
    skipped = f", {len(unread)} skipped" if unread else ""
    say(f"{len(paths) - len(unread)} images classified{skipped}: {table}")
    if sheet is not None:
        from comatch.commands.contact_sheet import Found, draw
        from comatch.commands.report import figures  # which loads matplotlib

        (drawn,) = figures.save(draw([Found(*one) for one in found]), sheet, ["png"])
        say(f"some of each class: {drawn}")
