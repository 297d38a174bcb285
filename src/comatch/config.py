"""What decides a run: one flat, frozen `Recipe`, and inside it the settings of one method.

A variant is `replace(recipe, alpha=1.0, steps=100)`: a key may belong to the recipe or to its
method, and one that belongs to neither is an error that names the nearest. The command line's
`--set key=value` is the same function with the value read by the field's type.
"""

import dataclasses
import difflib
import json
import types
import typing
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from comatch.errors import UserError


def setting(default: Any, says: str) -> Any:
    """A field with one line of explanation, shown by `comatch recipes NAME`."""
    return field(default=default, metadata={"says": says})


@dataclass(frozen=True)
class MethodConfig:
    """Settings that every method has; each method adds its own beside its code."""

    method: ClassVar[str]  # the name after --method
    ema_decay: float = setting(0.999, "share of itself that the averaged model keeps at each step")
    ema_warmup: bool = setting(False, "that share rises from 1/10 as (1 + step) / (10 + step)")


@dataclass(frozen=True)
class Recipe:
    """AllImages that decides the result of a run."""

    name: str = setting("", "name of the recipe that the run was made from")
    method: MethodConfig = field(default_factory=MethodConfig)

    # What is learned from
    data: str = setting("digits", "digits, cifar10, stl10 or the path of a folder of images")
    labels: int | float | None = setting(
        None, "labels kept, the same number a class: a number, or a share as in 1%; none: all"
    )
    labels_file: str | None = setting(
        None, "what is labelled: CSV of path,label, or a plain list of file names"
    )
    validation: float = setting(0.0, "images held out for choosing: a number, or a share below 1")
    fold: str | None = setting(
        None, "labels held out for asking: 2/4 is the second of four parts; none: no label is"
    )
    split_seed: int | None = setting(None, "decides the split; none: the seed does")
    labelled_too: bool = setting(False, "labelled images are also among the unlabelled ones")
    image_size: int = setting(32, "side of the images in pixels")
    stream: str = setting(
        "auto", "read while training: yes, no, auto: a folder above 8 GB of pixels"
    )
    workers: int | None = setting(None, "processes that read a stream; none: one a core")
    ahead: int = setting(2, "batches of a stream that are prepared ahead")
    mean: tuple[float, ...] | None = setting(
        None, "channel means, 0 to 1; none: measured, or with init those of its weights"
    )
    std: tuple[float, ...] | None = setting(None, "channel deviations, 0 to 1; none: likewise")

    # How it is seen
    labelled_view: str = setting("weak", "augmentation of labelled images: weak or strong")
    flip: bool = setting(True, "images may be mirrored")
    weak_crop: str = setting("pad", "weak view: pad (shift by a few pixels) or resized (zoom in)")
    pad: int = setting(4, "pixels that a pad crop shifts by at most")
    min_area: float = setting(0.2, "least share of the image that a resized crop keeps")
    cutout: float = setting(0.5, "side of the grey square as a share of the image's side")

    # What learns
    net: str = setting("wrn-28-2", "wrn-DEPTH-WIDTH, or the name of a timm model")
    norm_momentum: float | None = setting(None, "batch-norm momentum; none: the net's own")
    stem: str = setting(
        "auto",
        "small (3x3, no pooling), half (as small, but stride 2), standard (the model's own), auto: "
        "by size",
    )
    init: str | None = setting(
        None, "weights to begin from: a run folder, a file, timm or timm:NAME.TAG; none: random"
    )
    frozen: bool = setting(False, "with init: the encoder keeps its weights, only the heads learn")
    kept_views: int = setting(4, "with frozen: views of each image to draw from, computed once")

    # How it learns
    batch: int = setting(64, "B: labelled images a step")
    mu: int = setting(7, "unlabelled images a step for every labelled one")
    steps: int = setting(524_288, "optimiser steps")
    lr: float = setting(0.03, "learning rate at the start")
    init_lr: float | None = setting(None, "the same for a run with init; none: no other")
    schedule: str = setting(
        "cosine-7/16", "cosine-7/16; cosine, linear or trapezoid (to zero); constant"
    )
    warmup: float = setting(0.0, "share of the steps in which the learning rate rises from zero")
    optimizer: str = setting("sgd", "sgd, or muon: the encoder's weight matrices turned by Muon")
    muon_lr: float = setting(0.02, "learning rate of what Muon turns, on the same schedule")
    muon_decay: float | None = setting(None, "weight decay of what Muon turns; none: no other")
    momentum: float = setting(0.9, "SGD momentum, with Nesterov's look-ahead")
    weight_decay: float = setting(5e-4, "weight decay")
    decay_norms: bool = setting(False, "weight decay on batch norm and biases of norms too")
    precision: str = setting("auto", "fp32, bf16, auto: bf16 where the hardware has it")
    fused: bool = setting(True, "norm, activation and convolution in one kernel, bf16 on a GPU")
    engine: str = setting("auto", "eager, compiled, captured, auto: captured on a GPU")
    seed: int = setting(0, "decides split, initial weights, batches and augmentation")

    # What is written down
    log_every: int = setting(50, "steps between two lines of metrics")
    eval_every: int = setting(1000, "steps between two evaluations")
    checkpoint_every: int = setting(1000, "steps between two checkpoints")

    def __post_init__(self) -> None:
        every = ("log_every", "eval_every", "checkpoint_every")
        for name in ("batch", "mu", "steps", "image_size", "ahead", "kept_views", *every):
            require(getattr(self, name) >= 1, f"{name}={getattr(self, name)}: must be at least 1")
        require(0 <= self.pad < self.image_size, f"pad={self.pad}: must be below image_size")
        require(self.lr > 0, f"lr={self.lr}: must be above 0")
        require(self.muon_lr > 0, f"muon_lr={self.muon_lr}: must be above 0")
        require(0 <= self.warmup < 1, f"warmup={self.warmup}: must be in [0, 1)")
        lr = self.init_lr
        require(lr is None or lr > 0, f"init_lr={lr}: must be above 0, or none")
        workers = self.workers
        require(workers is None or workers >= 1, f"workers={workers}: must be at least 1, or none")
        require(self.seed >= 0, f"seed={self.seed}: must not be negative")
        split = self.split_seed
        require(split is None or split >= 0, f"split_seed={split}: must not be negative, or none")
        require(is_number_or_share(self.labels), f"labels={self.labels}: {NUMBER_OR_SHARE}")
        require(self.validation >= 0, f"validation={self.validation}: must not be negative")
        if self.fold is not None:
            part_of(self.fold)
            require(not self.validation, f"fold={self.fold} holds labels out: validation must be 0")
        require(0 < self.min_area <= 1, f"min_area={self.min_area}: must be in (0, 1]")
        require(0 <= self.cutout <= 1, f"cutout={self.cutout}: must be in [0, 1]")
        for name, known in CHOICES.items():
            check_name(getattr(self, name), known, name)


