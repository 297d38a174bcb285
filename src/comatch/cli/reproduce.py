"""`comatch reproduce table1 | table2 | ablations | curves | checkpoint`: the paper's results."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comatch.cli.console import exit_with_failures, loading_torch, out, print_notes, resumable, say
from comatch.cli.options import (
    DataDirOption,
    DeviceOption,
    LabelsOption,
    RecipeOption,
    SetOption,
    StepsOption,
    known_recipe,
    numbers,
    words,
)

if TYPE_CHECKING:
    from comatch.commands.reproduce import Experiment, PaperTable

app = typer.Typer(
    help="Reproduce the paper's tables and figures, with our results beside them.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

MethodsOption = Annotated[
    str, typer.Option(metavar="A,B,...", help="Rows: some of `comatch methods`.")
]


def run_options(
    seeds: Annotated[
        str | None, typer.Option(metavar="N,N,...", help="Train each setting with each seed.")
    ] = None,
    steps: StepsOption = None,
    data_dir: DataDirOption = None,
    out_dir: Annotated[Path | None, typer.Option("--out", help="Folder of the runs.")] = None,
    others: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            metavar="FOLDER",
            help="Also count finished runs in or below this folder; may be repeated.",
        ),
    ] = None,
    train: Annotated[
        bool,
        typer.Option("--train/--no-train", help="Train missing runs, or only show what exists."),
    ] = True,
    device: DeviceOption = "auto",
    settings: SetOption = None,
) -> "Experiment":
    """The options that every table has, as an experiment."""
    with loading_torch():
        from comatch.commands.reproduce import Experiment
        from comatch.planning import Request

    request = Request(steps=steps, data_dir=data_dir, device=device, settings=settings or [])
    chosen = None if seeds is None else numbers(seeds)
    return Experiment(request, out_dir, chosen, others or [], train)


def table_command(command: Callable[..., None]) -> Callable[..., None]:
    """Register a command that takes an experiment first, and give it the options for that."""
    shared = inspect.signature(run_options).parameters

    @functools.wraps(command)
    def with_options(**given: Any) -> None:
        experiment = run_options(**{name: given.pop(name) for name in shared})
        command(experiment, **given)

    _, *own = inspect.signature(command).parameters.values()
    parameters = [
        one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (*own, *shared.values())
    ]
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {one.name: one.annotation for one in parameters}
    return app.command()(with_options)


def show_files(table: "PaperTable", kinds: str = ".md, .csv") -> None:
    """Print below a table which runs do not count, where the table was written, what failed."""
    print_notes(table.remarks)
    say(f"written: {table.path / table.name}{kinds}")
    exit_with_failures(table.failures())


@table_command
def table1(
    experiment: "Experiment",
    labels: Annotated[
        str, typer.Option(metavar="N,N,...", help="Columns: numbers of labels.")
    ] = "20,40,80,250",
    stl10: Annotated[bool, typer.Option("--stl10", help="Add the column of STL-10.")] = False,
    methods: MethodsOption = "mixmatch,fixmatch,fixmatch_da,comatch",
    recipe: Annotated[
        str, typer.Option(help="Of all columns but STL-10's: see `comatch recipes`.")
    ] = "cifar10",
) -> None:
    """Table 1: accuracy on CIFAR-10 and STL-10, the paper's figures beside ours.

    [bold]comatch reproduce table1 --labels 40 --seeds 0[/]     one column, one seed
    [bold]comatch reproduce table1 --no-train[/]                what exists so far
    [bold]comatch reproduce table1 --no-train --from results --steps 5000[/]

    Finished runs are counted, unfinished ones resumed, missing ones trained.
    A cell has mean, deviation and number of seeds (default: 0 to 4). A run
    counts only if its settings are those asked for, --steps included; the
    others are listed. --steps shortens the schedule of all methods.

    The folder (default: runs/table1) gets table1.md and table1.csv, which are
    updated after every run, and a folder for each column (cifar10-40, ...), as
    `comatch compare` makes them. You can stop with Ctrl-C: the same command
    continues, and more seeds or labels are added to what exists.
    """
    from comatch.commands.reproduce.table1 import table1
    from comatch.commands.reproduce.tables import beside_paper

    with resumable():
        table = table1(
            experiment.with_request(recipe=recipe),
            labels=numbers(labels, "--labels"),
            stl10=stl10,
            methods=words(methods),
        )
    out.print(beside_paper(table.titles(), table.rows()))
    show_files(table)


@table_command
def table2(
    experiment: "Experiment",
    data: Annotated[
        str, typer.Argument(metavar="IMAGENET", help="Folder of ImageNet, with train and val.")
    ],
    shares: Annotated[
        str, typer.Option(metavar="N,N", help="Columns: per cent of the labels, 1 or 10.")
    ] = "1,10",
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="Rows: some of `comatch methods` (default: those of the paper; fixmatch_da and "
            "comatch_momentum are trained, and from --init what the paper has).",
        ),
    ] = None,
    init: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE",
            help="Also train from these weights, whose pre-training is NAME; may be repeated.",
        ),
    ] = None,
) -> None:
    """Table 2: ImageNet with 1 % and 10 % of the labels, the paper's figures beside ours.

    [bold]comatch reproduce table2 IMAGENET --no-train[/]                what exists so far
    [bold]comatch reproduce table2 IMAGENET --shares 1 --steps 20000[/]  one column, shortened
    [bold]comatch reproduce table2 IMAGENET --init "MoCo v2=moco_v2_800ep.pth.tar"[/]
    [bold]comatch reproduce table2 IMAGENET --init SwAV=runs/swav --methods supervised[/]

    Finished runs are counted, unfinished ones resumed, missing ones trained
    (default: seed 0). With the paper's schedule a run takes days on one GPU;
    --steps shortens it for all methods. Each method has its own epochs,
    learning rate and settings: see `comatch recipes imagenet-10pct --method NAME`.
    supervised from --init is the paper's fine-tuning. A row of the paper that
    nobody asked to train is shown as not run.

    The folder (default: runs/table2) gets table2.md and table2.csv, which are
    updated after every run, and a folder for each share (1pct, 1pct-moco-v2,
    ...), as `comatch compare` makes them.
    """
    from comatch.commands.reproduce.table2 import parse_inits, table2
    from comatch.commands.reproduce.tables import beside_paper

    with resumable():
        table = table2(
            experiment.with_request(data=data),
            shares=numbers(shares, "--shares"),
            methods=None if methods is None else words(methods),
            inits=parse_inits(init or []),
        )
    out.print(beside_paper(table.titles(), table.rows()))
    show_files(table)


@table_command
def ablations(
    experiment: "Experiment",
    data: Annotated[
        str | None,
        typer.Argument(metavar="DATA", help="cifar10 (default), digits, stl10, or a folder."),
    ] = None,
    parameters: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="Some of T, lambda_ctr, alpha and K (default: those of --values, else all).",
        ),
    ] = None,
    values: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=X,Y,...",
            help="Try these values of a parameter, as in K=2560,10000; may be repeated.",
        ),
    ] = None,
    labels: LabelsOption = None,
    recipe: RecipeOption = None,
) -> None:
    """The ablations: CoMatch with one hyper-parameter changed at a time.

    [bold]comatch reproduce ablations --steps 20000[/]
    [bold]comatch reproduce ablations digits --parameters alpha,T --seeds 0[/]
    [bold]comatch reproduce ablations --values K=2560,10000 --values alpha=0.5[/]
    [bold]comatch reproduce ablations --no-train[/]     what exists so far

    T is the threshold of the pseudo-label graph, lambda_ctr the weight of the
    contrastive loss, alpha the weight of the model's own prediction, K the size
    of the memory bank. T and alpha are tried at values near the paper's,
    lambda_ctr and K at multiples of the recipe's value, or each at those of
    --values. The recipe's own values are trained once a seed (default: 0 to 2)
    and shown in every panel.

    The folder (default: runs/ablations) gets ablations.md and ablations.csv,
    which are updated after every run, the figure as ablations.png and .svg, and
    a folder for each setting. You can stop with Ctrl-C: the same command
    continues.
    """
    from comatch.commands.reproduce.ablations import COLUMNS, ablations, parse_values
    from comatch.commands.reproduce.tables import sections

    with resumable():
        table = ablations(
            experiment.with_request(data=data, labels=labels, recipe=recipe),
            parameters=None if parameters is None else words(parameters),
            values=parse_values(values or []),
        )
    out.print(sections(COLUMNS, table.rows()))
    drawn = ", .png, .svg" if table.drawable else "; no run to draw yet"
    show_files(table, f".md, .csv{drawn}")


@app.command()
def checkpoint(
    data: Annotated[
        str, typer.Argument(metavar="IMAGENET", help="Folder of ImageNet, with train and val.")
    ],
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Weights of encoder and classifier.")
    ],
    recipe: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            parser=known_recipe,
            help="Use the network and the images' size of this recipe.",
        ),
    ] = "imagenet-1pct",
    data_dir: DataDirOption = None,
    device: DeviceOption = "auto",
    settings: SetOption = None,
) -> None:
    """Evaluate a published checkpoint without training, the paper's accuracy beside it.

    [bold]comatch reproduce checkpoint IMAGENET comatch_1pct.pth.tar[/]
    [bold]comatch reproduce checkpoint IMAGENET comatch_10pct.pth.tar --recipe imagenet-10pct[/]

    FILE is a file of the authors, or any file with the tensors of a ResNet-50 and
    of its classifier. Classes are in the order of their folders' names. To train
    from it, use `comatch train IMAGENET --init FILE`.
    """
    with loading_torch():
        from comatch.commands.reproduce.checkpoint import evaluate_checkpoint
        from comatch.commands.reproduce.tables import beside_paper
        from comatch.planning import Request
    from comatch.tables import in_per_cent

    request = Request(
        data, recipe=recipe, data_dir=data_dir, device=device, settings=settings or []
    )
    found = evaluate_checkpoint(str(file), request)
    published = found.published
    theirs = [f"{figure:.1f}" for figure in published or () if figure is not None]
    top5 = found.scores.top5
    ours = [in_per_cent([found.scores.top1]), "" if top5 is None else in_per_cent([top5])]
    out.print(beside_paper(["top-1", "top-5"], [(found.recipe.name, theirs, ours)]))
    for line in found.loaded.lines():
        say(line)
    say(f"evaluated on {found.scores.images:,} images")


@app.command()
def curves(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Run folders, or folders that contain some."),
    ],
    stem: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="Without .png and .svg: both are written.")
    ] = Path("curves"),
) -> None:
    """The training curves: pseudo-labels and test accuracy over steps.

    [bold]comatch reproduce curves runs/mine[/]
    [bold]comatch reproduce curves runs/table1/cifar10-40 --out figures/cifar10-40[/]

    Three panels: accuracy of the confident pseudo-labels, share of confident
    pseudo-labels, and test accuracy. Runs that differ only in their seed become
    one line: their mean, with a band of their deviation. Runs that are still
    training are drawn up to their last step.
    """
    with loading_torch():
        from comatch.commands.reproduce import curves, figures
    from comatch.figures import save

    paths = save(figures.curves(curves.read(runs)), stem)
    say(f"figure: {', '.join(map(str, paths))}")
