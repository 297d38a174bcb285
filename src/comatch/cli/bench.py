"""`comatch bench`: how fast a training step is on this machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comatch.cli.console import err, loading_torch, out
from comatch.cli.options import DeviceOption, EncoderOption, SetOption
from comatch.errors import UserError

if TYPE_CHECKING:
    import torch


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
            metavar="DIR", help="Measure how fast the images of this folder are read instead."
        ),
    ] = None,
    encode: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Measure how fast a frozen network encodes the images of this folder.",
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Time `comatch train DIR` with an empty and a filled feature cache."
        ),
    ] = None,
    encoder: EncoderOption = None,
    init: Annotated[
        str | None,
        typer.Option(metavar="WEIGHTS", help="Weights of the encoder (default: downloaded)."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(help="Processes that read images, for --data (default: one a core)."),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Use the recipe's data, kept in this folder (default: random images)."),
    ] = None,
    classes: Annotated[
        int | None, typer.Option(help="Number of classes of random images (default: 10).")
    ] = None,
    settings: SetOption = None,
    vary: Annotated[
        str | None,
        typer.Option(
            metavar="KEY=V,V,...", help="Measure one row for each value of a setting or of classes."
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(help="Steps in each repetition (default: as many as take 0.2 seconds)."),
    ] = None,
    reference: Annotated[
        bool, typer.Option(help="Also time a reference implementation: eager, float32.")
    ] = True,
    device: DeviceOption = "auto",
    table: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the result to FILE.")
    ] = None,
) -> None:
    """Measure how fast a training step is, and compare it with the limits of the machine.

    [bold]comatch bench[/]                                   stages, rates, limits, reference
    [bold]comatch bench --recipe stl10 --json stl10.json[/]
    [bold]comatch bench --vary mu=1,3,7,15[/]                cost as the step's work grows
    [bold]comatch bench --data IMAGENET[/]                   reading images from a disk
    [bold]comatch bench --encode IMAGES[/]                   encoding by a frozen network
    [bold]comatch bench --folder IMAGES[/]                   whole commands, with such a network
    """
    with loading_torch():
        from comatch import planning, recipes
        from comatch.commands.bench import Source, random_images, run, run_images, tables
    from comatch.config import replace
    from comatch.data import splits
    from comatch.data.splits import Split
    from comatch.device import choose_device
    from comatch.files import write_json
    from comatch.training.recipe import Recipe
    from comatch.types import Dataset

    where = choose_device(device)
    if encode or folder:
        found = bench_encoder(encode, folder, encoder, init, settings, where)
        out.print(tables.encoding(found))
        if table:
            write_json(table, found)
        return
    default = "imagenet-1pct" if data else "cifar10" if where.type == "cuda" else "digits"
    planned = recipes.get(recipe or default, method)
    given = planning.typed(planned, settings or [])
    planned = replace(planned, **given)
    source: Source = random_images
    if data_dir is not None or "data" in given:
        planned = planning.complete(planned, given)
        if classes is not None or (vary or "").startswith("classes="):
            raise UserError("real images have the classes they have: leave --data-dir out")

        def real_images(recipe: Recipe, _: int) -> tuple[Dataset, Split]:
            home = data_dir or Path("data")
            dataset = planning.load_dataset(recipe.reading, home, progress=False)
            return dataset, splits.make(dataset, recipe.dataset, recipe.split_seed)

        source = real_images

    if table and not table.parent.is_dir():  # before measuring, which takes long
        raise UserError(f"cannot write {table}: there is no folder {table.parent}")
    if data and (vary or classes is not None or data_dir):
        raise UserError("--data measures one folder as it is: leave --vary, --classes, --data-dir")
    if workers is not None and not data:
        raise UserError("--workers is for --data: give a folder, or use --set workers=...")
    with err.status("starting") as status:
        if data:
            record = run_images(planned, data, where, workers, status.update)
        else:
            record = run(
                planned,
                source,
                where,
                classes=10 if classes is None else classes,
                vary=vary,
                steps=steps,
                reference=reference,
                report=status.update,
            )
    out.print(tables.bench(record))
    if table:
        write_json(table, record)


def bench_encoder(
    encode: Path | None,
    folder: Path | None,
    encoder: str | None,
    init: str | None,
    settings: list[str] | None,
    device: "torch.device",
) -> dict[str, Any]:
    """Measure the encoding of a folder, or whole commands with it; return a record for JSON."""
    from comatch import planning
    from comatch.commands.bench import encoding, rounded
    from comatch.nets import encoders
    from comatch.training.build import feature_encoder
    from comatch.training.environment import environment

    name = encoder or (encoders.ON_GPU if device.type == "cuda" else encoders.ON_CPU)
    path = encode or folder
    record: dict[str, Any] = {"environment": environment(device), "encoder": name}
    with err.status("starting") as status:
        if folder:
            words = [str(folder), "--encoder", name, "--device", device.type]
            words += ["--init", init] if init else []
            words += [word for one in settings or [] for word in ("--set", one)]
            record["seconds"] = encoding.measure_folder(words, status.update)
        else:
            request = planning.Request(path, init=init, encoder=name, settings=settings or ())
            recipe = planning.plan(request, device)
            dataset = planning.load_dataset(recipe.reading, Path("data"), progress=False)
            frozen = feature_encoder(recipe, dataset, device)
            assert encode
            record |= encoding.measure(recipe, frozen, encode, device, status.update)
    return {**rounded(record), "data": path.resolve().name if path else ""}
