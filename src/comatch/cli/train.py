"""`comatch train`: one run, and the same network on the labels alone if wanted."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from comatch import launch
from comatch.cli.console import err, out, say
from comatch.cli.options import (
    DataArgument,
    DataDirOption,
    DeviceOption,
    LabelsOption,
    RecipeOption,
    SetOption,
    StepsOption,
)


def train(
    data: DataArgument = None,
    labels: LabelsOption = None,
    labels_file: Annotated[
        Path | None, typer.Option(help="What is labelled: CSV of path,label, or list of names.")
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="See `comatch methods` (default: the recipe's, CoMatch).")
    ] = None,
    recipe: RecipeOption = None,
    init: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT", help="Begin from a run folder, a file of weights, timm:NAME.TAG, timm."
        ),
    ] = None,
    data_dir: DataDirOption = None,
    steps: StepsOption = None,
    seed: Annotated[
        int | None, typer.Option(help="Decides split, weights and batches (default: 0).")
    ] = None,
    out_dir: Annotated[
        Path | None,
        typer.Option("--out", help="Run folder (default: a new one in runs)."),
    ] = None,
    device: DeviceOption = "auto",
    settings: SetOption = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out, if there is one.")
    ] = False,
    baseline: Annotated[
        bool,
        typer.Option("--baseline", help="Also train the same network on the labels alone."),
    ] = False,
) -> None:
    """Train a classifier.

    [bold]comatch train[/]                            digits, forty labels, no GPU
    [bold]comatch train IMAGES[/]                   labels.csv or class folders
    [bold]comatch train IMAGES --recipe folder-pretrained[/]   better; downloads 19 MB
    [bold]comatch train IMAGENET --labels 1%[/]       train/CLASS, val/CLASS
    [bold]comatch train cifar10 --steps 3000[/]
    [bold]comatch train --out runs/mine --resume[/]   go on where it stopped
    """
    from comatch import api, distributed
    from comatch.commands.report import tables
    from comatch.training.loop import Interrupted

    options: dict[str, Any] = {
        "data": data,
        "labels": labels,
        "labels_file": labels_file,
        "recipe": recipe,
        "init": init,
        "data_dir": data_dir,
        "steps": steps,
        "seed": seed,
        "device": device,
        "resume": resume,
    }
    jobs = [(method, out_dir, settings or [])]
    if baseline:
        beside = out_dir.with_name(out_dir.name + "-supervised") if out_dir else None
        jobs.insert(0, ("supervised", beside, without_method(settings or [], method)))
    runs, stopped = [], None
    for name, folder, assignments in jobs:
        try:
            runs.append(api.train(method=name, out=folder, settings=assignments, **options))
        except Interrupted as why:
            stopped = why.step, why.folder  # without the error, which holds on to the whole run
            break
    first = distributed.rank() == 0
    distributed.leave()
    if stopped:
        step, folder = stopped
        if first:
            err.print(f"stopped after step {step}; everything up to there is saved.")
            err.print(f"Go on with: {resume_command(folder)}", soft_wrap=True, markup=False)
        raise typer.Exit(130)
    if not first:
        return
    out.print(tables.results([run.summary for run in runs]))
    for run in runs:
        say(f"run folder: {run.path}")
    last = runs[-1]
    say(f"classify images with: comatch predict {last.path} IMAGES")
    if not last.summary.keys() & {"top1", "validation_top1"}:
        say(f"how good is it? comatch evaluate {last.path} --folds 4")


def without_method(settings: list[str], method: str | None) -> list[str]:
    """The settings that the baseline shares: all but those that only the method has."""
    from comatch import methods
    from comatch.config import settings_of

    own = set(settings_of(methods.config(method or "comatch")))
    own -= set(settings_of(methods.config("supervised")))
    return [assignment for assignment in settings if assignment.partition("=")[0] not in own]


def resume_command(folder: Path) -> str:
    """The command that was given, with the folder named and --resume added."""
    words = [word for word in sys.argv[1:] if word != "--resume"]
    if not any(word == "--out" or word.startswith("--out=") for word in words):
        words += ["--out", str(folder)] if "--baseline" not in words else []
    start = "torchrun ... -m comatch " if launch.several() else "comatch "
    return start + shlex.join([*words, "--resume"])
