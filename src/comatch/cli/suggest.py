"""`comatch suggest`: which pictures to label next."""

from pathlib import Path
from typing import Annotated

import typer

from comatch.cli.console import err, loading_torch, say
from comatch.cli.options import DeviceOption
from comatch.errors import UserError, shortened

EncoderOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Compare images by this pre-trained network, see `comatch encoders` (default: one "
        "that is there or can be downloaded).",
    ),
]
InitOption = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Read the weights of the encoder from a file."),
]


def suggest(
    data: Annotated[
        Path, typer.Argument(metavar="FOLDER|RUN", help="A folder of images, or a run folder.")
    ],
    number: Annotated[int, typer.Option(metavar="N", min=1, help="Choose this many.")] = 40,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the table with empty labels here (default: labels.csv in the folder).",
        ),
    ] = None,
    sheet: Annotated[
        Path,
        typer.Option(metavar="FILE", help="Draw the images with the names of their files here."),
    ] = Path("suggestions.png"),
    labels_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Read the labels so far here (default: labels.csv in the folder)."
        ),
    ] = None,
    encoder: EncoderOption = None,
    init: InitOption = None,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace files that exist; labels in them are kept."),
    ] = False,
    device: DeviceOption = "auto",
) -> None:
    """Choose the images to label next.

    [bold]comatch suggest IMAGES[/]                  without labels: typical and diverse images
    [bold]comatch suggest IMAGES --overwrite[/]      with some labels: uncertain and diverse ones
    [bold]comatch suggest runs/mine[/]               the same, by the classifier of a run

    It writes a labels.csv: fill in the labels, or use [bold]comatch label[/], and train.
    """
    from comatch.commands.suggest.table import check_free, find_pictures

    if not data.exists():
        raise UserError(f"{data} does not exist: give a folder of images, or a run folder")
    if not (data / "config.json").exists():  # a wrong name or file is found before PyTorch loads
        check_free(out or find_pictures(data).labels_file, sheet, data, overwrite)
    with loading_torch():
        from comatch.commands.suggest import choose

    found = choose.suggest(
        data,
        number=number,
        out=out,
        sheet=sheet,
        labels_file=labels_file,
        encoder=encoder,
        init=init,
        device=device,
        overwrite=overwrite,
    )
    for name, why in found.unreadable.items():
        err.print(f"skipped {name}: {why}", soft_wrap=True, highlight=False, markup=False)
    say(f"{len(found.names)} images to label: {found.table}")
    say(f"the images with their names: {found.sheet}")
    covered, groups = found.groups
    say(f"they cover {covered} of about {groups} groups of similar images (an estimate)")
    if found.classes is not None:
        classes = sorted(set(found.labelled.values()))
        count = f"{found.classes} of the {len(classes)} classes"
        say(f"predicted among them: {count} ({shortened(classes, 5)})")
