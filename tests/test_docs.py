"""docs/paper.md names files and functions that exist, and values that the recipes have."""

import ast
import re
from pathlib import Path

import pytest

import comatch
from comatch import recipes
from comatch.config import settings_of

PACKAGE = Path(comatch.__file__).parent
DOCS = Path(__file__).parents[1] / "docs"
ROWS = [
    [cell.strip() for cell in line.strip("| \n").split(" | ")]
    for line in (DOCS / "paper.md").read_text().splitlines()
    if line.startswith("| ") and "---" not in line
]


def defined_names(path):
    """Functions, classes, methods and attributes of a file, methods as Class.method."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        for inner in ast.walk(node) if isinstance(node, ast.ClassDef) else ():
            if isinstance(inner, ast.FunctionDef):
                yield f"{node.name}.{inner.name}"
            elif isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
                yield f"{node.name}.{inner.attr}"


def test_files_and_names_exist():
    known = {name for path in PACKAGE.rglob("*.py") for name in defined_names(path)}
    settings = set(settings_of(recipes.get("cifar10", "comatch")))
    checked = 0
    for row in ROWS:
        for code in re.findall(r"`([^`]+)`", row[-1]):
            if code.endswith(".py"):
                assert (PACKAGE / code).exists(), code
            elif "=" not in code and code not in settings:
                assert code in known, code
            checked += 1
    assert checked > 40


@pytest.mark.parametrize(("name", "column"), [("cifar10", 2), ("stl10", 3)])
def test_hyper_parameters_are_those_of_the_recipe(name, column):
    recipe = recipes.get(name, "comatch")
    values = {k: getattr(p, k) for p in (recipe, recipe.method) for k in settings_of(p)}
    table = [row for row in ROWS if len(row) == 4 and row[1].startswith("`")]
    assert len(table) == 15
    for row in table:
        assert row[column] == str(values[row[1].strip("`")]), row
