"""The same from Python as from the command line.

run = comatch.train("digits", labels=40)
classifier = comatch.load(run.path)
classifier.predict(["a.png", "b.jpg"]).labels
"""

import dataclasses
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from comatch import distributed, evaluation, launch, recipes
from comatch.allocator import keep_freed_memory
from comatch.config import Recipe, labels_text, parse, replace
from comatch.data import sources, splits
from comatch.data.images import ImageError, read_image, square
from comatch.data.streaming import middle
from comatch.errors import UserError
from comatch.files import read_json
from comatch.nets import Network, build_encoder
from comatch.nets.pretrained import is_timm
from comatch.training.build import choose_precision
from comatch.training.init_weights import check_there, colours
from comatch.training.loop import fit
from comatch.training.progress import OpenBar, TrainingBar
from comatch.training.run_folder import RunFolder
from comatch.types import Dataset

ImageInput = str | Path | Image.Image | np.ndarray
Settings = dict[str, Any] | Sequence[str]  # {"alpha": 1.0}, or ["alpha=1.0"]


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished run: its folder, and what its summary says."""

    path: Path
    summary: dict[str, Any]


def train(
    data: str | Path | None = None,
    *,
    labels: int | float | None = None,
    labels_file: str | Path | None = None,
    method: str | None = None,
    recipe: str | None = None,
    init: str | Path | None = None,
    data_dir: str | Path | None = None,
    steps: int | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    device: str = "auto",
    resume: bool = False,
    progress: bool = True,
    settings: Settings = (),
) -> Run:
    """Trains a classifier and leaves a run folder.

    `data` is a known name (digits, cifar10, stl10) or the path of a folder of images. `labels` is
    how many to keep, the same number a class, or a share of them below 1. `init` is
    what to begin from: a run folder, a file of weights, "timm" or "timm:NAME.TAG". AllImages
    left out is the recipe's choice; `settings` changes any field of the recipe or of its method
    ({"alpha": 1.0}, or ["alpha=1.0"]). With `resume`, an unfinished run in `out` goes on, and a
    finished one is returned as it is. Under `torchrun`, all processes train one classifier, the
    first of them writes, and a run that torchrun starts again goes on by itself.
    """
    distributed.join()
    call = f"folder of {(data, labels, method, recipe, seed, out)}"
    begun = distributed.published_value(call)  # torchrun has started this again, so it goes on
    out = begun or out
    resume = resume or begun is not None or (not launch.several() and launch.restarts() > 0)
    progress = progress and distributed.rank() == 0
    where = choose_device(device)
    table = None if labels_file is None else str(Path(labels_file).absolute())
    start = None if init is None else absolute_weights(init)
    given = named(data, labels=labels, labels_file=table, init=start, steps=steps, seed=seed)

    folder = RunFolder(Path(out)) if out else None
    if folder is None or not (resume and folder.exists()):
        planned = plan(where, recipe, method, given, settings)
        folder = folder or default_folder(planned, resume)
    if resume and folder.exists():
        planned = folder.recipe()
        check_same(folder, planned, recipe, method, given | _typed(planned, settings))
        if folder.finished():
            return Run(folder.path, read_json(folder.summary))
        home = Path(data_dir) if data_dir else folder.data_dir()
    else:
        folder.check_free()
        check_there(planned.init)
        home = Path(data_dir or "data")

    distributed.publish(call, str(folder.path))
    dataset = open_data(planned, home, progress)
    return learn(folder, planned, dataset, where, home, partial(TrainingBar, show=progress))


def named(data: str | Path | None, **others: Any) -> dict[str, Any]:
    """What was given of the settings that have an option of their own."""
    everything = {"data": None if data is None else _source(str(data)), **others}
    return {key: value for key, value in everything.items() if value is not None}


def plan(
    where: torch.device,
    recipe: str | None,
    method: str | None,
    given: dict[str, Any],
    settings: Settings,
) -> Recipe:
    """All that decides a run; a name or a value that cannot be is told here."""
    name = recipe or recipes.default_for(given.get("data", "digits"), where.type == "cuda")
    planned = recipes.get(name, method)
    given = given | _typed(planned, settings)
    planned = complete(replace(planned, **given), given)
    return replace(planned, precision=choose_precision(planned.precision, where))


def learn(
    folder: RunFolder,
    recipe: Recipe,
    dataset: Dataset,
    where: torch.device,
    data_dir: Path,
    open_bar: OpenBar,
) -> Run:
    """A run on data that is open already: it begins, or goes on where it stopped."""
    if folder.split.exists():
        split = splits.restore(dataset, recipe, read_json(folder.split))
    else:
        split = splits.make(dataset, recipe)
    return Run(folder.path, fit(folder, recipe, dataset, split, where, data_dir, open_bar))


def complete(recipe: Recipe, given: dict[str, Any]) -> Recipe:
    """What follows from the settings that were given."""
    if not recipe.data:
        raise UserError(f"recipe '{recipe.name}' needs data: give the path of a folder of images")
    if recipe.labels_file and "labels" not in given:
        recipe = replace(recipe, labels=None)  # the file says which, and so how many
    if recipe.init and recipe.init_lr and "lr" not in given:
        recipe = replace(recipe, lr=recipe.init_lr)
    if recipe.init and "optimizer" not in given:
        recipe = replace(recipe, optimizer="sgd")  # Muon's rates are for weights that are random
    if recipe.frozen and not recipe.init:
        raise UserError("frozen=yes keeps the weights that a run begins with: add --init")
    if recipe.init and recipe.mean is None and recipe.std is None:
        check_there(recipe.init)
        mean, std = colours(recipe.init, recipe.net) or (None, None)
        recipe = replace(recipe, mean=mean, std=std)
    return recipe


def _typed(recipe: Recipe, settings: Settings) -> dict[str, Any]:
    typed = dict(settings) if isinstance(settings, dict) else parse(recipe, settings)
    if typed.get("init"):
        typed["init"] = absolute_weights(typed["init"])
    return typed


def check_same(
    folder: RunFolder,
    saved: Recipe,
    recipe: str | None,
    method: str | None,
    given: dict[str, Any],
) -> None:
    """A run goes on with the settings that it began with, or not at all."""
    changed = replace(saved, **given)
    asked = [(key, find_setting(saved, key), find_setting(changed, key)) for key in given]
    asked.append(("recipe", saved.name, recipe or saved.name))
    asked.append(("method", saved.method.method, method or saved.method.method))
    refuse_changes(folder, asked)


def refuse_changes(folder: RunFolder, asked: Iterable[tuple[str, Any, Any]]) -> None:
    """Of each setting what it is in the folder and what it shall be."""
    for key, was, now in asked:
        if was != now:
            raise UserError(
                f"{folder.path} is a run of another configuration ({key} is {was}, not {now}): "
                f"keep {key}={was} to go on with it, or choose another --out"
            )


def find_setting(recipe: Recipe, key: str) -> Any:
    return getattr(recipe if hasattr(recipe, key) else recipe.method, key)


def open_data(recipe: Recipe, data_dir: Path, progress: bool = True) -> Dataset:
    labels_file = Path(recipe.labels_file) if recipe.labels_file else None
    size, stream = recipe.image_size, recipe.stream
    dataset = sources.load(recipe.data, data_dir, size, progress, labels_file, stream)
    warn_of_skipped(dataset)
    return dataset


def warn_of_skipped(dataset: Dataset) -> None:
    if dataset.skipped:
        some = "; ".join(dataset.skipped[:3]) + ("; ..." if len(dataset.skipped) > 3 else "")
        warnings.warn(f"{len(dataset.skipped)} images were left out ({some})", stacklevel=3)


def default_folder(recipe: Recipe, resume: bool) -> RunFolder:
    """runs/digits-comatch-40-seed0, and -2, -3, ... behind it where that is taken."""
    labels, method = labels_text(recipe.labels).replace("%", "pct"), recipe.method.method
    stem = f"{Path(recipe.data).name}-{method}-{labels}-seed{recipe.seed}"
    taken, path, number = None, Path("runs") / stem, 1
    while path.exists():
        number += 1
        taken, path = path, Path("runs") / f"{stem}-{number}"
    return RunFolder(taken if resume and taken else path)


def choose_device(device: str) -> torch.device:
    """Where to compute; this process gets ready for it."""
    if device not in ("auto", "cpu", "cuda"):
        raise UserError(f"unknown device '{device}': use auto, cpu or cuda")
    gpu = torch.cuda.is_available()
    if device == "cuda" and not gpu:
        raise UserError("no CUDA GPU can be used here: use --device cpu, or auto")
    if gpu and device != "cpu":
        return distributed.device()
    keep_freed_memory()
    return torch.device("cpu")


def _source(data: str) -> str:
    """A name as it is, a path made absolute so that the run can be continued from any_rank."""
    path = Path(data).expanduser()
    return data if data in sources.SOURCES or not path.exists() else str(path.absolute())


def absolute_weights(init: str | Path) -> str:
    """A name of timm's as it is; a path made absolute, whether or not it is still there."""
    return str(init) if is_timm(str(init)) else str(Path(init).expanduser().absolute())