NUMBER_OR_SHARE = "a whole number of at least 1, a share as in 1%, or none for all"


def is_number_or_share(labels: int | float | None) -> bool:
    return labels is None or 0 < labels < 1 or (isinstance(labels, int) and labels >= 1)


def part_of(fold: str) -> tuple[int, int]:
    """`2/4` as (2, 4): the second of four parts."""
    part, slash, parts = fold.partition("/")
    known = bool(slash) and part.isdecimal() and parts.isdecimal()
    require(
        known and 1 <= int(part) <= int(parts) >= 2,
        f"fold={fold}: write it as 1/4, the first of four parts",
    )
    return int(part), int(parts)


def labels_text(labels: int | float | None) -> str:
    """For people and the names of folders: all, 40, 1%."""
    if labels is None:
        return "all"
    return f"{100 * labels:.6g}%" if labels < 1 else str(labels)


def read_number_or_share(text: str) -> int | float:
    """`40`, `1%` or `0.01`."""
    text = text.strip().replace("_", "").replace(",", "")
    if text.endswith("%"):
        return round(float(text.removesuffix("%")) / 100, 12)
    return float(text) if "." in text else int(text)


CHOICES = {
    "schedule": ("cosine-7/16", "cosine", "linear", "trapezoid", "constant"),
    "optimizer": ("sgd", "muon"),
    "precision": ("auto", "fp32", "bf16"),
    "engine": ("auto", "eager", "compiled", "captured"),
    "labelled_view": ("weak", "strong"),
    "weak_crop": ("pad", "resized"),
    "stem": ("auto", "small", "half", "standard"),
    "stream": ("auto", "yes", "no"),
}


