"""The command line: `comatch train | compare | evaluate | predict | report | reproduce | ...`."""

import codecs
import csv
import shlex
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import track

from comatch import cache, launch
from comatch.errors import TOO_LITTLE_MEMORY, UserError

app = typer.Typer(
    name="comatch",
    help="An image classifier from a handful of labels and many unlabelled pictures.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
out = Console()
err = Console(stderr=True)


def number_or_share(text: str) -> int | float:
    from comatch import config

    try:
        return config.read_number_or_share(text)
    except ValueError:
        raise UserError(f"--labels {text}: {config.NUMBER_OR_SHARE}") from None


RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")]
DataArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="DATA",
        help="digits (default), cifar10, stl10, or the path of a folder of pictures.",
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


@app.command()
def train(
    data: DataArgument = None,
    labels: LabelsOption = None,
    labels_file: Annotated[
        Path | None, typer.Option(help="What is labelled: CSV of path,label, or list of names.")
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="See `comatch methods` (default: the recipe's, CoMatch).")
    ] = None,
    recipe: RecipeOption = None,
    init: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT", help="Begin from a run folder, a file of weights, timm:NAME.TAG, timm."
        ),
    ] = None,
    data_dir: DataDirOption = None,
    steps: StepsOption = None,
    seed: Annotated[
        int | None, typer.Option(help="Decides split, weights and batches (default: 0).")
    ] = None,
    out_dir: Annotated[
        Path | None,
        typer.Option("--out", help="Run folder (default: a new one in runs)."),
    ] = None,
    device: DeviceOption = "auto",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting: `comatch recipes NAME`."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out, if there is one.")
    ] = False,
    baseline: Annotated[
        bool,
        typer.Option("--baseline", help="Also train the same network on the labels alone."),
    ] = False,
) -> None:
    """Train a classifier.

    [bold]comatch train[/]                            digits, forty labels, no GPU
    [bold]comatch train PICTURES[/]                   labels.csv or class folders
    [bold]comatch train IMAGENET --labels 1%[/]       train/CLASS, val/CLASS
    [bold]comatch train cifar10 --steps 3000[/]
    [bold]comatch train --out runs/mine --resume[/]   go on where it stopped
    """
    from comatch import api, distributed
    from comatch.report import tables
    from comatch.training.loop import Interrupted

    options: dict[str, Any] = {
        "data": data,
        "labels": labels,
        "labels_file": labels_file,
        "recipe": recipe,
        "init": init,
        "data_dir": data_dir,
        "steps": steps,
        "seed": seed,
        "device": device,
        "resume": resume,
    }
    jobs = [(method, out_dir, settings or [])]
    if baseline:
        beside = out_dir.with_name(out_dir.name + "-supervised") if out_dir else None
        jobs.insert(0, ("supervised", beside, without_method(settings or [], method)))
    runs = []
    for name, folder, assignments in jobs:
        try:
            runs.append(api.train(method=name, out=folder, settings=assignments, **options))
        except Interrupted as stopped:
            if distributed.rank() == 0:
                err.print(f"stopped after step {stopped.step}; everything up to there is saved.")
                err.print(f"Go on with: {resume_command(stopped.folder)}", soft_wrap=True)
            distributed.leave()
            raise typer.Exit(130) from None
    first = distributed.rank() == 0
    distributed.leave()
    if not first:
        return
    out.print(tables.results([run.summary for run in runs]))
    for run in runs:
        out.print(f"run folder: {run.path}", soft_wrap=True)
    out.print(f"classify pictures with: comatch predict {runs[-1].path} PICTURES", soft_wrap=True)


def without_method(settings: list[str], method: str | None) -> list[str]:
    """The settings that the baseline shares: all but those that only the method has."""
    from comatch import methods
    from comatch.config import settings_of

    own = set(settings_of(methods.config(method or "comatch")))
    own -= set(settings_of(methods.config("supervised")))
    return [assignment for assignment in settings if assignment.partition("=")[0] not in own]


