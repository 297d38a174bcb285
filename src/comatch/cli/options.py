"""Arguments and options that several commands share, and how their values are read.

Names are checked here, before a command loads PyTorch.
"""

from pathlib import Path
from typing import Annotated

import typer

from comatch.errors import UserError


def number_or_share(text: str) -> int | float:
    from comatch import config

    try:
        return config.parse_number_or_share(text)
    except ValueError:
        raise UserError(f"--labels {text}: {config.NUMBER_OR_SHARE}") from None


def words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def numbers(text: str, option: str = "--seeds") -> list[int]:
    try:
        return [int(word) for word in words(text)]
    except ValueError:
        raise UserError(f"{option} {text}: write whole numbers, as in 0,1,2") from None


def duration(text: str) -> float:
    """`90s`, `2m` or `1h` in seconds; a plain number is seconds."""
    seconds = {"s": 1, "m": 60, "h": 3600}
    number, unit = (text[:-1], text[-1]) if text[-1:] in seconds else (text, "s")
    try:
        return float(number) * seconds[unit]
    except ValueError:
        raise UserError(f"--time {text}: write it as 90s, 2m or 1h") from None


def known_data(text: str) -> str:
    from comatch.data.names import check_data

    check_data(text)
    return text


def known_recipe(text: str) -> str:
    from comatch import recipes
    from comatch.config import check_name

    check_name(text, recipes.RECIPES, "recipe")
    return text


def known_method(text: str) -> str:
    return check_method(text, pretraining=False)


def known_pretraining(text: str) -> str:
    return check_method(text, pretraining=True)


def check_method(text: str, pretraining: bool) -> str:
    """The name of a method, or a file with one, which is read later."""
    from comatch.cli.methods import descriptions
    from comatch.config import check_name

    if Path(text).suffix == ".py":
        return text
    if text in descriptions(not pretraining):
        command = "train" if pretraining else "pretrain"
        raise UserError(f"{text} is a method of another command: use comatch {command}")
    check_name(text, descriptions(pretraining), "method")
    return text


def known_pretraining_recipe(text: str) -> str:
    from comatch import recipes
    from comatch.config import check_name

    check_name(text, recipes.PRETRAINING, "recipe")
    return text


def any_recipe(text: str) -> str:
    from comatch import recipes
    from comatch.config import check_name

    check_name(text, recipes.ALL, "recipe")
    return text


def any_method(text: str) -> str:
    from comatch.cli.methods import descriptions

    return text if text in descriptions(pretraining=True) else known_method(text)


def run_folder(text: str) -> Path:
    from comatch.files import check_run_folder

    check_run_folder(Path(text))
    return Path(text)


RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", parser=run_folder, help="The run folder.")
]
DataArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="DATA",
        parser=known_data,
        help="Learn from digits, cifar10, stl10, or a folder of images (default: digits).",
    ),
]
LabelsOption = Annotated[
    float | None,
    typer.Option(
        parser=number_or_share,
        metavar="N|P%",
        help="Keep this many labels, the same number of each class, and hide the rest "
        "(default: the recipe's).",
    ),
]
RecipeOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        parser=known_recipe,
        help="Use the settings of this recipe, see `comatch recipes` (default: the one for DATA).",
    ),
]
MethodOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        parser=known_method,
        help="Train with this method, see `comatch methods` (default: the recipe's).",
    ),
]
EncoderOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Train on features of this frozen pre-trained network, see `comatch encoders`; none: "
        "learn all weights (default, for a folder: one that is there or can be downloaded).",
    ),
]
StepsOption = Annotated[
    int | None,
    typer.Option(metavar="N", help="Take this many optimiser steps (default: the recipe's)."),
]
DeviceOption = Annotated[
    str, typer.Option(metavar="NAME", help="Compute on this device: auto, cpu, cuda or mps.")
]
InitOption = Annotated[
    str | None,
    typer.Option(
        metavar="WEIGHTS",
        help="Start from a run folder, a file of weights, timm or timm:NAME.TAG "
        "(default: the recipe's).",
    ),
]
SeedOption = Annotated[
    int | None,
    typer.Option(metavar="N", help="Seed the split, the weights and the batches (default: 0)."),
]
OutOption = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Write the run here (default: a folder in runs)."),
]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Continue the unfinished run in --out.")
]
DataDirOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Find data sets in this folder, or download them to it (default: data)."
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting, see `comatch recipes NAME`; repeat for more.",
    ),
]
