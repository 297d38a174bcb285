"""`comatch bench`: how fast a step is on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from comatch.cli.console import err, out
from comatch.cli.options import DeviceOption, SetOption
from comatch.errors import UserError


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
        typer.Option(help="Where the recipe's data lies (default: images are made up)."),
    ] = None,
    classes: Annotated[
        int | None, typer.Option(help="Classes of made-up images (default: 10).")
    ] = None,
    settings: SetOption = None,
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
    [bold]comatch bench --data IMAGENET[/]                   images from a disk, and a DataLoader
    """
    from comatch import api, recipes
    from comatch.commands import bench as meter
    from comatch.commands.report import tables
    from comatch.config import Recipe, parse, replace
    from comatch.data import splits
    from comatch.data.splits import Split
    from comatch.files import write_json
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
            raise UserError("real images have the classes they have: leave --data-dir out")

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
            record = meter.run_images(planned, data, where, workers, status.update)
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