def replace(recipe: Recipe, **changes: Any) -> Recipe:
    """The recipe with some settings changed, its method's settings among them."""
    own, theirs = settings_of(recipe), settings_of(recipe.method)
    for key in changes:
        check_setting(key, [*own, *theirs])
    method = dataclasses.replace(recipe.method, **{k: v for k, v in changes.items() if k in theirs})
    rest = {k: v for k, v in changes.items() if k in own}
    return dataclasses.replace(recipe, method=method, **rest)


def renamed(recipe: Recipe, name: str) -> Recipe:
    """The same under the name of the recipe that is made from it."""
    return dataclasses.replace(recipe, name=name)


def parse(recipe: Recipe, assignments: Sequence[str]) -> dict[str, Any]:
    """`["alpha=1", "flip=no"]` as typed values: {"alpha": 1.0, "flip": False}."""
    hints = {**_hints(recipe), **_hints(recipe.method)}
    values = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        require(bool(equals), f"--set {assignment}: write it as key=value")
        check_setting(key, hints)
        values[key] = _read(key, text, hints[key])
    return values


def settings_of(config: Any) -> dict[str, dataclasses.Field[Any]]:
    """The fields that a person may set, by name."""
    return {f.name: f for f in dataclasses.fields(config) if f.name not in ("name", "method")}


def require(holds: bool, message: str) -> None:
    if not holds:
        raise UserError(message)


def check_name(name: str, known: Collection[str], what: str) -> None:
    """An unknown name is an error that says which one was probably meant."""
    if name in known:
        return
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(sorted(known))}"
    raise UserError(f"unknown {what} '{name}': {hint}")


def check_setting(key: str, known: Collection[str]) -> None:
    require(key not in RETIRED, f"{key}: {GONE}")
    check_name(key, known, "setting")


def to_json(recipe: Recipe) -> dict[str, Any]:
    plain = dataclasses.asdict(recipe)
    plain["method"] = {"name": recipe.method.method, **plain["method"]}
    return typing.cast(dict[str, Any], json.loads(json.dumps(plain)))


GONE = "no longer there; an older version has it"

# Settings that are gone, and the value that is left of each: runs from before still have them. A
# name is not used again, or such a run would be read as another.
RETIRED = {
    "weak_gradient": True,
    "both_views": False,
    "symmetric": False,
    "sharpen": 1.0,
    "threshold_from": None,
    "edge_from": None,
    "curriculum": 0.5,
    "teacher": "none",
    "contrast_first": 0.0,
}


def from_json(plain: dict[str, Any], methods: dict[str, type[MethodConfig]]) -> Recipe:
    """The recipe that `to_json` wrote; settings unknown to this version are an error."""
    plain = dict(plain)
    own = dict(plain.pop("method"))
    name = own.pop("name")
    check_name(name, methods, "method")
    recipe = Recipe(name=plain.pop("name"), method=methods[name]())
    values = {**plain, **own}
    for key in RETIRED.keys() & values.keys():
        value = values.pop(key)
        require(value == RETIRED[key], f"{key}={value}: {GONE}")
    for key in ("mean", "std"):
        values[key] = None if values[key] is None else tuple(values[key])
    return replace(recipe, **values)


def _hints(config: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(type(config))
    return {name: hints[name] for name in settings_of(config)}


def _read(key: str, text: str, hint: Any) -> Any:
    """`text` as a value of the field's type."""
    wanted = [t for t in typing.get_args(hint) if t is not types.NoneType]
    if isinstance(hint, types.UnionType):
        if text.lower() in ("none", ""):
            return None
        hint = wanted[0]
    try:
        if wanted == [int, float]:
            return read_number_or_share(text)
        if hint is bool:
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[
                text.lower()
            ]
        if hint is int:
            return int(text.replace("_", "").replace(",", ""))
        if typing.get_origin(hint) is tuple:
            return tuple(float(part) for part in text.strip("()").split(","))
        return hint(text)
    except (ValueError, KeyError):
        kind = {bool: "yes or no", int: "a whole number", float: "a number"}.get(hint, "numbers")
        kind = NUMBER_OR_SHARE if wanted == [int, float] else kind
        raise UserError(f"--set {key}={text}: {key} takes {kind}") from None
