"""The command line: `comatch train | compare | evaluate | predict | report | ...`."""

import codecs
import csv
import shlex
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track

from comatch import cache
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

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")]
DataArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="DATA",
        help="digits (default), cifar10, stl10, or the path of a folder of pictures.",
    ),
]
LabelsOption = Annotated[
    int | None,
    typer.Option(help="Labels to keep, the same number of each class; the rest is hidden."),
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
        Path | None, typer.Option(help="CSV of path,label: what is labelled.")
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="See `comatch methods` (default: comatch).")
    ] = None,
    recipe: RecipeOption = None,
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
    [bold]comatch train cifar10 --steps 3000[/]
    [bold]comatch train --out runs/mine --resume[/]   go on where it stopped
    """
    from comatch import api
    from comatch.report import tables
    from comatch.training.loop import Interrupted

    options: dict[str, Any] = {
        "data": data,
        "labels": labels,
        "labels_file": labels_file,
        "recipe": recipe,
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
            err.print(f"stopped after step {stopped.step}; everything up to there is saved.")
            err.print(f"Go on with: {resume_command(stopped.folder)}", soft_wrap=True)
            raise typer.Exit(130) from None
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
    return shlex.join(["comatch", *words, "--resume"])


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
    from comatch.training.loop import Interrupted

    again = shlex.join(["comatch", *sys.argv[1:]])
    try:
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
    except (Interrupted, KeyboardInterrupt) as stop:
        said = "stopped; finished runs and checkpoints are kept."
        if isinstance(stop, Interrupted):
            said = f"{stop} of {stop.folder.name}; everything up to there is saved."
        err.print(f"{said}\nGo on with: {again}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(130) from None
    out.print(tables.ranking(compared.rows))
    out.print(f"as text, CSV and Markdown, with the runs: {compared.path}", soft_wrap=True)
    failures = [f"{row.method} {why}" for row in compared.rows for why in row.failures()]
    for failure in failures:
        complain(failure)
    if failures:
        raise typer.Exit(1)


def words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def numbers(text: str) -> list[int]:
    try:
        return [int(word) for word in words(text)]
    except ValueError:
        raise UserError(f"--seeds {text}: write whole numbers, as in 0,1,2") from None


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
    method: Annotated[str, typer.Option(help="See `comatch methods`.")] = "comatch",
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
    planned = recipes.get(recipe or ("cifar10" if where.type == "cuda" else "digits"), method)
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
    with err.status("starting") as status:
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
    method: Annotated[str, typer.Option(help="The method whose settings to show.")] = "comatch",
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
    warnings.showwarning = lambda message, *_: remark("[yellow]warning:[/]", str(message))
    cache.keep_bytecode()
    try:
        app()
    except UserError as error:
        complain(str(error))
        sys.exit(2)
    except OSError as error:
        complain(f"{error.strerror or error}: {error.filename or 'no file named'}")
        sys.exit(2)
    except KeyboardInterrupt:
        err.print("stopped")
        sys.exit(130)
    except Exception as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch is not imported just to ask
            raise
        complain(TOO_LITTLE_MEMORY)
        sys.exit(2)


def complain(message: str) -> None:
    remark("[bold red]error:[/]", message)


def remark(kind: str, message: str) -> None:
    """One line, however long: paths in it must not be mistaken for markup or broken."""
    err.print(kind, end=" ")
    err.print(message, markup=False, highlight=False, soft_wrap=True)
