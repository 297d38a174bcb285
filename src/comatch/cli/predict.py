"""`comatch predict`: classify images."""

import codecs
import csv
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track

from comatch.cli.console import err, loading_torch, say
from comatch.cli.options import DeviceOption, RunArgument
from comatch.data.names import check_images
from comatch.errors import UserError


def predict(
    run: RunArgument,
    images: Annotated[list[Path], typer.Argument(help="Images, or folders of images.")],
    table: Annotated[
        Path, typer.Option("--out", help="CSV to write: path, label, probability, classes.")
    ] = Path("predictions.csv"),
    sheet: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draw the most and least confident images of each class: FILE.png or .jpg.",
        ),
    ] = None,
    device: DeviceOption = "auto",
) -> None:
    """Classify images with a run's classifier and write the results to a CSV file."""
    check_images(images)
    with loading_torch():
        from comatch.classifier import load_classifier, predict_files
        from comatch.data.image_folder import find_images
        from comatch.device import choose_device
        from comatch.training.run_folder import folder_of
    from comatch.files import atomic_writer

    classifier = load_classifier(folder_of(run), choose_device(device))
    paths = find_images(images)
    unread: list[str] = []
    found: list[tuple[Path, str, float]] = []
    try:
        with atomic_writer(table) as file:
            writer = csv.writer(codecs.getwriter("utf-8")(file))
            writer.writerow(["path", "label", "probability", *classifier.classes])
            rows = predict_files(classifier, paths)
            for path, p, why in track(rows, "classifying", len(paths), console=err, transient=True):
                if p is None:
                    unread.append(f"{path}: {why}")
                    continue
                best = int(p.argmax())
                shares = [f"{share:.6f}" for share in p.tolist()]
                writer.writerow([path, classifier.classes[best], shares[best], *shares])
                if sheet is not None:
                    found.append((path, classifier.classes[best], float(p[best])))
    except OSError as error:
        raise UserError(f"cannot write {table}: {error.strerror}") from None
    for line in unread:
        err.print(f"skipped {line}", soft_wrap=True, highlight=False, markup=False)
    if len(unread) == len(paths):
        raise UserError("none of the images could be read")
    skipped = f", {len(unread)} skipped" if unread else ""
    say(f"{len(paths) - len(unread)} images classified{skipped}: {table}")
    if sheet is not None:
        from comatch.commands.contact_sheet import Found, draw, save  # loads matplotlib

        say(f"sheet of predictions: {save(draw([Found(*one) for one in found]), sheet)}")
