"""A recipe: everything that decides the result of a run."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from comatch import methods
from comatch.augment.policies import ViewConfig
from comatch.config import (
    Config,
    MethodConfig,
    NamedConfig,
    flatten,
    replace,
    require,
    setting,
    settings_of,
)
from comatch.data.cached_features import FeatureConfig
from comatch.data.config import DataConfig, Reading, StreamConfig
from comatch.nets.config import ModelConfig
from comatch.training.optim import OptimConfig


@dataclass(frozen=True)
class Recipe(Config):
    """The settings of a run. Groups of settings lie beside the code that reads them."""

    name: str = ""  # the function in `recipes` that made it
    method: NamedConfig = field(default_factory=MethodConfig)
    dataset: DataConfig = field(default_factory=DataConfig)
    streaming: StreamConfig = field(default_factory=StreamConfig)
    views: ViewConfig = field(default_factory=ViewConfig)
    features: FeatureConfig = field(default_factory=FeatureConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    precision: str = setting(
        "auto", "fp32, bf16, auto: bf16 where the hardware has it", choices=("auto", "fp32", "bf16")
    )
    engine: str = setting(
        "auto",
        "eager, compiled, captured (CUDA graph), auto: captured on a GPU, else eager",
        choices=("auto", "eager", "compiled", "captured"),
    )
    seed: int = setting(0, "seed of split, initial weights, batches and augmentation", least=0)
    log_every: int = setting(50, "steps between two lines of metrics", least=1)
    eval_every: int = setting(1000, "steps between two evaluations", least=1)
    checkpoint_every: int = setting(1000, "steps between two checkpoints", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        pad, size = self.views.pad, self.dataset.image_size
        require(pad < size, f"pad={pad}: must be below image_size")

    @property
    def method_name(self) -> str:
        """The name of the method, for people and folders: of a file, without its path."""
        return Path(self.method.method).stem

    @property
    def uses_labels(self) -> bool:
        """Whether this is training, not pre-training without labels."""
        return methods.find(self.method.method).uses_labels

    @property
    def reading(self) -> Reading:
        return Reading(self.dataset, self.streaming, self.model.frozen, self.uses_labels)

    @property
    def split_seed(self) -> int:
        own = self.dataset.split_seed
        return self.seed if own is None else own


def renamed(recipe: Recipe, name: str) -> Recipe:
    """The same settings under the name of another recipe."""
    return dataclasses.replace(recipe, name=name)


def from_json(plain: dict[str, Any], method: Callable[[str], NamedConfig]) -> Recipe:
    """The recipe that `to_json` wrote. A setting that is unknown or missing is a KeyError."""
    flat = flatten(plain)
    own = dict(flat.pop("method"))
    recipe = Recipe(name=flat.pop("name"), method=method(own.pop("name")))
    values = {**flat, **own}
    unlike = values.keys() ^ settings_of(recipe).keys()
    if unlike:
        raise KeyError(*sorted(unlike))
    for key in ("mean", "std"):
        values[key] = None if values[key] is None else tuple(values[key])
    return replace(recipe, **values)
