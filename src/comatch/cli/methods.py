"""`comatch methods`: the names that --method takes, of training and of pre-training."""

import ast
import sys
from pathlib import Path
from typing import Annotated

import typer

import comatch
from comatch.cli.console import loading_torch, out, print_docstring


def methods(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Show the settings of this method (default: list all)."
        ),
    ] = None,
) -> None:
    """List the methods, or show the settings of one."""
    from comatch.cli import tables

    if name is None:
        out.print(tables.catalogue(descriptions()))
        out.print("\n[bold]comatch pretrain[/], without labels:")
        out.print(tables.catalogue(descriptions(pretraining=True)))
        return
    with loading_torch():
        from comatch import methods
    config = methods.config(name)
    print_docstring(sys.modules[methods.find(name).__module__].__doc__ or "")
    out.print(tables.settings(config))


def descriptions(pretraining: bool = False) -> dict[str, str]:
    """The docstring of every method, without importing any: each has a file of its name."""
    folder = Path(comatch.__file__).with_name("methods")
    return {
        file.stem: ast.get_docstring(node) or ""
        for file in sorted((folder / "pretraining" if pretraining else folder).glob("*.py"))
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef) and has_config(node)
    }


def has_config(node: ast.ClassDef) -> bool:
    """Whether a class has settings of its own: each method has."""
    return any(isinstance(part, ast.ClassDef) and part.name == "Config" for part in node.body)
