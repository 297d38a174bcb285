"""`comatch cache`: the features of frozen encoders that are kept on disk."""

from typing import Annotated

import typer

from comatch.cli.console import loading_torch, out, say
from comatch.errors import UserError


def cache(
    clear: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Delete the features of this encoder; all: of every one."
        ),
    ] = None,
) -> None:
    """List the cached features of frozen encoders, or delete them.

    They are computed again when they are needed. The environment variable COMATCH_CACHE_LIMIT is
    the size in gigabytes at which the encoder that was unused for longest is deleted (20).
    """
    with loading_torch():
        from comatch.cli import tables
        from comatch.data import feature_store

    root = feature_store.default_root()
    found = feature_store.stored(root)
    if clear is None:
        if found:
            out.print(tables.features(found))
        total = sum(one.bytes for one in found) / 1e9
        say(f"{total:.2f} of {feature_store.limit() / 1e9:g} GB used in {root}")
        return
    names = [one.name for one in found if clear in (one.name, "all")]
    if clear != "all" and not names:
        raise UserError(f"the cache has no features of {clear!r}: see comatch cache")
    freed = feature_store.delete(root, names)
    say(f"deleted the features of {len(names)} encoders, {freed / 1e6:,.0f} MB")
