"""`comatch train`: one run, and the same network on the labels alone if wanted."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from comatch import launch
from comatch.cli.console import err, loading_torch, out, say
from comatch.cli.options import (
    DataArgument,
    DataDirOption,
    DeviceOption,
    EncoderOption,
    LabelsOption,
    MethodOption,
    RecipeOption,
    SetOption,
    StepsOption,
    duration,
)


def train(
    data: DataArgument = None,
    labels: LabelsOption = None,
    labels_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Read the labels from a CSV of path,label; or keep those of a list of images "
            "(default: class folders, or labels.csv among the images).",
        ),
    ] = None,
    method: MethodOption = None,
    recipe: RecipeOption = None,
    init: Annotated[
        str | None,
        typer.Option(
            metavar="WEIGHTS",
            help="Start from a run folder, a file of weights, timm or timm:NAME.TAG "
            "(default: the recipe's).",
        ),
    ] = None,
    encoder: EncoderOption = None,
    time: Annotated[
        float | None,
        typer.Option(
            metavar="2m",
            parser=duration,
            help="Encode images for so long, then train with what there is (90s, 2m, 1h; default: "
            "no limit).",
        ),
    ] = None,
    data_dir: DataDirOption = None,
    steps: StepsOption = None,
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", help="Seed the split, the weights and the batches (default: 0)."),
    ] = None,
    out_dir: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="Write the run here (default: a folder in runs)."
        ),
    ] = None,
    device: DeviceOption = "auto",
    settings: SetOption = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the unfinished run in --out.")
    ] = False,
    baseline: Annotated[
        bool,
        typer.Option("--baseline", help="Also train the same network on the labels alone."),
    ] = False,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Refuse images with two labels (default: leave these labels out)."
        ),
    ] = False,
) -> None:
    """Train a classifier from few labels and many unlabelled images.

    [bold]comatch train[/]                              digits, 40 labels, on a CPU
    [bold]comatch train IMAGES[/]                       your own folder of images
    [bold]comatch train IMAGES --encoder none[/]        without a pre-trained encoder
    [bold]comatch train cifar10 --steps 3000[/]
    [bold]comatch train --out runs/mine --resume[/]     continue where it stopped

    IMAGES has a folder for each class, or a labels.csv with rows of path,label.
    All other images in it are unlabelled. A folder [bold]test[/] in it is the test part.
    """
    with loading_torch():
        from comatch import api, distributed
        from comatch.training.loop import Interrupted
        from comatch.training.run_folder import NothingToResumeError
    from comatch.cli import tables

    options: dict[str, Any] = {
        "data": data,
        "labels": labels,
        "labels_file": labels_file,
        "recipe": recipe,
        "init": init,
        "encoder": encoder,
        "time": time,
        "data_dir": data_dir,
        "steps": steps,
        "seed": seed,
        "device": device,
        "strict": strict,
    }
    jobs = [(method, out_dir, settings or [])]
    if baseline:
        beside = out_dir.with_name(out_dir.name + "-supervised") if out_dir else None
        jobs.insert(0, ("supervised", beside, without_method(settings or [], recipe, method)))
    runs, stopped = [], None
    for name, folder, assignments in jobs:
        job = {"method": name, "out": folder, "settings": assignments, **options}
        try:
            runs.append(api.train(**job, resume=resume))
        except NothingToResumeError:
            if not runs:
                raise
            runs.append(api.train(**job))  # stopped before this one had begun
        except Interrupted as stop:
            stopped = stop.step, stop.folder  # not the exception: it refers to the whole run
            break
    first = distributed.rank() == 0
    distributed.leave()
    if stopped:
        step, folder = stopped
        if first:
            err.print(f"stopped after step {step}; everything up to there is saved.")
            err.print(f"Continue with: {resume_command(folder)}", soft_wrap=True, markup=False)
        raise typer.Exit(130)
    if not first:
        return
    out.print(tables.results([run.summary for run in runs]))
    for run in runs:
        say(f"run folder: {run.path}")
    last = runs[-1]
    say(f"classify images: comatch predict {last.path} IMAGES")
    if not last.summary.keys() & {"top1", "validation_top1"}:
        say(f"estimate the accuracy: comatch evaluate {last.path} --folds 4")


def without_method(settings: list[str], recipe: str | None, method: str | None) -> list[str]:
    """The settings that the baseline has too, without those that only the method has."""
    from comatch import methods, recipes
    from comatch.config import settings_of

    own = set(settings_of(recipes.get(recipe or "folder", method).method))
    own -= set(settings_of(methods.config("supervised")))
    return [assignment for assignment in settings if assignment.partition("=")[0] not in own]


def resume_command(folder: Path) -> str:
    """The command that was entered, with the folder named and --resume added."""
    words = [word for word in sys.argv[1:] if word != "--resume"]
    if not any(word == "--out" or word.startswith("--out=") for word in words):
        words += ["--out", str(folder)] if "--baseline" not in words else []
    start = "torchrun ... -m comatch " if launch.several() else "comatch "
    return start + shlex.join([*words, "--resume"])