def resume_command(folder: Path) -> str:
    """The command that was given, with the folder named and --resume added."""
    words = [word for word in sys.argv[1:] if word != "--resume"]
    if not any(word == "--out" or word.startswith("--out=") for word in words):
        words += ["--out", str(folder)] if "--baseline" not in words else []
    start = "torchrun ... -m comatch " if launch.several() else "comatch "
    return start + shlex.join([*words, "--resume"])


@app.command()
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
    [bold]comatch compare PICTURES --out runs/mine[/]

    The same seed is the same split for every method. The folder holds a run
    folder for each method and seed (comatch-seed0, ...), and the table as
    compare.txt, compare.csv and compare.md, written anew after every run.

    Stop with Ctrl-C whenever you like: the same command goes on, and what is
    finished is never trained again. More seeds or methods are added to what
    is there; other settings need another --out.
    """
    from comatch import comparison
    from comatch.report import tables

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
    out.print(f"as text, CSV and Markdown, with the runs: {compared.path}", soft_wrap=True)
    tell_failures([f"{row.method} {why}" for row in compared.rows for why in row.failures()])


@contextmanager
def resumable() -> Iterator[None]:
    """Whoever stops what takes many runs is told that the same command goes on."""
    from comatch.training.loop import Interrupted

    try:
        yield
    except (Interrupted, KeyboardInterrupt) as stop:
        said = "stopped; finished runs and checkpoints are kept."
        if isinstance(stop, Interrupted):
            said = f"{stop} of {stop.folder.name}; everything up to there is saved."
        again = shlex.join(["comatch", *sys.argv[1:]])
        err.print(f"{said}\nGo on with: {again}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(130) from None


def tell_failures(failures: list[str]) -> None:
    for failure in failures:
        complain(failure)
    if failures:
        raise typer.Exit(1)


def words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def numbers(text: str, option: str = "--seeds") -> list[int]:
    try:
        return [int(word) for word in words(text)]
    except ValueError:
        raise UserError(f"{option} {text}: write whole numbers, as in 0,1,2") from None


reproduce = typer.Typer(
    help="Make the paper's tables and figures again, and show ours beside them.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app.add_typer(reproduce, name="reproduce")

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
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any setting: `comatch recipes NAME`."),
]


@reproduce.command()
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
    from comatch.report import tables
    from comatch.reproduction import failures
    from comatch.reproduction.table1 import table1

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
    tell_remarks(table.remarks)
    out.print(f"as Markdown and CSV: {out_dir / 'table1'}.md, .csv", soft_wrap=True)
    tell_failures(failures(table.columns))


@reproduce.command()
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
    from comatch.report import tables
    from comatch.reproduction import failures
    from comatch.reproduction.ablations import COLUMNS, ablations

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
    out.print(f"table and figure: {out_dir / 'ablations'}{kinds}", soft_wrap=True)
    tell_failures(failures(varied.groups))


@reproduce.command()
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
    from comatch.report import curves, figures

    paths = figures.save(figures.curves(curves.read(runs)), stem)
    out.print(f"figure: {', '.join(map(str, paths))}", soft_wrap=True)


def tell_remarks(remarks: list[str]) -> None:
    for line in remarks:
        remark("[yellow]note:[/]", line)


@app.command()
def evaluate(
    run: RunArgument, data_dir: DataDirOption = None, device: DeviceOption = "auto"
) -> None:
    """Score a run's classifier on the test part of its data, class by class."""
    from comatch import api
    from comatch.report import tables

    scores = api.evaluate(run, data_dir=data_dir, device=device)
    out.print(tables.scores(scores, api.folder_of(run).description()["classes"]))


