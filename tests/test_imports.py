"""Imports go only downwards: each module imports lower layers and none above."""

import ast
from pathlib import Path

import pytest

import comatch

PACKAGE = Path(comatch.__file__).parent
LAYERS = [  # from top to bottom; modules in the same layer do not import each other
    {"__main__"},
    {"cli"},
    {"comatch"},  # the package itself, whose names are those of the Python API
    {"estimator"},
    {"api"},
    {"commands.transfer"},
    {"commands.reproduce"},
    {"commands.compare", "commands.label"},
    {"commands.suggest"},
    {
        "commands.bench",
        "commands.contact_sheet",
        "commands.cross_validation",
        "commands.export",
        "commands.hub",
        "commands.report",
        "commands.serve",
    },
    {"commands.evaluation_files", "commands.predictions"},
    {"planning", "classifier"},
    {"recipes"},
    {"training"},
    {"evaluation"},
    {"methods"},
    {"augment", "data", "nets"},
    {"clustering", "device", "figures", "losses", "memory", "projection", "propagation"},
    {"files", "config", "kernels", "distributed"},
    {"tables", "types", "errors", "launch", "allocator", "compiler_cache", "version", "weights"},
]
LAYER_OF = {module: layer for layer, modules in enumerate(LAYERS) for module in modules}


def layered(name):
    """The part of a dotted name that has a layer: commands have one each."""
    parts = name.split(".")[1:]
    return ".".join(parts[: 2 if parts[:1] == ["commands"] else 1]) or "comatch"


def name_of(path):
    return ".".join(["comatch", *path.relative_to(PACKAGE).with_suffix("").parts])


def imported_names(tree, package):
    """The dotted names that a file of `package` imports, in whatever form."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level]
            start = above if node.level else []
            module = ".".join([*start, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
            ("import_module", "__import__")
        ):
            yield from beginning(node.args[0])


def beginning(argument):
    """The name in `import_module("comatch.x")`, and the beginning of `f"comatch.x.{name}"`."""
    if isinstance(argument, ast.JoinedStr):
        argument = argument.values[0]
    if isinstance(argument, ast.Constant):
        yield argument.value


def imported_modules(source, package="comatch.x"):
    """What the source of a file imports, as names of layers."""
    for name in imported_names(ast.parse(source), package):
        if name == "comatch" or name.startswith("comatch."):
            module = layered(name)
            known = module in LAYER_OF or module == "commands"
            yield module if known else "comatch"  # a name of the Python API


def modules():
    return [path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py"]


def test_every_module_has_a_layer():
    empty = {"commands.__init__"}
    assert {layered(name_of(path)) for path in modules()} - empty == set(LAYER_OF) - {"comatch"}


def test_imports_go_downwards():
    wrong = []
    for path in modules():
        module = layered(name_of(path))
        for other in imported_modules(path.read_text(), name_of(path).rpartition(".")[0]):
            if other != module and LAYER_OF.get(other, -1) <= LAYER_OF.get(module, 0):
                wrong.append(f"{path.relative_to(PACKAGE)} imports {other}")
    assert not wrong


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("import comatch", "comatch"),
        ("def f():\n    import comatch\n    comatch.train()", "comatch"),
        ("import comatch as package", "comatch"),
        ("import comatch.api", "api"),
        ("from comatch import api", "api"),
        ("from comatch import train", "comatch"),
        ("from comatch.api import train", "api"),
        ("from comatch import commands", "commands"),
        ("import comatch.commands.compare", "commands.compare"),
        ("from comatch.commands import compare", "commands.compare"),
        ("from comatch.commands.compare.live_table import LiveTable", "commands.compare"),
        ("from . import api", "api"),
        ("from .api import train", "api"),
        ("from .commands.compare import compare", "commands.compare"),
        ("import importlib\nimportlib.import_module('comatch.api')", "api"),
        ("importlib.import_module(f'comatch.recipes.{name}')", "recipes"),
        ("import_module('comatch')", "comatch"),
        ("__import__('comatch.cli')", "cli"),
    ],
)
def test_every_form_of_import_is_found(source, module):
    assert list(imported_modules(source, "comatch")) == [module]


def test_relative_imports_of_a_package():
    source = "from . import figures\nfrom ..compare import compare\nfrom ...api import train"
    found = list(imported_modules(source, "comatch.commands.reproduce"))
    assert found == ["commands.reproduce", "commands.compare", "api"]


def test_other_packages_are_not_ours():
    assert not list(imported_modules("import torch, comatched\nfrom os import path"))


def test_a_method_stays_one_readable_file():
    for path in (PACKAGE / "methods").rglob("[!_]*.py"):
        assert len(path.read_text().splitlines()) < 150, path.name
