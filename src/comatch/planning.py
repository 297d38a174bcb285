"""From a request to a checked recipe, its data and its run folder."""

import dataclasses
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from comatch import methods, recipes
from comatch.config import labels_text, parse, replace, values_of
from comatch.data import in_memory, sources, summary
from comatch.data.config import Reading
from comatch.data.in_memory import Given
from comatch.data.splits import Split
from comatch.data.summary import Summary
from comatch.device import choose_device, choose_precision
from comatch.errors import UserError, shortened
from comatch.nets import encoders
from comatch.nets.pretrained import is_timm
from comatch.training.init_weights import channel_statistics, check_exists
from comatch.training.recipe import Recipe
from comatch.training.run_folder import PRETRAINING, RunFolder
from comatch.types import Dataset

LISTED = 5  # images that a warning names
FEW_STEPS = 0.5  # share of the recipe's steps
OF_THE_NETWORK = {"net", "init", "frozen", "image_size", "data"}  # settings that decide about it

Settings = Mapping[str, Any] | Sequence[str]  # {"alpha": 1.0}, or ["alpha=1.0"]


@dataclasses.dataclass(frozen=True)
class Request:
    """What to train. The recipe decides whatever is left out."""

    # digits, cifar10, stl10, the path of a folder of images, or images given in Python: a pair
    # (images, labels), a table, a data set, or a dictionary with a `train` and a `test` of these
    data: Any = None
    method: str | None = None  # see `comatch methods`, or the path of a file with a method
    recipe: str | None = None  # see `comatch recipes`; default: the one for the data
    labels: int | float | None = None  # to keep, the same number a class; below 1: a share
    labels_file: str | Path | None = None  # CSV of path,label, or a list of file names
    init: str | Path | None = None  # a run folder, a file of weights, "timm" or "timm:NAME.TAG"
    encoder: str | None = None  # a frozen pre-trained network: see `comatch encoders`, or "none"
    time: float | None = None  # seconds of encoding by a frozen encoder, before training begins
    steps: int | None = None
    seed: int | None = None
    data_dir: str | Path | None = None  # where data sets are kept; default: data
    device: str = "auto"  # auto, cpu, cuda or mps (an Apple GPU)
    settings: Settings = ()  # any setting of recipe or method: {"alpha": 1.0}, or ["alpha=1.0"]
    strict: bool = False  # images with two labels are an error
    progress: bool = True  # show progress on stderr

    def __post_init__(self) -> None:
        if self.data is not None and not isinstance(self.data, str | Path | Given):
            object.__setattr__(self, "data", in_memory.given(self.data))

    @property
    def given(self) -> Given | None:
        """The images, if they were given in Python."""
        return self.data if isinstance(self.data, Given) else None

    def overrides(self) -> dict[str, Any]:
        """The settings that have an option of their own and were given.

        Paths are made absolute, so that a run can be resumed from another folder.
        """
        given = {
            "data": None if self.data is None else name_of_data(self.data),
            "labels": self.labels,
            "labels_file": self.labels_file and str(Path(self.labels_file).absolute()),
            "init": self.init and absolute_weights(self.init),
            "steps": self.steps,
            "seed": self.seed,
            "view_seconds": self.time,
        }
        given = {key: value for key, value in given.items() if value is not None}
        if self.encoder not in (None, encoders.NONE):
            given = encoders.settings_of(self.encoder) | given
        return given


def as_request(data: Any, options: Mapping[str, Any]) -> Request:
    """A request as it is, or one made from `data` and the other fields."""
    if isinstance(data, Request):
        return dataclasses.replace(data, **options)
    return Request(data, **options)


def plan(request: Request, device: torch.device, pretraining: bool = False) -> Recipe:
    """The recipe of a new run. An unknown name or an impossible value is an error."""
    if request.method:
        methods.check_kind(request.method, pretraining)
    given, gpu = request.overrides(), device.type == "cuda"
    if pretraining and given.keys() & {"labels", "labels_file", "frozen", "view_seconds"}:
        raise UserError("pre-training uses no label and no frozen encoder: leave these options out")
    name = request.recipe or recipes.default_for(given.get("data", "digits"), gpu, pretraining)
    if request.recipe is None and "frozen" in given:
        name = recipes.ENCODED
    elif chooses_encoder(request, name) and (found := encoders.first_available(gpu)):
        name, given = recipes.ENCODED, encoders.settings_of(found.name) | given
    elif "frozen" not in given:
        given = pretrained_network(given.get("init")) | given
    planned = recipes.get(name, request.method)
    methods.check_kind(planned.method.method, pretraining)  # of a recipe for the other
    given |= typed(planned, request.settings)
    planned = complete(replace(planned, **given), given)
    return replace(planned, precision=choose_precision(planned.precision, device))


def pretrained_network(init: str | None) -> dict[str, Any]:
    """The settings of the network of a run without labels, for a run that starts from it."""
    folder = RunFolder(Path(init or ""))
    if not init or is_timm(init) or not folder.model.exists():
        return {}
    described = folder.description()
    named = ("net", "stem", "image_size")
    return {key: described[key] for key in named} if described.get("pretraining") else {}


