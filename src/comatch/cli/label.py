"""`comatch label`: label images on a local page."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from comatch.cli.console import print_notes, say
from comatch.cli.options import DeviceOption
from comatch.cli.suggest import EncoderOption, InitOption

if TYPE_CHECKING:
    from comatch.commands.label.server import Session


def label(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of images.")],
    labels_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Read and write the labels here (default: labels.csv in the folder).",
        ),
    ] = None,
    from_folders: Annotated[
        bool,
        typer.Option("--from-folders", help="Take the names of sub-folders for labels, at first."),
    ] = False,
    port: Annotated[
        int,
        typer.Option(metavar="N", min=0, max=65535, help="Use this port (default: a free one)."),
    ] = 0,
    browser: Annotated[
        bool, typer.Option(help="Open the page in the browser (default: yes).")
    ] = True,
    encoder: EncoderOption = None,
    init: InitOption = None,
    device: DeviceOption = "auto",
) -> None:
    """Label images on a page in your browser.

    [bold]comatch label IMAGES[/]

    The page shows the images in the order of [bold]comatch suggest[/]. Every label is written to
    labels.csv at once. The page is served on this computer only; Ctrl-C ends it.
    """
    from comatch.commands.label.serve import serve

    def ready(address: str, session: "Session") -> None:
        say(f"{len(session.pictures.names):,} images. Labels: {session.store.path}")
        if not session.store.marks and any("/" in name for name in session.pictures.names):
            print_notes(["sub-folders are not taken for classes: --from-folders does that"])
        say(f"Open this page: {address}")
        say("Ctrl-C ends it; labels are saved at once.")

    session = serve(
        folder,
        labels_file,
        from_folders=from_folders,
        port=port,
        encoder=encoder,
        init=init,
        device=device,
        browser=browser,
        ready=ready,
    )
    labels = session.store.labels()
    say(f"{len(labels):,} images have a label, {len(set(labels.values()))} classes")
    if len(set(labels.values())) > 1:
        default = session.store.path == (folder / "labels.csv").resolve()
        file = "" if default else f" --labels-file {session.store.path}"
        say(f"train a classifier: comatch train {folder}{file}")
