"""`comatch export`: a run's classifier as one file that runs without comatch."""

from pathlib import Path
from typing import Annotated

import typer

from comatch.cli.console import loading_torch, say
from comatch.cli.options import RunArgument


def export(
    run: RunArgument,
    file: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="FILE.pt2 or .onnx (default: RUN/model.pt2)."),
    ] = None,
) -> None:
    """Write a run's classifier as one file that runs without comatch.

    A [bold].pt2[/] file needs torch alone; an [bold].onnx[/] file runs in onnxruntime, in
    any language. Images go in as they are decoded, class probabilities come out.
    """
    with loading_torch():
        from comatch.commands import export as portable

    done = portable.export(run, file)
    side, checked = done.image_size, "not compared with the run's classifier: no onnxruntime here"
    if done.difference is not None:
        checked = f"differs from the run's classifier by at most {done.difference:.1g}"
    say(
        f"{done.path}: {done.path.stat().st_size / 1e6:.1f} MB, uint8 [N, 3, {side}, {side}] -> "
        f"probabilities of {len(done.classes)} classes; {checked}"
    )
