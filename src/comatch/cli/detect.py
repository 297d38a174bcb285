"""`comatch transfer detect`: Mask R-CNN on COCO, from a run's encoder."""

from pathlib import Path
from typing import Annotated

import typer

from comatch.cli.console import loading_torch, out, resumable, say
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
    schedule: Annotated[str, typer.Option(metavar="1x|2x", help="The paper's schedule.")] = "1x",
    steps: Annotated[
        int | None,
        typer.Option(help="Shorten the schedule to this (default: 90,000 or 180,000)."),
    ] = None,
    batch: Annotated[
        int, typer.Option(help="Images a step; the learning rate is proportional to it.")
    ] = 16,
    out_dir: Annotated[
        Path | None,
        typer.Option("--out", help="Run folder (default: runs/detect-RUN-SCHEDULE-seedN)."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in the folder, if there is one.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of new weights and batches.")] = 0,
    device: DeviceOption = "auto",
) -> None:
    """Object detection and segmentation: fine-tune Mask R-CNN on COCO, and score it.

    [bold]comatch transfer detect COCO runs/mine[/]             as the paper does
    [bold]comatch transfer detect COCO random --steps 9000[/]   a tenth of the schedule

    All layers of the run's encoder, a ResNet, are fine-tuned. The table has AP of
    boxes and masks on val2017, below the paper's. Needs pycocotools:
    pip install "comatch\\[detection]".
    """
    with loading_torch():
        from comatch.commands.transfer import detection, tables
        from comatch.commands.transfer.detection.setting import DetectionRequest

    request = DetectionRequest(coco, run, schedule, steps, batch, seed, device=device)
    with resumable("--resume"):
        done = detection.fine_tune(request, out_dir, resume)
    out.print(tables.detection(done.summary))
    say(f"run folder: {done.path}")
