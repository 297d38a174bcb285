"""`comatch predict`: classify images."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from comatch.cli.console import err, loading_torch, out, print_labelled, print_notes
from comatch.cli.options import DeviceOption, RunArgument
from comatch.commands import predictions
from comatch.commands.predictions import Prediction
from comatch.data.names import check_images
from comatch.errors import UserError, printable

TRAIN_AGAIN = "train again with this version"
NO_LABEL = "(no label)"  # in the table and the sheet: of rejected images


def predict(
    run: RunArgument,
    images: Annotated[list[Path], typer.Argument(help="Images, or folders of images.")],
    table: Annotated[
        str,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Write path, label, probability, fit and the probability of each class to "
            "FILE.csv, .json or .parquet; - is standard output.",
        ),
    ] = "predictions.csv",
    sheet: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draw the most and least confident images of each class: FILE.png or .jpg.",
        ),
    ] = None,
    reject: Annotated[
        float | None,
        typer.Option(
            metavar="RATE",
            min=0.0,
            max=1.0,
            help="Give no label to out-of-distribution images: those whose fit is below RATE. "
            "About this share of images of the classes is rejected too. Default: reject none.",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files that exist.")
    ] = False,
    device: DeviceOption = "auto",
) -> None:
    """Classify images with a run's classifier and write the results to a file.

    `fit` says how well an image fits the classes, from 0 to 1: the share of images of
    the classes that are at least as far from the labelled images. It is low for
    out-of-distribution images, whatever their probabilities.

    [bold]comatch predict runs/mine images/unlabeled[/]
    [bold]comatch predict runs/mine new --reject 0.05[/]
    [bold]comatch predict runs/mine new --out new.json --sheet new.png[/]
    [bold]comatch predict runs/mine new --out - | head[/]
    """
    check_images(images)
    predictions.check(table, overwrite)
    if sheet is not None:
        predictions.check_free(sheet, overwrite, "--sheet")
    with loading_torch():
        from comatch.classifier import load_classifier, predict_files
        from comatch.data.image_folder import find_images
        from comatch.device import choose_device
        from comatch.training.run_folder import folder_of
    from comatch.cli import tables

    classifier = load_classifier(folder_of(run), choose_device(device))
    if classifier.known_images is None:
        if reject is not None:
            raise UserError(f"{run} has no out-of-distribution statistics: {TRAIN_AGAIN}")
        print_notes([f"{run} has no out-of-distribution statistics: fit is empty; {TRAIN_AGAIN}"])
    elif reject is not None and reject <= (least := classifier.known_images.least):
        why = f"the run had {1 / least - 1:.0f} images to calibrate it"
        print_notes([f"no fit is below {least:.3g}, so --reject {reject:g} rejects none: {why}"])
    paths = find_images(images)
    unread: list[str] = []
    found: list[tuple[Path, str, float]] = []
    rejected = 0
    with predictions.writer(table, classifier.classes) as writer:
        rows = predict_files(classifier, paths)
        for path, p, why, fit in track(
            rows, "classifying", len(paths), console=err, transient=True
        ):
            if p is None:
                unread.append(f"{path}: {why}")
                continue
            best = int(p.argmax())
            unknown = reject is not None and fit is not None and fit < reject
            label = "" if unknown else classifier.classes[best]
            one = Prediction(path, label, float(p[best]), fit, p.tolist())
            writer.write(one)
            rejected += unknown
            found.append((path, label or NO_LABEL, one.probability))
        for line in unread:
            print_labelled("skipped", line)
        if not found:
            raise UserError("none of the images could be read")
    to_stdout = table == predictions.STANDARD_OUTPUT
    screen: Console = err if to_stdout else out  # standard output has the table
    screen.print(tables.predicted_classes(found))
    skipped = f", {len(unread)} skipped" if unread else ""
    if reject is not None:
        skipped = f", {rejected:,} of them rejected (fit below {reject:g}){skipped}"
    where = "" if to_stdout else f": {table}"
    lines = [f"{len(found):,} images classified{skipped}{where}"]
    if sheet is not None:
        from comatch.commands.contact_sheet import Found, draw, save  # loads matplotlib

        lines.append(f"sheet of predictions: {save(draw([Found(*one) for one in found]), sheet)}")
    for line in lines:
        screen.print(printable(line), markup=False, soft_wrap=True)
