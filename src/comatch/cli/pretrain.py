"""`comatch pretrain`: learn an encoder from images without labels."""

from typing import Annotated

import typer

from comatch.cli.console import exit_stopped, loading_torch, out, say
from comatch.cli.options import (
    DataArgument,
    DataDirOption,
    DeviceOption,
    InitOption,
    OutOption,
    ResumeOption,
    SeedOption,
    SetOption,
    StepsOption,
    known_pretraining,
    known_pretraining_recipe,
)


def pretrain(
    data: DataArgument = None,
    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            parser=known_pretraining,
            help="Pre-train with simclr, moco_v2, byol, swav, pirl or pcl (default: simclr).",
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            parser=known_pretraining_recipe,
            help="Use the settings of this recipe, pretrain-... in `comatch recipes` (default: "
            "the one for DATA).",
        ),
    ] = None,
    init: InitOption = None,
    data_dir: DataDirOption = None,
    steps: StepsOption = None,
    seed: SeedOption = None,
    out_dir: OutOption = None,
    device: DeviceOption = "auto",
    settings: SetOption = None,
    resume: ResumeOption = False,
) -> None:
    """Learn an encoder from images without labels.

    [bold]comatch pretrain IMAGES[/]                            SimCLR, your own folder
    [bold]comatch pretrain cifar10 --method byol[/]
    [bold]comatch pretrain --out runs/mine --resume[/]          continue where it stopped
    [bold]comatch train IMAGES --init runs/images-simclr-seed0[/]   continue with labels

    All training images are used, without their labels. If there are labels, and
    a test part, the accuracy of nearest neighbours is shown on the way, and that
    of a linear classifier at the end. Under torchrun, all processes train one encoder.
    """
    with loading_torch():
        from comatch import api, distributed
        from comatch.training.loop import Interrupted
    from comatch.cli import tables

    stopped = None
    try:
        run = api.pretrain(
            data,
            out=out_dir,
            resume=resume,
            method=method,
            recipe=recipe,
            init=init,
            data_dir=data_dir,
            steps=steps,
            seed=seed,
            device=device,
            settings=settings or [],
        )
    except Interrupted as stop:
        stopped = stop.step, stop.folder  # not the exception: it refers to the whole run
    first = distributed.rank() == 0
    distributed.leave()
    if stopped:
        exit_stopped(*stopped)
    if first:
        out.print(tables.pretrained(run.summary))
        say(f"run folder: {run.path}")
        say(f"train with labels: comatch train {data or 'digits'} --init {run.path}")