def chooses_encoder(request: Request, recipe: str) -> bool:
    """Whether a run begins from the default encoder: a folder, of which nothing else is said."""
    if request.recipe or request.init or request.encoder or recipe not in recipes.FOR_FOLDERS:
        return False
    rotates = request.method and methods.find(request.method).rotates_images
    return not rotates and not names_of(request.settings) & OF_THE_NETWORK


def names_of(settings: Settings) -> set[str]:
    """The names of settings, whose values may be wrong."""
    return {assignment.partition("=")[0].strip() for assignment in settings}


def complete(recipe: Recipe, given: Mapping[str, Any]) -> Recipe:
    """The recipe with the settings that follow from those that were given."""
    dataset, model, optim = recipe.dataset, recipe.model, recipe.optim
    if not dataset.data:
        raise UserError(f"recipe '{recipe.name}' needs data: give the path of a folder of images")
    listed = dataset.labels_file or dataset.data.startswith(in_memory.PREFIX)
    if listed and "labels" not in given:
        recipe = replace(recipe, labels=None)  # all that were given
    if model.init and optim.init_lr and "lr" not in given:
        recipe = replace(recipe, lr=optim.init_lr)
    if model.init and optim.init_steps and "steps" not in given:
        recipe = replace(recipe, steps=optim.init_steps)
    if model.init and recipe.uses_labels and "optimizer" not in given:
        recipe = replace(recipe, optimizer="sgd")  # Muon's rates are for random weights
    if not model.init and "head_lr" not in given:
        recipe = replace(recipe, head_lr=None)  # a classifier learns faster than given features
    if model.init_head_layers and (not model.init or model.frozen or not recipe.uses_labels):
        raise UserError("init_head_layers is for fine-tuning from a run without labels: add --init")
    if model.frozen and not model.init:
        raise UserError("frozen=yes keeps the initial weights of the encoder: add --init")
    if not model.frozen and recipe.features.view_seconds:
        raise UserError("--time limits the encoding by a frozen encoder, and this run has none")
    if model.init and dataset.mean is None and dataset.std is None:
        check_exists(model.init)
        mean, std = channel_statistics(model.init, model.net) or (None, None)
        recipe = replace(recipe, mean=mean, std=std)
    return recipe


def typed(recipe: Recipe, settings: Settings) -> dict[str, Any]:
    """Settings by name with values of their types."""
    values = dict(settings) if isinstance(settings, Mapping) else parse(recipe, settings)
    if values.get("init"):
        values["init"] = absolute_weights(values["init"])
    if values.get("teacher"):
        values["teacher"] = str(Path(values["teacher"]).expanduser().absolute())
    return values


def check_same(folder: RunFolder, saved: Recipe, request: Request) -> None:
    """Raise an error if the request differs from the settings of the run that it resumes."""
    given = request.overrides() | typed(saved, request.settings)
    was, now = values_of(saved), values_of(replace(saved, **given))
    if was["steps"] != now["steps"]:
        raise UserError(
            f"{folder.path} is a run of {was['steps']:,} steps, and its learning rate follows a "
            f"schedule over these: to train its weights further, use --init {folder.path} with "
            "another --out"
        )
    name, method = saved.name, saved.method.method
    asked = [(key, was[key], now[key]) for key in given]
    asked.append(("recipe", name, request.recipe or name))
    asked.append(("method", method, absolute_method(request.method or method)))
    refuse_changes(folder, asked)


def refuse_changes(folder: RunFolder, asked: Iterable[tuple[str, Any, Any]]) -> None:
    """Raise an error at the first setting (name, value in the folder, value now) that differs."""
    for key, was, now in asked:
        if was != now:
            raise UserError(
                f"{folder.path} is a run of another configuration ({key} is {was}, not {now}): "
                f"keep {key}={was} to continue it, or choose another --out"
            )


def load_dataset(
    reading: Reading,
    data_dir: Path,
    progress: bool = True,
    strict: bool = False,
    given: Given | None = None,
) -> Dataset:
    """The data set. Images that cannot be read, and labels of images that have two, are left out.

    Both give a warning. With `strict`, an image with two labels is an error.
    """
    if given or reading.dataset.data.startswith(in_memory.PREFIX):
        dataset = read_given(reading, given, progress, strict)
    else:
        dataset = read_named(reading, data_dir, progress, strict)
    warn_of_unused(dataset)
    return dataset


def read_given(reading: Reading, given: Given | None, progress: bool, strict: bool) -> Dataset:
    """The images that were given in Python."""
    if given is None:
        raise in_memory.must_be_given(reading.dataset.data)
    dataset = in_memory.read(given, reading, progress, strict)
    labels_file = reading.dataset.labels_file
    return sources.relabel(dataset, Path(labels_file)) if labels_file else dataset


