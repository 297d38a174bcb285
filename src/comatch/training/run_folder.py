"""A run is a folder: what decided it, what it saw, what it learned.

Of several ranks, only the first writes into it.
"""

import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from comatch import distributed, files, methods
from comatch.config import Recipe, from_json, to_json
from comatch.errors import UserError
from comatch.files import read_json

DESCRIBED = {"net", "stem", "image_size", "embedding_dim", "classes", "mean", "std"}
RECORDED = ("torch", "torchvision", "timm", "numpy", "pillow", "scikit-learn")


class RunFolder:
    """Names the files of a run folder, and reads and writes the small ones."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"
        self.split = path / "split.json"
        self.environment = path / "environment.json"
        self.checkpoint = path / "last.pt"
        self.weights = path / "model.safetensors"
        self.model = path / "model.json"
        self.summary = path / "summary.json"
        self.features = path / "features"  # of a frozen encoder, until the run is finished

    def exists(self) -> bool:
        return self.config.exists()

    def finished(self) -> bool:
        return self.summary.exists()

    def check_free(self) -> None:
        """A new run needs a place of its own: what lies there already is never touched."""
        try:
            there = [p.name for p in self.path.iterdir()] if self.path.exists() else []
        except OSError as error:
            raise UserError(f"cannot use {self.path} as a run folder: {error.strerror}") from None
        if any(not name.endswith(".part") for name in there):  # a killed write leaves such a file
            hint = "add --resume to go on with it, or " if self.exists() else ""
            raise UserError(f"{self.path} is not empty: {hint}choose another --out")

    def create(self, recipe: Recipe, data_dir: Path, split: dict[str, Any]) -> None:
        self.begin({"recipe": to_json(recipe), "data_dir": str(data_dir)})
        files.write_json(self.split, split)

    def begin(self, config: dict[str, Any]) -> None:
        """Makes the folder, with all that decides the run in it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the run folder {self.path}: {error.strerror}") from None
        files.write_json(self.config, config)

    def recipe(self) -> Recipe:
        with self._of_a_run():
            return from_json(self.written(), methods.CONFIGS)

    def written(self) -> dict[str, Any]:
        """The recipe as it was written down, perhaps by an older version."""
        with self._of_a_run():
            recipe: dict[str, Any] = read_json(self.config)["recipe"]
            _ = recipe["seed"], recipe["method"]["name"]
            return recipe

    @contextmanager
    def _of_a_run(self) -> Iterator[None]:
        try:
            yield
        except (KeyError, TypeError):
            raise UserError(f"{self.config} is not the configuration of a run") from None

    def data_dir(self) -> Path:
        return Path(read_json(self.config)["data_dir"])

    def write_environment(self, device: torch.device) -> None:
        """Appends this session: a run that was continued elsewhere shows it."""
        if distributed.rank() > 0:
            return
        sessions = read_json(self.environment)["sessions"] if self.environment.exists() else []
        files.write_json(self.environment, {"sessions": [*sessions, environment(device)]})

    def note(self, key: str, value: float | dict[str, Any]) -> None:
        """Adds something to this session."""
        if distributed.rank() > 0:
            return
        sessions = read_json(self.environment)["sessions"]
        sessions[-1][key] = value
        files.write_json(self.environment, {"sessions": sessions})

    def write_model(self, net: torch.nn.Module, description: dict[str, Any]) -> None:
        if distributed.rank() > 0:
            return
        state = {name: value.contiguous().cpu() for name, value in net.state_dict().items()}
        files.write_file(self.weights, lambda file: file.write(save(state)))
        files.write_json(self.model, description)

    def description(self) -> dict[str, Any]:
        """What `write_model` was told of the network: its classes, sizes and preprocessing."""
        described = read_json(self.model)
        if not isinstance(described, dict) or not described.keys() >= DESCRIBED:
            raise UserError(f"{self.model} does not describe a network: damaged run folder")
        return described

    def describe(self, key: str, value: float) -> None:
        """Adds something that became known of the network since."""
        files.write_json(self.model, self.description() | {key: value})

    def read_weights(self) -> dict[str, torch.Tensor]:
        if not self.weights.exists():
            raise UserError(f"{self.path} holds no trained network yet: finish it with --resume")
        try:
            return load_file(self.weights)
        except (OSError, SafetensorError) as error:
            raise UserError(f"{self.weights} is damaged: {error}") from None


def environment(device: torch.device) -> dict[str, Any]:
    """Where a run happens: versions, device, revision, command."""
    versions = {"comatch": sys.modules["comatch"].__version__}
    for package in RECORDED:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    gpu = device.type == "cuda"
    program = Path(sys.argv[0]).name.replace("__main__.py", "comatch")
    return {
        "command": shlex.join([program, *sys.argv[1:]]),
        "git": git_revision(),
        "python": platform.python_version(),
        "packages": versions,
        "device": torch.cuda.get_device_name(device) if gpu else f"CPU, {os.cpu_count()} cores",
        "cuda": torch.version.cuda if gpu else None,
        "ranks": distributed.world(),
        "threads": torch.get_num_threads(),
        "platform": f"{platform.system()} {platform.machine()}",
    }


def git_revision() -> str | None:
    """The commit that the package's source is at, marked if it was changed since.

    Where the source is no checkout (a container, say), COMATCH_REVISION may name it.
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
