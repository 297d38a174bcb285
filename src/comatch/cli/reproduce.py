"""`comatch reproduce table1 | table2 | ablations | curves`: the paper's tables and figures."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from comatch.cli.console import out, resumable, say, tell_failures, tell_remarks
from comatch.cli.options import (
    DataDirOption,
    DeviceOption,
    LabelsOption,
    RecipeOption,
    SetOption,
    StepsOption,
    numbers,
    words,
)

if TYPE_CHECKING:
    from comatch.commands.reproduce import Group

app = typer.Typer(
    help="Make the paper's tables and figures again, and show ours beside them.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

SeedsOption = Annotated[
    str, typer.Option(metavar="N,N,...", help="Each setting is trained once with each.")
]
FromOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--from",
        metavar="FOLDER",
        help="Also count finished runs in this folder, or below it; may be given again.",
    ),
]
TrainOption = Annotated[
    bool, typer.Option("--train/--no-train", help="Train what is missing, or show what is there.")
]


def tell_the_rest(remarks: list[str], stem: Path, groups: "list[Group]") -> None:
    """Below a table: which runs do not count, where it was written, what failed."""
    from comatch.commands.reproduce import failures

    tell_remarks(remarks)
    say(f"as Markdown and CSV: {stem}.md, .csv")
    tell_failures(failures(groups))


@app.command()
def table1(
    labels: Annotated[
        str, typer.Option(metavar="N,N,...", help="Columns: numbers of labels.")
    ] = "20,40,80,250",
    stl10: Annotated[bool, typer.Option("--stl10", help="Also the column of STL-10.")] = False,
    methods: Annotated[
        str, typer.Option(metavar="A,B,...", help="Rows: some of `comatch methods`.")
    ] = "mixmatch,fixmatch,fixmatch_da,comatch",
    seeds: SeedsOption = "0,1,2,3,4",
    recipe: Annotated[
        str, typer.Option(help="Of all columns but STL-10's: see `comatch recipes`.")
    ] = "cifar10",
    steps: StepsOption = None,
    data_dir: DataDirOption = None,
    out_dir: Annotated[Path, typer.Option("--out", help="Folder.")] = Path("runs/table1"),
    others: FromOption = None,
    training: TrainOption = True,
    device: DeviceOption = "auto",
    settings: SetOption = None,
) -> None:
    """The paper's table 1: accuracy on CIFAR-10 and STL-10, its figures beside ours.

    [bold]comatch reproduce table1 --labels 40 --seeds 0[/]     one column, one seed
    [bold]comatch reproduce table1 --no-train[/]                what is there so far
    [bold]comatch reproduce table1 --no-train --from results --steps 5000[/]

    Runs that are finished count, half-done ones go on, missing ones are trained.
    A cell says mean, deviation over seeds and how many there are. Runs count only
    if their settings are those asked for, length included; others are named.
    The paper's lengths are long: --steps shortens all methods alike.

    The folder gets table1.md and table1.csv, written anew after every run, and a
    folder for each column (cifar10-40, ...) as `comatch compare` makes them. Stop
    whenever you like: the same command goes on, and more seeds or labels add to it.
    """
    from comatch.commands.report import tables
    from comatch.commands.reproduce.table1 import table1

    with resumable():
        table = table1(
            labels=numbers(labels, "--labels"),
            stl10=stl10,
            methods=words(methods),
            seeds=numbers(seeds),
            recipe=recipe,
            steps=steps,
            data_dir=data_dir,
            out=out_dir,
            others=others or [],
            train=training,
            device=device,
            settings=settings or [],
        )
    out.print(tables.beside_paper(table.titles(), table.rows()))
    tell_the_rest(table.remarks, out_dir / "table1", table.columns)


@app.command()
def table2(
    data: Annotated[str, typer.Argument(metavar="IMAGENET", help="Its folder: train and val.")],
    shares: Annotated[
        str, typer.Option(metavar="N,N", help="Columns: per cent of the labels, 1 or 10.")
    ] = "1,10",
    methods: Annotated[
        str, typer.Option(metavar="A,B,...", help="Rows: some of `comatch methods`.")
    ] = "fixmatch_da,comatch_momentum",
    init: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Weights of MoCo v2: each method also begins from them."),
    ] = None,
    seeds: SeedsOption = "0",
    steps: StepsOption = None,
    out_dir: Annotated[Path, typer.Option("--out", help="Folder.")] = Path("runs/table2"),
    others: FromOption = None,
    training: TrainOption = True,
    device: DeviceOption = "auto",
    settings: SetOption = None,
) -> None:
    """The paper's table 2: ImageNet with 1 % and 10 % of the labels, its figures beside ours.

    [bold]comatch reproduce table2 IMAGENET --no-train[/]                what is there so far
    [bold]comatch reproduce table2 IMAGENET --shares 1 --steps 20000[/]  one column, in short

    Runs that are finished count, half-done ones go on, missing ones are trained:
    in the paper's length one takes days on one GPU, and --steps shortens all alike.
    The folder gets table2.md and table2.csv, written anew after every run, and a
    folder for each share (1pct, 1pct-pretrained, ...) as `comatch compare` makes them.
    """
    from comatch.commands.report import tables
    from comatch.commands.reproduce.table2 import table2

    with resumable():
        table = table2(
            data,
            shares=numbers(shares, "--shares"),
            methods=words(methods),
            init=init,
            seeds=numbers(seeds),
            steps=steps,
            out=out_dir,
            others=others or [],
            train=training,
            device=device,
            settings=settings or [],
        )
    out.print(tables.beside_paper(table.titles(), table.rows()))
    tell_the_rest(table.remarks, out_dir / "table2", table.groups)


@app.command()
def ablations(
    data: Annotated[
        str | None,
        typer.Argument(metavar="DATA", help="cifar10 (default), digits, stl10, or a folder."),
    ] = None,
    parameters: Annotated[
        str, typer.Option(metavar="A,B,...", help="Some of T, lambda_ctr, alpha and K.")
    ] = "T,lambda_ctr,alpha,K",
    labels: LabelsOption = None,
    seeds: SeedsOption = "0,1,2",
    recipe: RecipeOption = None,
    steps: StepsOption = None,
    data_dir: DataDirOption = None,
    out_dir: Annotated[Path, typer.Option("--out", help="Folder.")] = Path("runs/ablations"),
    others: FromOption = None,
    training: TrainOption = True,
    device: DeviceOption = "auto",
    settings: SetOption = None,
) -> None:
    """The paper's ablations: CoMatch with one hyper-parameter changed at a time.

    [bold]comatch reproduce ablations --steps 20000[/]
    [bold]comatch reproduce ablations digits --parameters alpha,T --seeds 0[/]
    [bold]comatch reproduce ablations --no-train[/]     what is there so far

    T joins pseudo-labels in the graph, lambda_ctr weighs the contrast, alpha the
    model's own prediction, K is the memory's size. T and alpha are tried on the
    paper's scale, the others at multiples of the recipe's value. The recipe's own
    values are trained once a seed and shown in every panel.

    The folder gets ablations.md and ablations.csv, written anew after every run,
    the figure as ablations.png and ablations.svg, and a folder for each setting.
    Stop whenever you like: the same command goes on.
    """
    from comatch.commands.report import tables
    from comatch.commands.reproduce import failures
    from comatch.commands.reproduce.ablations import COLUMNS, ablations

    with resumable():
        varied = ablations(
            data,
            parameters=words(parameters),
            labels=labels,
            seeds=numbers(seeds),
            recipe=recipe,
            steps=steps,
            data_dir=data_dir,
            out=out_dir,
            others=others or [],
            train=training,
            device=device,
            settings=settings or [],
        )
    out.print(tables.sections(COLUMNS, varied.rows()))
    tell_remarks(varied.remarks)
    kinds = ".md, .csv" + (", .png, .svg" if varied.drawable else "; no run yet to draw")
    say(f"table and figure: {out_dir / 'ablations'}{kinds}")
    tell_failures(failures(varied.groups))


@app.command()
def curves(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, or folders of those.")
    ],
    stem: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="Without .png and .svg: both are written.")
    ] = Path("curves"),
) -> None:
    """The paper's training figure: pseudo-labels and test accuracy over steps.

    [bold]comatch reproduce curves runs/mine[/]
    [bold]comatch reproduce curves runs/table1/cifar10-40 --out figures/cifar10-40[/]

    Three panels: how many of the confident pseudo-labels are right, how many
    pseudo-labels are confident, and test accuracy. Runs that differ only in their
    seed are one line, their mean, with a band of their deviation. Runs that still
    train are drawn as far as they are.
    """
    from comatch.commands.report import figures
    from comatch.commands.reproduce import curves

    paths = figures.save(figures.curves(curves.read(runs)), stem)
    say(f"figure: {', '.join(map(str, paths))}")