def read_named(reading: Reading, data_dir: Path, progress: bool, strict: bool) -> Dataset:
    """The images of a source or of a folder."""
    config, stream = reading.dataset, reading.streaming.stream
    labels_file = Path(config.labels_file) if config.labels_file else None
    size: int | None = config.image_size
    if reading.encoded and config.data in sources.SOURCES:
        size = None  # their own: the encoder sees them larger
    elif reading.encoded:
        stream = "yes"
    return sources.load(
        config.data,
        data_dir,
        size,
        progress,
        labels_file,
        stream,
        strict,
        reading.labels_needed,
    )


def warn_of_unused(dataset: Dataset) -> None:
    """Warn about images and labels that were left out."""
    for images, what in (
        (dataset.skipped, "were left out"),
        (dataset.conflicts, "have two labels and are used without"),
    ):
        if images:
            some = shortened(images, most=LISTED, between="; ")
            warnings.warn(f"{len(images)} images {what} ({some})", stacklevel=3)


def summarise(dataset: Dataset, split: Split, recipe: Recipe) -> Summary:
    """What a run learns from and for how long, in lines for the terminal."""
    found = summary.summarise(dataset, split, recipe.dataset.image_size)
    found.lines.extend(summary.row(*line) for line in encoder_lines(recipe))
    if recipe.name in recipes.RECIPES:
        steps = recipe.optim.steps
        usual = recipes.get(recipe.name, recipe.method.method).optim.steps
        if steps < FEW_STEPS * usual:
            line = f"{steps:,} of the recipe's {usual:,}: expect a lower accuracy"
            found.lines.append(summary.row("steps", line))
    return found


def encoder_lines(recipe: Recipe) -> list[tuple[str, str]]:
    """What a run on features begins from; of a folder without any, what would be better."""
    init = recipe.model.init
    if recipe.model.frozen and init:
        if not is_timm(init):
            return [("encoder", f"{recipe.model.net}, frozen")]
        name = init.partition(":")[2] or recipe.model.net
        note = encoders.ENCODERS[name].note if name in encoders.ENCODERS else ""
        lines = [("encoder", f"{name}, frozen; {encoders.licence(init)}")]
        return [*lines, ("", f"{note}, others: comatch encoders")] if note else lines
    if recipe.name in recipes.FOR_FOLDERS and not init:
        better = encoders.ENCODERS[encoders.ON_CPU]
        return [
            ("encoder", "none: all weights are learned. Photographs need a pre-trained one"),
            ("", f"({better.megabytes} MB, downloaded once): --encoder {better.name}"),
        ]
    return []


def default_folder(recipe: Recipe, resume: bool) -> RunFolder:
    """runs/digits-comatch-40-seed0, or with -2, -3, ... behind it where that is taken."""
    data, method = short_name(recipe.dataset.data), recipe.method_name
    labels = labels_text(recipe.dataset.labels).replace("%", "pct")
    learned = f"{method}-{labels}" if recipe.uses_labels else method
    stem = f"{data}-{learned}-seed{recipe.seed}"
    taken, path, number = None, Path("runs") / stem, 1
    while path.exists():
        number += 1
        taken, path = path, Path("runs") / f"{stem}-{number}"
    return RunFolder(taken if resume and taken else path)


def pretraining_folder(request: Request, out: str | Path | None, resume: bool) -> Path:
    """The folder of the part without labels in the run folder of a request."""
    if out is not None:
        return Path(out) / PRETRAINING
    recipe = plan(request, choose_device(request.device))
    return default_folder(recipe, resume).path / PRETRAINING


def pretraining_request(request: Request, method: str, steps: int | None) -> Request:
    """A request without labels for the network that another request trains."""
    recipe = plan(request, choose_device(request.device))
    model, dataset = recipe.model, recipe.dataset
    return Request(
        request.data,
        method=method,
        steps=steps,
        seed=request.seed,
        data_dir=request.data_dir,
        device=request.device,
        settings={
            "net": model.net,
            "stem": model.stem,
            "image_size": dataset.image_size,
            "flip": recipe.views.flip,
            "stream": recipe.streaming.stream,
        },
        progress=request.progress,
    )


def name_of_data(data: str | Path | Given) -> str:
    """The name of a data set as it is, the path of a folder made absolute."""
    if isinstance(data, Given):
        return data.name
    path = Path(data).expanduser()
    named = str(data) in sources.SOURCES or not path.exists()
    return str(data) if named else str(path.absolute())


def short_name(data: str) -> str:
    """For the name of a run folder."""
    return Path(data).name.removeprefix(in_memory.PREFIX)


def absolute_method(method: str) -> str:
    """The name of a method as it is, the path of a file made absolute."""
    return str(Path(method).expanduser().absolute()) if method.endswith(".py") else method


def absolute_weights(init: str | Path) -> str:
    """A name of timm's as it is; a path made absolute, whether or not it exists."""
    return str(init) if is_timm(str(init)) else str(Path(init).expanduser().absolute())