@dataclasses.dataclass(frozen=True)
class Predictions:
    labels: list[str]  # [N] the likeliest class
    probabilities: Tensor  # [N, C]
    classes: list[str]  # [C]


class Classifier:
    """A trained network with everything it needs to look at an image."""

    def __init__(self, net: Network, description: dict[str, Any], device: torch.device) -> None:
        self.net = net.to(device).eval()
        self.classes: list[str] = description["classes"]
        self.image_size: int = description["image_size"]
        self.resize: int = description.get("resize", self.image_size)
        self.mean = torch.tensor(description["mean"], device=device)
        self.std = torch.tensor(description["std"], device=device)
        self.temperature: float = description.get("temperature", 1.0)

    def predict(self, images: ImageInput | Sequence[ImageInput] | Tensor) -> Predictions:
        """Classifies one image or several.

        Paths, Pillow images and uint8 arrays [H, W, 3] may have any size; a uint8 tensor
        [N, 3, H, W] must have the classifier's.
        """
        p = evaluation.probabilities(self.net, self._pixels(images), self.mean, self.std)
        p = evaluation.temperature.soften(p, self.temperature)
        return Predictions([self.classes[i] for i in p.argmax(1).tolist()], p, self.classes)

    def _pixels(self, images: ImageInput | Sequence[ImageInput] | Tensor) -> Tensor:
        size = self.image_size
        if isinstance(images, Tensor):
            if images.dtype != torch.uint8 or images.shape[1:] != (3, size, size):
                raise UserError(
                    f"a tensor of images must be uint8 [N, 3, {size}, {size}]; "
                    f"this one is {images.dtype} {list(images.shape)}"
                )
            return images
        if isinstance(images, np.ndarray) and images.ndim == 4:
            images = list(images)
        several = [images] if isinstance(images, ImageInput) else images
        with ThreadPoolExecutor() as pool:
            arrays = list(pool.map(lambda image: to_array(image, size, self.resize), several))
        if not arrays:
            raise UserError("no image was given")
        return torch.from_numpy(np.stack(arrays))


