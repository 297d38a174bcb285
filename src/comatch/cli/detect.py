"""`comatch transfer detect`: Mask R-CNN on COCO, begun from a run's encoder."""

from pathlib import Path
from typing import Annotated

import typer

from comatch.cli.console import out, resumable, say
from comatch.cli.options import DeviceOption


def detect(
    coco: Annotated[
        Path, typer.Argument(metavar="COCO", help="Folder of annotations, train2017 and val2017.")
    ],
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="Run folder, file of weights, timm:NAME.TAG, or random."
        ),
    ],
    schedule: Annotated[str, typer.Option(metavar="1x|2x", help="The paper's two.")] = "1x",
    steps: Annotated[
        int | None, typer.Option(help="Fewer than 90,000 or 180,000: the schedule shrinks.")
    ] = None,
    batch: Annotated[int, typer.Option(help="Images a step; the learning rate follows it.")] = 16,
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="Folder (default: runs/detect-RUN-...).")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in the folder, if there is one.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Decides new weights and batches.")] = 0,
    device: DeviceOption = "auto",
) -> None:
    """Find and outline things: fine-tune Mask R-CNN on COCO, and score it.

    [bold]comatch transfer detect COCO runs/mine[/]             as the paper does
    [bold]comatch transfer detect COCO random --steps 9000[/]   a tenth, from scratch

    The encoder of the run, a ResNet, is trained on with all its layers. Box and
    mask AP on val2017 are shown below the paper's. Needs pycocotools:
    pip install "comatch\\[detection]".
    """
    from comatch.commands.report import tables
    from comatch.commands.transfer.detection import fine_tune

    with resumable("--resume"):
        done = fine_tune(
            coco,
            run,
            schedule=schedule,
            steps=steps,
            batch=batch,
            out=out_dir,
            resume=resume,
            seed=seed,
            device=device,
        )
    out.print(tables.detection(done.summary))
    say(f"run folder: {done.path}")
