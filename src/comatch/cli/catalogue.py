"""`comatch methods` and `comatch recipes`: what there is to choose from."""

import sys
from typing import Annotated

import typer

from comatch.cli.console import out


def methods(
    name: Annotated[str | None, typer.Argument(help="Show this one with its settings.")] = None,
) -> None:
    """List the methods, or show one."""
    from comatch import methods
    from comatch.commands.report import tables

    if name is None:
        out.print(tables.catalogue({n: m.__doc__ for n, m in methods.METHODS.items()}))
    else:
        config = methods.config(name)
        out.print(sys.modules[methods.METHODS[name].__module__].__doc__, highlight=False)
        out.print(tables.settings(config))


def recipes(
    name: Annotated[str | None, typer.Argument(help="Show this one with its settings.")] = None,
    method: Annotated[
        str | None, typer.Option(help="Whose settings to show (default: the recipe's).")
    ] = None,
) -> None:
    """List the recipes, or show one with everything that --set takes."""
    from comatch import recipes
    from comatch.commands.report import tables

    if name is None:
        out.print(tables.catalogue({n: r.__doc__ for n, r in recipes.RECIPES.items()}))
    else:
        recipe = recipes.get(name, method)
        out.print(recipes.RECIPES[name].__doc__, highlight=False)
        out.print(tables.settings(recipe))
