"""Arguments and options that several commands have, and how their values are read."""

from pathlib import Path
from typing import Annotated

import typer

from comatch.errors import UserError


def number_or_share(text: str) -> int | float:
    from comatch import config

    try:
        return config.read_number_or_share(text)
    except ValueError:
        raise UserError(f"--labels {text}: {config.NUMBER_OR_SHARE}") from None


def words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def numbers(text: str, option: str = "--seeds") -> list[int]:
    try:
        return [int(word) for word in words(text)]
    except ValueError:
        raise UserError(f"{option} {text}: write whole numbers, as in 0,1,2") from None


RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")]
DataArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="DATA",
        help="digits (default), cifar10, stl10, or the path of a folder of images.",
    ),
]
LabelsOption = Annotated[
    float | None,
    typer.Option(
        parser=number_or_share,
        metavar="N|P%",
        help="Labels to keep, the same number of each class; the rest is hidden.",
    ),
]
RecipeOption = Annotated[
    str | None, typer.Option(help="See `comatch recipes` (default: the one for DATA).")
]
StepsOption = Annotated[int | None, typer.Option(help="Optimiser steps (default: the recipe's).")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
DataDirOption = Annotated[
    Path | None,
    typer.Option(help="Where named data sets lie or are downloaded to (default: data)."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any setting: `comatch recipes NAME`."),
]
