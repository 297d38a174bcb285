"""`comatch encoders`: the pre-trained networks that --encoder takes."""

from typing import Annotated

import typer

from comatch.cli.console import err, loading_torch, out


def encoders(
    measure: Annotated[
        bool,
        typer.Option(
            "--measure", help="Measure how many views a second each encodes on this machine."
        ),
    ] = False,
) -> None:
    """List pre-trained encoders: size, licence, and whether they are on this machine.

    Any other model of timm works too: [bold]comatch train IMAGES --encoder NAME[/]
    """
    from comatch.cli import tables
    from comatch.nets import encoders

    if measure:
        with loading_torch():
            from comatch.commands.bench.encoding import measure_rate
            from comatch.device import choose_device
        with err.status("measuring") as status:
            for one in encoders.ENCODERS.values():
                status.update(f"measuring {one.name}")
                encoders.store_rate(one.name, measure_rate(one, choose_device("auto")))
    out.print(tables.encoders(encoders.ENCODERS.values(), encoders.rates()))
