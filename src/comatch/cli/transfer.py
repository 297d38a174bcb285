"""`comatch transfer`: the paper's tests of what a network's features are worth elsewhere."""

from pathlib import Path
from typing import Annotated

import typer

from comatch.cli import detect
from comatch.cli.console import out, resumable, say
from comatch.cli.options import DataDirOption, DeviceOption, words
from comatch.errors import UserError

app = typer.Typer(
    help="Try what a network has learned on other images: the paper's transfer tests.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


def read_shots(text: str) -> list[int | None]:
    try:
        return [None if word == "all" else int(word) for word in words(text)]
    except ValueError:
        raise UserError(f"--shots {text}: write whole numbers and all, as in 4,16,all") from None


@app.command()
def linear(
    data: Annotated[
        str,
        typer.Argument(metavar="DATA", help="voc2007, digits, cifar10, stl10, or a folder."),
    ],
    encoders: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...", help="Run folders, files of weights, timm:NAME.TAG, or random."
        ),
    ],
    shots: Annotated[
        str, typer.Option(help="Images a class to learn from; all takes every one.")
    ] = "4,8,16,64,all",
    repeats: Annotated[int, typer.Option(help="Draws of those images.")] = 5,
    data_dir: DataDirOption = None,
    folder: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for figures and tables (default: runs/transfer-DATA)."),
    ] = None,
    device: DeviceOption = "auto",
) -> None:
    """Linear classifiers on fixed features: the paper's tables of VOC 2007 and Places.

    Every network stays as it is; linear SVMs learn from its features of a few
    images a class, and are asked about the test part. [bold]random[/] is a network
    of the first run's kind that has learned nothing. Stop it whenever you like:
    the same command goes on, and more networks are added to what is there.
    """
    from comatch.commands.report import tables
    from comatch.commands.transfer import linear as test

    path = folder or test.default_folder(data)
    with resumable():
        found = test.linear(
            data,
            [name.rstrip("/") for name in encoders],
            shots=read_shots(shots),
            repeats=repeats,
            data_dir=data_dir or "data",
            out=path,
            device=device,
        )
    out.print(tables.transfer(found))
    say(f"tables and figures: {path}")


app.command()(detect.detect)
