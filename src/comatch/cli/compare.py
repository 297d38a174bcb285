"""`comatch compare`: several methods on the same splits."""

from pathlib import Path
from typing import Annotated

import typer

from comatch.cli.console import exit_with_failures, out, resumable, say
from comatch.cli.options import (
    DataArgument,
    DataDirOption,
    DeviceOption,
    LabelsOption,
    RecipeOption,
    SetOption,
    StepsOption,
    numbers,
    words,
)


def compare(
    data: DataArgument = None,
    methods: Annotated[
        str,
        typer.Option(metavar="A,B,...", help="Train all methods or these, see `comatch methods`."),
    ] = "all",
    labels: LabelsOption = None,
    seeds: Annotated[
        str, typer.Option(metavar="N,N,...", help="Train each method with each of these seeds.")
    ] = "0,1,2",
    recipe: RecipeOption = None,
    data_dir: DataDirOption = None,
    steps: StepsOption = None,
    out_dir: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Write runs and tables here (default: runs/compare-DATA-LABELS).",
        ),
    ] = None,
    device: DeviceOption = "auto",
    settings: SetOption = None,
) -> None:
    """Train several methods on the same splits, and compare their accuracy.

    [bold]comatch compare[/]                         all methods on digits, 40 labels
    [bold]comatch compare cifar10 --methods comatch,fixmatch --seeds 0,1[/]
    [bold]comatch compare IMAGES --out runs/mine[/]

    Runs with the same seed have the same split. The folder gets a run folder for
    each method and seed (comatch-seed0, ...), and after every run the table as
    compare.txt, compare.csv and compare.md.

    You can stop with Ctrl-C: the same command continues, and finished runs are
    not trained again. More seeds or methods are added to the folder. Other
    settings need another --out. A setting that only some methods have changes
    those methods.
    """
    with resumable():
        from comatch.commands.compare import compare
        from comatch.commands.report import tables

        compared = compare(
            data,
            methods=None if methods == "all" else words(methods),
            seeds=numbers(seeds),
            out=out_dir,
            labels=labels,
            recipe=recipe,
            data_dir=data_dir,
            steps=steps,
            device=device,
            settings=settings or [],
        )
    out.print(tables.ranking(compared.rows))
    say(f"runs, and the table as text, CSV and Markdown: {compared.path}")
    exit_with_failures([f"{row.method} {why}" for row in compared.rows for why in row.failures()])
