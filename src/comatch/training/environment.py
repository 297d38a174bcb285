"""The environment of a run: versions, device, commit and command."""

import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from comatch import distributed
from comatch.version import IMPORTED, __version__

RECORDED = ("torch", "torchvision", "timm", "numpy", "pillow", "scikit-learn")


def environment(device: torch.device) -> dict[str, Any]:
    """Versions, device, git revision and command of this process."""
    versions = {"comatch": __version__}
    for package in RECORDED:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    program = Path(sys.argv[0]).name.replace("__main__.py", "comatch")
    return {
        "command": shlex.join([program, *sys.argv[1:]]),
        "git": git_revision(),
        "python": platform.python_version(),
        "packages": versions,
        "device": name_of(device),
        "cuda": torch.version.cuda if device.type == "cuda" else None,
        "ranks": distributed.world(),
        "threads": torch.get_num_threads(),
        "platform": f"{platform.system()} {platform.machine()}",
    }


def name_of(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return "Apple GPU" if device.type == "mps" else f"CPU, {os.cpu_count()} cores"


def git_revision() -> str | None:
    """The commit of the package's source, marked if it has uncommitted changes.

    Where the source is no git checkout, as in a container, COMATCH_REVISION may name it.
    """
    if "COMATCH_REVISION" in os.environ:
        return os.environ["COMATCH_REVISION"]
    try:
        describe = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return describe.stdout.strip()


_unused_starts = [IMPORTED]


def run_start() -> float:
    """The time from which the seconds to the first step count: the start of the process, once."""
    return _unused_starts.pop() if _unused_starts else time.perf_counter()
