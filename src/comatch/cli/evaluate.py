"""`comatch evaluate`: accuracy of a run's classifier, class by class."""

from pathlib import Path
from typing import Annotated

import typer

from comatch.cli.console import loading_torch, out, resumable, say
from comatch.cli.options import DataDirOption, DeviceOption, RunArgument
from comatch.errors import UserError


def evaluate(
    run: RunArgument,
    images: Annotated[
        Path | None,
        typer.Argument(
            metavar="FOLDER",
            help="Evaluate on this folder of labelled images (default: the test part of the data).",
        ),
    ] = None,
    data_dir: DataDirOption = None,
    folds: Annotated[
        int | None,
        typer.Option(
            metavar="K", help="Run K-fold cross-validation on the labels (default: test part)."
        ),
    ] = None,
    out_dir: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Write the scores as JSON, the confusion matrix as CSV and PNG, and the mistakes "
            "with their files to this folder.",
        ),
    ] = None,
    device: DeviceOption = "auto",
) -> None:
    """Evaluate a run's classifier, class by class.

    [bold]comatch evaluate runs/mine[/]                 on the test part of its data
    [bold]comatch evaluate runs/mine new-images[/]      on other labelled images
    [bold]comatch evaluate runs/mine --folds 4[/]       without a test part

    Labelled images are class folders, or a folder with a labels.csv.

    --folds trains more classifiers, each without a part of the labels, and
    evaluates each on that part. It lists the labels that they contradict, and
    calibrates the probabilities of the run. You can stop it with Ctrl-C: the same
    command continues.
    """
    if folds is not None and images is not None:
        raise UserError("--folds evaluates on the run's own labels: leave FOLDER or --folds out")
    with loading_torch():
        from comatch import api
        from comatch.commands import evaluation_files
        from comatch.commands.cross_validation import CrossValidation, cross_validate
        from comatch.evaluation import tables

    if out_dir is not None:
        evaluation_files.check_free(out_dir)
    if folds is None:
        found = api.evaluate(run, images, data_dir=data_dir, device=device)
    else:
        with resumable():
            found = cross_validate(run, folds=folds, data_dir=data_dir, device=device)
    out.print(tables.scores(found.scores, found.classes))
    if isinstance(found, CrossValidation):
        if found.mistakes:
            out.print(tables.contradicted(found.mistakes))
        say(f"every label and its prediction: {found.table}")
        if found.temperature > 1:
            say(f"calibrated (temperature {found.temperature:.2f}): {run}")
    if out_dir is not None:
        evaluation_files.write(found, out_dir)
        say(f"scores, confusion matrix and mistakes: {out_dir}")