@app.command()
def predict(
    run: RunArgument,
    pictures: Annotated[list[Path], typer.Argument(help="Pictures, or folders of pictures.")],
    table: Annotated[
        Path, typer.Option("--out", help="CSV to write: path, label, probability, classes.")
    ] = Path("predictions.csv"),
    device: DeviceOption = "auto",
) -> None:
    """Classify pictures with a run's classifier and write a table of the results."""
    from comatch import api
    from comatch.data.folder import find_pictures
    from comatch.training.checkpoint import replacing

    classifier = api.load(run, device)
    paths = find_pictures(pictures)
    unread: list[str] = []
    try:
        with replacing(table) as file:
            writer = csv.writer(codecs.getwriter("utf-8")(file))
            writer.writerow(["path", "label", "probability", *classifier.classes])
            rows = api.predict_files(classifier, paths)
            for path, p, why in track(rows, "classifying", len(paths), console=err, transient=True):
                if p is None:
                    unread.append(f"{path}: {why}")
                    continue
                best = int(p.argmax())
                shares = [f"{share:.6f}" for share in p.tolist()]
                writer.writerow([path, classifier.classes[best], shares[best], *shares])
    except OSError as error:
        raise UserError(f"cannot write {table}: {error.strerror}") from None
    for line in unread:
        err.print(f"skipped {line}", soft_wrap=True, highlight=False)
    if len(unread) == len(paths):
        raise UserError("none of the pictures could be read")
    skipped = f", {len(unread)} skipped" if unread else ""
    out.print(f"{len(paths) - len(unread)} pictures classified{skipped}: {table}", soft_wrap=True)


@app.command()
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Folders of runs, or files of bench --json."),
    ],
    markdown: Annotated[bool, typer.Option("--markdown", help="As a Markdown table.")] = False,
) -> None:
    """Compare finished runs: mean and deviation over seeds, and how many."""
    from comatch.report import benchmarks, tables
    from comatch.report import runs as reader

    measured = [benchmarks.read(path) for path in runs if path.suffix == ".json"]
    for record in measured:
        print(benchmarks.markdown(record)) if markdown else out.print(tables.bench(record))
    folders = [path for path in runs if path.suffix != ".json"]
    if folders:
        rows = reader.rows(folders)
        print(reader.markdown(rows)) if markdown else out.print(tables.comparison(rows))


@app.command()
def bench(
    recipe: Annotated[
        str | None,
        typer.Option(help="See `comatch recipes` (default: cifar10 on a GPU, else digits)."),
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="See `comatch methods` (default: the recipe's).")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Instead: how fast this folder is read, decoded and augmented."
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Threads and processes for --data (default: one a core).")
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Where the recipe's data lies (default: pictures are made up)."),
    ] = None,
    classes: Annotated[
        int | None, typer.Option(help="Classes of made-up pictures (default: 10).")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting: `comatch recipes NAME`."),
    ] = None,
    vary: Annotated[
        str | None,
        typer.Option(
            metavar="KEY=V,V,...", help="One row for each value of a setting, or of classes."
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(help="Steps that each repetition times (default: by their speed)."),
    ] = None,
    twin: Annotated[
        bool, typer.Option(help="Also time the same step in plain eager float32.")
    ] = True,
    device: DeviceOption = "auto",
    table: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write it to this file.")
    ] = None,
) -> None:
    """Measure how fast a training step is here, and how far from what the machine can do.

    [bold]comatch bench[/]                                   stages, rates, limits, plain twin
    [bold]comatch bench --recipe stl10 --json stl10.json[/]
    [bold]comatch bench --vary mu=1,3,7,15[/]                cost as the step's work grows
    [bold]comatch bench --data IMAGENET[/]                   pictures from a disk, and a DataLoader
    """
    from comatch import api, recipes
    from comatch import bench as meter
    from comatch.config import Recipe, parse, replace
    from comatch.data import splits
    from comatch.data.splits import Split
    from comatch.report import tables
    from comatch.training.checkpoint import write_json
    from comatch.types import Dataset

    where = api.choose_device(device)
    usual = "imagenet-1pct" if data else "cifar10" if where.type == "cuda" else "digits"
    planned = recipes.get(recipe or usual, method)
    given = parse(planned, settings or [])
    planned = replace(planned, **given)
    source: meter.Source = meter.made_up
    if data_dir is not None or "data" in given:
        planned = api.complete(planned, given)
        if classes is not None or (vary or "").startswith("classes="):
            raise UserError("real pictures have the classes they have: leave --data-dir out")

        def real(recipe: Recipe, _: int) -> tuple[Dataset, Split]:
            dataset = api.open_data(recipe, data_dir or Path("data"), progress=False)
            return dataset, splits.make(dataset, recipe)

        source = real

    if table and not table.parent.is_dir():  # told before measuring, not after
        raise UserError(f"cannot write {table}: there is no folder {table.parent}")
    if data and (vary or classes is not None or data_dir):
        raise UserError("--data measures one folder as it is: leave --vary, --classes, --data-dir")
    if workers is not None and not data:
        raise UserError("--workers is for --data: give a folder, or use --set workers=...")
    with err.status("starting") as status:
        if data:
            record = meter.run_pictures(planned, data, where, workers, status.update)
        else:
            record = meter.run(
                planned,
                source,
                where,
                classes=10 if classes is None else classes,
                vary=vary,
                steps=steps,
                twin=twin,
                say=status.update,
            )
    out.print(tables.bench(record))
    if table:
        write_json(table, record)


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="Show this one with its settings.")] = None,
) -> None:
    """List the methods, or show one."""
    from comatch import methods
    from comatch.report import tables

    if name is None:
        out.print(tables.catalogue({n: m.__doc__ for n, m in methods.METHODS.items()}))
    else:
        config = methods.config(name)
        out.print(sys.modules[methods.METHODS[name].__module__].__doc__, highlight=False)
        out.print(tables.settings(config))


