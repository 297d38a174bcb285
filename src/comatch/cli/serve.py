"""`comatch serve`: a run's classifier behind an HTTP address."""

from typing import Annotated

import typer

from comatch.cli.console import loading_torch, say
from comatch.cli.options import DeviceOption, RunArgument
from comatch.commands.serve import Address, Limits, check


def serve(
    run: RunArgument,
    host: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Listen on this address; other than local ones need --token."
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="Listen on this port; 0: a free one.")
    ] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            envvar="COMATCH_TOKEN",
            help="Answer only clients that send this secret (better as COMATCH_TOKEN than here, "
            "where other users of the machine see it).",
        ),
    ] = None,
    megabytes: Annotated[
        float, typer.Option("--max-mb", metavar="N", help="Refuse larger requests.")
    ] = Limits().megabytes,
    megapixels: Annotated[
        float,
        typer.Option("--max-megapixels", metavar="N", help="Refuse images with more pixels."),
    ] = Limits().megapixels,
    seconds: Annotated[
        float,
        typer.Option("--timeout", metavar="N", help="Close requests that take more seconds."),
    ] = Limits().seconds,
    device: DeviceOption = "auto",
) -> None:
    """Answer HTTP requests with predictions, and serve a page to drop images on.

    [bold]comatch serve runs/mine[/]
    [bold]curl --data-binary @image.jpg http://127.0.0.1:8000/predict[/]
    [bold]curl -F image=@1.jpg -F image=@2.jpg http://127.0.0.1:8000/predict/batch[/]

    /health says whether the server runs, and /metrics has numbers for Prometheus.
    """
    address = Address(host, port, token or None)
    limits = Limits(megabytes, megapixels, seconds)
    check(address, limits)
    with loading_torch():
        from comatch.commands.serve.server import build_server

    server = build_server(run, address, limits, device)
    name = f"[{host}]" if ":" in host else host
    say(f"serving {run} on http://{name}:{server.port}/ (stop with Ctrl-C)")
    server.start()
