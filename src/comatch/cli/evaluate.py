"""`comatch evaluate`: accuracy of a run's classifier, class by class."""

from typing import Annotated

import typer

from comatch.cli.console import loading_torch, out, resumable, say
from comatch.cli.options import DataDirOption, DeviceOption, RunArgument


def evaluate(
    run: RunArgument,
    data_dir: DataDirOption = None,
    folds: Annotated[
        int | None,
        typer.Option(
            metavar="K", help="Run K-fold cross-validation on the labels (default: test part)."
        ),
    ] = None,
    device: DeviceOption = "auto",
) -> None:
    """Evaluate a run's classifier on the test part of its data, class by class.

    Without a test part, use [bold]--folds 4[/]: it trains four more classifiers, each
    without a quarter of the labels, and evaluates each on that quarter. It lists
    the labels that they contradict, and calibrates the probabilities of the run.
    You can stop it with Ctrl-C: the same command continues.
    """
    with loading_torch():
        from comatch import api
        from comatch.evaluation import Scores, tables
        from comatch.training.run_folder import folder_of

    def show(scores: Scores) -> None:
        out.print(tables.scores(scores, folder_of(run).description()["classes"]))

    if folds is None:
        show(api.evaluate(run, data_dir=data_dir, device=device))
        return
    from comatch.commands.cross_validation import cross_validate

    with resumable():
        checked = cross_validate(run, folds=folds, data_dir=data_dir, device=device)
    show(checked.scores)
    if checked.mistakes:
        out.print(tables.contradicted(checked.mistakes))
    say(f"every label and its prediction: {checked.table}")
    if checked.temperature > 1:
        say(f"calibrated (temperature {checked.temperature:.2f}): {run}")