def to_array(image: ImageInput, size: int, resize: int) -> np.ndarray:  # [3, size, size] uint8
    """The shorter side becomes `resize` pixels, and the middle `size` of them are seen."""
    if isinstance(image, str | Path):
        try:
            return middle(read_image(Path(image), resize), size)
        except ImageError as error:
            raise UserError(f"{image} cannot be read: {error}") from None
    if isinstance(image, np.ndarray):
        image = Image.fromarray(image)
    return middle(square(image, resize), size)


def folder_of(run: str | Path | Run) -> RunFolder:
    return RunFolder(run.path if isinstance(run, Run) else Path(run))


def load(run: str | Path | Run, device: str = "auto") -> Classifier:
    """The classifier of a run, or of its folder. Nothing in the folder is executed."""
    folder = folder_of(run)
    weights = folder.read_weights()
    described = folder.description()
    encoder = build_encoder(described["net"], described["image_size"], described["stem"])
    net = Network(encoder, len(described["classes"]), described["embedding_dim"])
    if described.get("frozen", False):
        net.freeze()
    try:
        net.load_state_dict(weights)
    except RuntimeError:
        raise UserError(
            f"{folder.weights} does not fit {folder.model}: damaged run folder"
        ) from None
    return Classifier(net, described, choose_device(device))


def evaluate(
    run: str | Path | Run, *, data_dir: str | Path | None = None, device: str = "auto"
) -> evaluation.Scores:
    """Scores of a run's classifier on the test part of its data."""
    folder = folder_of(run)
    recipe = folder.recipe()
    classifier = load(run, device)
    dataset = open_data(recipe, Path(data_dir) if data_dir else folder.data_dir())
    if dataset.test is None:
        raise UserError(
            f"{recipe.data} has no test part: add a folder 'test' with labelled images, or ask "
            "the labels themselves (--folds 4)"
        )
    return evaluation.score_part(
        dataset.test,
        lambda images: classifier.predict(images).probabilities,
        len(classifier.classes),
        classifier.image_size,
        classifier.mean.device,
    )


def predict_files(
    classifier: Classifier, paths: Sequence[Path], chunk: int = 256
) -> Iterator[tuple[Path, Tensor | None, str]]:
    """Each file with its class probabilities [C], or none and why it could not be read."""

    def read(path: Path) -> np.ndarray | ImageError:
        try:
            return middle(read_image(path, classifier.resize), classifier.image_size)
        except ImageError as error:
            return error

    with ThreadPoolExecutor() as pool:
        for begin in range(0, len(paths), chunk):
            some = paths[begin : begin + chunk]
            results = list(pool.map(read, some))
            readable = [result for result in results if isinstance(result, np.ndarray)]
            rows: Iterator[Tensor] = iter(())
            if readable:
                pixels = torch.from_numpy(np.stack(readable))
                rows = iter(classifier.predict(pixels).probabilities)
            for path, result in zip(some, results, strict=True):
                if isinstance(result, np.ndarray):
                    yield path, next(rows), ""
                else:
                    yield path, None, str(result)
