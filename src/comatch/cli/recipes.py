"""`comatch recipes`: the names that --recipe takes."""

from typing import Annotated

import typer

from comatch.cli.console import loading_torch, out, print_docstring
from comatch.cli.options import any_method, any_recipe


def recipes(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            parser=any_recipe,
            help="Show the settings of this recipe (default: list all).",
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            parser=any_method,
            help="Show the settings for this method (default: the recipe's).",
        ),
    ] = None,
) -> None:
    """List the recipes, or show the settings of one."""
    from comatch import recipes
    from comatch.cli import tables

    if name is None:
        out.print(tables.catalogue(recipes.descriptions()))
        return
    with loading_torch():
        recipe = recipes.get(name, method)
    print_docstring(recipes.descriptions()[name])
    out.print(tables.settings(recipe))