@app.command()
def recipes(
    name: Annotated[str | None, typer.Argument(help="Show this one with its settings.")] = None,
    method: Annotated[
        str | None, typer.Option(help="Whose settings to show (default: the recipe's).")
    ] = None,
) -> None:
    """List the recipes, or show one with everything that --set takes."""
    from comatch import recipes
    from comatch.report import tables

    if name is None:
        out.print(tables.catalogue({n: r.__doc__ for n, r in recipes.RECIPES.items()}))
    else:
        recipe = recipes.get(name, method)
        out.print(recipes.RECIPES[name].__doc__, highlight=False)
        out.print(tables.settings(recipe))


def main() -> None:
    """Runs the command line; a mistake is one line and exit code 2, never a traceback."""
    warnings.showwarning = lambda message, *_: warn(str(message))
    cache.keep_bytecode()
    try:
        if launch.several() and sys.argv[1:2] != ["train"]:
            raise UserError("only `comatch train` works in several processes: leave torchrun out")
        app()
    except UserError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.strerror or error}: {error.filename or 'no file named'}")
    except KeyboardInterrupt:
        err.print("stopped")
        sys.exit(130)
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":  # torch is not imported just to ask
            fail(TOO_LITTLE_MEMORY)
        if launch.several():
            fail_of_many(error)
        raise


def fail(message: str) -> NoReturn:
    if speaks():
        complain(message)
    sys.exit(2)


def fail_of_many(error: Exception) -> None:
    """Of several processes that fail, one says why: the others only follow it."""
    from comatch import distributed

    if distributed.is_loss(error):
        why = str(error).splitlines()[0][:200]
        fail(f"another process is gone or does not answer: `--max-restarts` goes on ({why})")
    if not speaks():
        sys.exit(1)


def speaks() -> bool:
    """Whether this process is the one to say what went wrong."""
    if not launch.several():
        return True
    from comatch import distributed

    return distributed.fails_first()


def warn(message: str) -> None:
    if launch.rank() == 0:
        remark("[yellow]warning:[/]", message)


def complain(message: str) -> None:
    remark("[bold red]error:[/]", message)


def remark(kind: str, message: str) -> None:
    """One line, however long: paths in it must not be mistaken for markup or broken."""
    err.print(kind, end=" ")
    err.print(message, markup=False, highlight=False, soft_wrap=True)
