"""docs/explanation/paper.md names files and functions that exist, and the recipes' values."""

import ast
import re

import pytest
from doc_tables import ROOT

from comatch import recipes
from comatch.config import settings_of, values_of

PACKAGE = ROOT / "src" / "comatch"
PAGE = ROOT / "docs" / "explanation" / "paper.md"
ROWS = [
    [cell.strip() for cell in line.strip("| \n").split(" | ")]
    for line in PAGE.read_text().splitlines()
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
    """A name is defined in the file that is named before it, or it is a setting."""
    settings = set(settings_of(recipes.get("cifar10", "comatch")))
    checked = 0
    for row in ROWS:
        known = set()
        for code in re.findall(r"`([^`]+)`", row[-1]):
            if code.endswith(".py"):
                assert (PACKAGE / code).exists(), code
                known = set(defined_names(PACKAGE / code))
            elif code not in settings:
                assert code in known, row
            checked += 1
    assert checked > 100


@pytest.mark.parametrize(
    ("name", "column"),
    [("cifar10", 2), ("stl10", 3), ("imagenet-1pct", 4), ("imagenet-10pct", 5)],
)
def test_hyper_parameters_are_those_of_the_recipe(name, column):
    values = values_of(recipes.get(name))
    table = [row for row in ROWS if len(row) == 6 and row[1].startswith("`")]
    assert len(table) == 15
    for row in table:
        assert row[column] == str(values[row[1].strip("`")]), row
