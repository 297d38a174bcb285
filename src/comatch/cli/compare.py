"""`comatch compare`: several methods on the same splits."""

from pathlib import Path
from typing import Annotated

import typer

from comatch.cli.console import out, resumable, say, tell_failures
from comatch.cli.options import (
    DataArgument,
    DataDirOption,
    DeviceOption,
    LabelsOption,
    RecipeOption,
    StepsOption,
    numbers,
    words,
)


def compare(
    data: DataArgument = None,
    methods: Annotated[
        str, typer.Option(metavar="A,B,...", help="all, or some of `comatch methods`.")
    ] = "all",
    labels: LabelsOption = None,
    seeds: Annotated[
        str, typer.Option(metavar="N,N,...", help="Each method is trained once with each.")
    ] = "0,1,2",
    recipe: RecipeOption = None,
    data_dir: DataDirOption = None,
    steps: StepsOption = None,
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="Folder (default: runs/compare-DATA-LABELS).")
    ] = None,
    device: DeviceOption = "auto",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any setting; one that only some of the methods have changes those alone.",
        ),
    ] = None,
) -> None:
    """Train methods on the same splits, and put them in one table.

    [bold]comatch compare[/]                         every method, digits, forty labels
    [bold]comatch compare cifar10 --methods comatch,fixmatch --seeds 0,1[/]
    [bold]comatch compare IMAGES --out runs/mine[/]

    The same seed is the same split for every method. The folder holds a run
    folder for each method and seed (comatch-seed0, ...), and the table as
    compare.txt, compare.csv and compare.md, written anew after every run.

    Stop with Ctrl-C whenever you like: the same command goes on, and what is
    finished is never trained again. More seeds or methods are added to what
    is there; other settings need another --out.
    """
    from comatch.commands import compare as comparison
    from comatch.commands.report import tables

    with resumable():
        compared = comparison.compare(
            data,
            methods=None if methods == "all" else words(methods),
            labels=labels,
            seeds=numbers(seeds),
            recipe=recipe,
            data_dir=data_dir,
            steps=steps,
            out=out_dir,
            device=device,
            settings=settings or [],
        )
    out.print(tables.ranking(compared.rows))
    say(f"as text, CSV and Markdown, with the runs: {compared.path}")
    tell_failures([f"{row.method} {why}" for row in compared.rows for why in row.failures()])
