"""A run is a folder with its settings, split, metrics, checkpoint, weights and summary.

Of several ranks, only the first writes into it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from comatch import distributed, files, methods, weights
from comatch.config import flatten, known_settings, to_json
from comatch.data import splits
from comatch.data.config import DataConfig, Reading, StreamConfig
from comatch.data.splits import Split
from comatch.errors import UserError
from comatch.files import read_json
from comatch.training.environment import environment
from comatch.training.recipe import Recipe, from_json
from comatch.types import Dataset

DESCRIBED = {"net", "stem", "image_size", "embedding_dim", "classes", "mean", "std"}
PRETRAINING = "pretraining"  # in a run folder: the run without labels that it started from


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, and its summary with the keys of summary.json."""

    path: Path
    summary: dict[str, Any]

    @property
    def accuracy(self) -> float | None:
        """Share of the test images that are classified correctly; None without a test part."""
        return self.summary.get("top1")


class RunFolder:
    """The files of a run folder, and reading and writing of the small ones."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"
        self.split = path / "split.json"
        self.environment = path / "environment.json"
        self.checkpoint = path / "last.pt"
        self.weights = path / "model.safetensors"
        self.model = path / "model.json"
        self.known_images = path / "known_images.safetensors"
        self.summary = path / "summary.json"

    def exists(self) -> bool:
        return self.config.exists()

    def finished(self) -> bool:
        return self.summary.exists()

    def check_free(self) -> None:
        """Raise an error if the folder is not empty: nothing is ever overwritten."""
        try:
            there = [p.name for p in self.path.iterdir()] if self.path.exists() else []
        except OSError as error:
            raise UserError(f"cannot use {self.path} as a run folder: {error.strerror}") from None
        # A killed write leaves a .part file.
        own = (files.LOCK, PRETRAINING)
        if any(not name.endswith(".part") and name not in own for name in there):
            hint = "add --resume to continue it, or " if self.exists() else ""
            raise UserError(f"{self.path} is not empty: {hint}choose another --out")

    def create(self, recipe: Recipe, data_dir: Path, split: dict[str, Any]) -> None:
        self.begin({"recipe": to_json(recipe), "data_dir": str(data_dir)})
        files.write_checked(self.split, split)

    def begin(self, config: dict[str, Any]) -> None:
        """Make the folder and write config.json."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the run folder {self.path}: {error.strerror}") from None
        files.write_checked(self.config, config)

    def recipe(self) -> Recipe:
        """The recipe of the run, which must have the settings of this version."""
        saved = self.settings()
        try:
            with files.expecting(self.config, besides=(KeyError,)):
                return from_json(saved, methods.config)
        except KeyError as error:
            unlike = ", ".join(map(str, error.args))
            raise UserError(
                f"{self.path} was made by version {self.version()}, which this version cannot "
                f"continue (settings that differ: {unlike}): choose another --out"
            ) from None

    def settings(self) -> dict[str, Any]:
        """The recorded settings, of a run of any version: flat, except those of the method."""
        try:
            recipe: dict[str, Any] = flatten(read_json(self.config)["recipe"])
            _ = recipe["seed"], recipe["method"]["name"]
        except (KeyError, TypeError, AttributeError):
            raise UserError(f"{self.config} is not the configuration of a run") from None
        return recipe

    def reading(self) -> Reading:
        """How the images were read, of a run of any version."""
        settings = self.settings()
        return Reading(
            known_settings(DataConfig, settings),
            known_settings(StreamConfig, settings),
            "components" in settings and settings["frozen"],
        )

    def version(self) -> str:
        """The version of comatch that started the run."""
        if not self.environment.exists():
            return "unknown"
        with files.expecting(self.environment):
            return str(files.read_sessions(self.environment)[0]["packages"]["comatch"])

    def load_split(self, dataset: Dataset, recipe: Recipe) -> Split | None:
        """The split that the run recorded, or None if there is none yet."""
        if not self.split.exists():
            return None
        with files.expecting(self.split):
            return splits.restore(dataset, recipe.dataset, read_json(self.split))

    def split_for(self, recipe: Recipe, dataset: Dataset) -> Split:
        """The split that the run recorded, or the one that a new run makes."""
        recorded = self.load_split(dataset, recipe)
        if recorded:
            return recorded
        split = splits.make(dataset, recipe.dataset, recipe.split_seed)
        return split if recipe.uses_labels else splits.without_labels(split)

    def data_dir(self) -> Path:
        with files.expecting(self.config):
            return Path(read_json(self.config)["data_dir"])

    def write_environment(self, device: torch.device) -> None:
        """Append this session. A resumed run has several, perhaps of different machines."""
        if distributed.rank() > 0:
            return
        known = self.environment.exists()
        sessions = files.read_sessions(self.environment) if known else []
        files.write_json(self.environment, {"sessions": [*sessions, environment(device)]})

    def note(self, key: str, value: float | dict[str, Any]) -> None:
        """Add a value to the record of this session."""
        if distributed.rank() > 0:
            return
        sessions = files.read_sessions(self.environment)
        sessions[-1][key] = value
        files.write_json(self.environment, {"sessions": sessions})

    def write_model(self, net: torch.nn.Module, description: dict[str, Any]) -> None:
        if distributed.rank() > 0:
            return
        write_tensors(self.weights, net.state_dict())
        files.write_checked(self.model, description)

    def description(self) -> dict[str, Any]:
        """model.json: classes, sizes and preprocessing of the network."""
        # In the layout of the Hugging Face hub, it is config.json.
        described = read_json(self.model if self.model.exists() else self.config)
        if not isinstance(described, dict) or not described.keys() >= DESCRIBED:
            raise UserError(f"{self.model} does not describe a network: damaged run folder")
        return described

    def describe(self, key: str, value: float) -> None:
        """Add a value to model.json."""
        files.write_checked(self.model, self.description() | {key: value})

    def read_weights(self) -> dict[str, torch.Tensor]:
        if self.finished() and not self.weights.exists():
            method = self.settings()["method"]["name"]
            raise UserError(
                f"{self.path} is a run of {method}, which saves no network: only its accuracy is "
                "recorded. Train another --method"
            )
        if not self.weights.exists():
            raise UserError(f"{self.path} holds no trained network yet: finish it with --resume")
        return read_tensors(self.weights)

    def write_known_images(self, known: dict[str, torch.Tensor]) -> None:
        if distributed.rank() == 0:
            write_tensors(self.known_images, known)

    def read_known_images(self) -> dict[str, torch.Tensor] | None:
        """What `write_known_images` wrote; None for a run without it."""
        return read_tensors(self.known_images) if self.known_images.exists() else None


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    content = weights.to_safetensors(tensors)
    files.write_file(path, lambda file: file.write(content))


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        return weights.read_safetensors(path)
    except Exception as error:  # a damaged file can cause any error
        raise UserError(f"{path} is damaged: {error}") from None


class NothingToResumeError(UserError):
    """There is no run to continue."""

    def __init__(self, folder: RunFolder) -> None:
        super().__init__(
            f"there is no run to continue in {folder.path}{files.nearest_run(folder.path)}: "
            "leave --resume out to start one"
        )


def folder_of(run: str | Path | Run) -> RunFolder:
    return RunFolder(run.path if isinstance(run, Run) else Path(run))
