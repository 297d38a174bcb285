"""Print the lowest version of each dependency in pyproject.toml, as constraints for pip.

Tools for development are not among them.
"""

import re
import tomllib
from pathlib import Path

TOOLS = {"dev", "docs"}


def lowest_versions() -> list[str]:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    needed = list(project["dependencies"])
    for extra, packages in project["optional-dependencies"].items():
        if extra not in TOOLS:
            needed += packages
    found = (re.match(r"([\w-]+)(?:\[.*\])?>=([\w.]+)", package) for package in needed)
    return [f"{match[1]}=={match[2]}" for match in found if match]


if __name__ == "__main__":
    print("\n".join(lowest_versions()))
