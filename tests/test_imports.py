"""Imports go only downwards: each room knows the rooms below it and none above."""

import ast
from pathlib import Path

import comatch

FLOORS = [  # from the roof to the cellar; rooms on one floor do not know each other
    {"__main__"},
    {"cli"},
    {"reproduction", "transfer", "folds", "portable"},
    {"comparison"},
    {"api"},
    {"bench"},
    {"recipes", "report"},
    {"training"},
    {"evaluation"},
    {"methods"},
    {"nets", "augment", "data"},
    {"memory", "losses", "propagation"},
    {"kernels"},
    {"config", "types"},
    {"distributed"},
    {"errors", "cache", "launch", "allocator"},
]
PACKAGE = Path(comatch.__file__).parent
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


def room_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "comatch":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("comatch."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (a.name.split(".")[1] for a in node.names if a.name.startswith("comatch."))


def modules():
    return [path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py"]


def test_every_room_has_a_floor():
    assert {room_of(path) for path in modules()} <= set(FLOOR_OF)


def test_imports_go_downwards():
    wrong = []
    for path in modules():
        room = room_of(path)
        for other in imported_rooms(path):
            if other != room and FLOOR_OF[other] <= FLOOR_OF[room]:
                wrong.append(f"{path.relative_to(PACKAGE)} imports comatch.{other}")
    assert not wrong


def test_the_test_would_notice(tmp_path):
    file = tmp_path / "x.py"
    file.write_text("from comatch.api import train\nfrom comatch import cli\n")
    assert sorted(imported_rooms(file)) == ["api", "cli"]


def test_a_method_stays_one_readable_file():
    for path in (PACKAGE / "methods").glob("*.py"):
        assert len(path.read_text().splitlines()) < 150, path.name
