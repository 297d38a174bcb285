"""`comatch train`: one run, and the same network on the labels alone if wanted."""

from pathlib import Path
from typing import Annotated, Any

import typer

from comatch.cli.console import exit_stopped, loading_torch, out, say
from comatch.cli.options import (
    DataArgument,
    DataDirOption,
    DeviceOption,
    EncoderOption,
    InitOption,
    LabelsOption,
    MethodOption,
    OutOption,
    RecipeOption,
    ResumeOption,
    SeedOption,
    SetOption,
    StepsOption,
    duration,
    known_pretraining,
    run_folder,
)
from comatch.errors import UserError


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
    init: InitOption = None,
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
    teacher: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            parser=run_folder,
            help="Learn from the predictions of this run: --method distill.",
        ),
    ] = None,
    pretrain: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD",
            parser=known_pretraining,
            help="First learn the network without labels: simclr, moco_v2, ...",
        ),
    ] = None,
    pretrain_steps: Annotated[
        int | None,
        typer.Option(metavar="N", help="Steps of --pretrain (default: its recipe's)."),
    ] = None,
    data_dir: DataDirOption = None,
    steps: StepsOption = None,
    seed: SeedOption = None,
    out_dir: OutOption = None,
    device: DeviceOption = "auto",
    settings: SetOption = None,
    resume: ResumeOption = False,
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
    [bold]comatch train cifar10 --pretrain simclr --steps 3000[/]   without labels first
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
        "pretrain": pretrain,
        "pretrain_steps": pretrain_steps,
    }
    settings = settings or []
    if teacher:
        method, settings = method or "distill", [*settings, f"teacher={teacher}"]
    jobs = [(method, out_dir, settings)]
    if baseline and pretrain:
        raise UserError("--baseline would pre-train again: train it with --init OUT/pretraining")
    if baseline:
        beside = out_dir.with_name(out_dir.name + "-supervised") if out_dir else None
        jobs.insert(0, ("supervised", beside, without_method(settings, recipe, method)))
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
        exit_stopped(*stopped)
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
