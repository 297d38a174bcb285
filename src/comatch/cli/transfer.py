"""`comatch transfer linear | detect`: evaluate an encoder on other data."""

from pathlib import Path
from typing import Annotated

import typer

from comatch.cli import detect
from comatch.cli.console import loading_torch, out, resumable, say
from comatch.cli.options import DataDirOption, DeviceOption, words
from comatch.errors import UserError

app = typer.Typer(
    help="Evaluate an encoder on other data: the paper's transfer learning tests.",
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
        str, typer.Option(metavar="N,N,...", help="Training images a class; all: every image.")
    ] = "4,8,16,64,all",
    repeats: Annotated[int, typer.Option(help="Draws of the training images.")] = 5,
    protocol: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Of voc2007: strict, or pcl, to which the paper refers.",
        ),
    ] = "strict",
    data_dir: DataDirOption = None,
    folder: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for results and tables (default: runs/transfer-DATA)."),
    ] = None,
    device: DeviceOption = "auto",
) -> None:
    """Linear classifiers on features: the paper's tables of VOC 2007 and Places205.

    The encoders are not trained any more. Linear SVMs are trained on their features
    of a few images a class and evaluated on the test part. [bold]random[/] is a network
    like that of the first run, with random weights. You can stop with Ctrl-C: the
    same command continues, and more encoders are added to what exists.
    """
    with loading_torch():
        from comatch.commands.transfer import tables
        from comatch.commands.transfer.linear import LinearTest
        from comatch.commands.transfer.linear import linear as evaluate

    test = LinearTest(
        data,
        [name.rstrip("/") for name in encoders],
        shots=read_shots(shots),
        repeats=repeats,
        protocol=protocol,
        data_dir=data_dir or "data",
        out=folder,
        device=device,
    )
    with resumable():
        record = evaluate(test)
    out.print(tables.transfer(record))
    say(f"results and tables: {test.folder}")


app.command()(detect.detect)
