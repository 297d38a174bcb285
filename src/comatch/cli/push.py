"""`comatch push`: a run's classifier on the Hugging Face hub."""

from typing import Annotated

import typer

from comatch.cli.console import loading_torch, say
from comatch.cli.options import RunArgument
from comatch.errors import UserError


def repository(text: str) -> str:
    owner, _, name = text.partition("/")
    if not owner or not name or "/" in name:
        raise UserError(f"{text!r} is no repository: write it as OWNER/NAME")
    return text


def push(
    run: RunArgument,
    repo: Annotated[
        str,
        typer.Argument(metavar="OWNER/NAME", parser=repository, help="The repository on the hub."),
    ],
    private: Annotated[
        bool, typer.Option("--private", help="Make a new repository private.")
    ] = False,
) -> None:
    """Upload a run's classifier to the Hugging Face hub.

    Log in before with [bold]hf auth login[/], or set HF_TOKEN. Anybody who may read the repository
    loads it with [bold]comatch.load("hf://OWNER/NAME")[/].
    """
    with loading_torch():
        from comatch.commands import hub

    say(f"{hub.push(run, repo, private=private)}: load it with comatch.load('hf://{repo}')")
