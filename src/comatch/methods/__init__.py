"""The methods by their names. A new one is a file here and a line in the list below.

A method outside of the package is found by the path of its file. Estimators of scikit-learn have a
list of their own: they need the features of a frozen encoder.
"""

import functools
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from comatch.config import NamedConfig, check_name
from comatch.errors import UserError
from comatch.methods.comatch import CoMatch
from comatch.methods.comatch_momentum import CoMatchMomentum
from comatch.methods.distill import Distill
from comatch.methods.estimator import Estimator
from comatch.methods.estimators import ESTIMATORS
from comatch.methods.fixmatch import FixMatch
from comatch.methods.fixmatch_da import FixMatchDA
from comatch.methods.label_propagation import LabelPropagation
from comatch.methods.mean_teacher import MeanTeacher
from comatch.methods.method import Method, Step
from comatch.methods.mixmatch import MixMatch
from comatch.methods.pi_model import PiModel
from comatch.methods.pretraining import PRETRAINING, Pretraining
from comatch.methods.pseudo_label import PseudoLabel
from comatch.methods.remixmatch import ReMixMatch
from comatch.methods.s4l_rotation import S4LRotation
from comatch.methods.supervised import Supervised
from comatch.methods.temporal_ensembling import TemporalEnsembling
from comatch.methods.uda import Uda
from comatch.methods.vat import Vat
from comatch.types import Task

METHODS: dict[str, type[Method]] = {
    method.Config.method: method
    for method in (
        CoMatch,
        CoMatchMomentum,
        FixMatchDA,
        FixMatch,
        Uda,
        MixMatch,
        ReMixMatch,
        Vat,
        S4LRotation,
        LabelPropagation,
        MeanTeacher,
        TemporalEnsembling,
        PiModel,
        PseudoLabel,
        Distill,
        Supervised,
    )
}


def find(name: str) -> type[Method]:
    """The method of this name, or the one in a file: `fixmatch` or `my_method.py`."""
    if name.endswith(".py"):
        return load(str(Path(name).expanduser().absolute()))
    if name in PRETRAINING:
        return PRETRAINING[name]
    known: dict[str, type[Method]] = {**METHODS, **ESTIMATORS}
    check_name(name, known, "method")
    return known[name]


def check_kind(name: str, pretraining: bool) -> None:
    """Raise an error if a method is for the other of `comatch train` and `comatch pretrain`."""
    if find(name).uses_labels and pretraining:
        raise UserError(f"{name} learns from labels: use comatch train --method {name}")
    if not find(name).uses_labels and not pretraining:
        raise UserError(
            f"{name} learns without labels: use comatch pretrain DATA --method {name}, then "
            "comatch train DATA --init with its run folder"
        )


@functools.cache
def load(path: str) -> type[Method]:
    """The method that a file defines. Its name is the path, so that a run can be resumed."""
    if not Path(path).is_file():
        raise UserError(f"there is no method in {path}: the file does not exist")
    name = f"comatch_method_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Method) and value.__module__ == name
    ]
    if len(found) != 1:
        raise UserError(
            f"{path} must define one subclass of comatch.methods.Method, not {len(found)}"
        )
    (method,) = found
    if "Config" not in vars(method):
        method.Config = dataclass(frozen=True)(type("Config", (method.Config,), {}))
    method.Config.method = path
    return method


def config(name: str) -> Any:
    """The method's settings with their defaults, a `NamedConfig`."""
    return find(name).Config()


def build(config: NamedConfig, encoder: nn.Module, task: Task) -> Method:
    method: Any = find(config.method)
    built: Method = method(encoder, task, config)
    return built


__all__ = [
    "ESTIMATORS",
    "METHODS",
    "PRETRAINING",
    "Estimator",
    "Method",
    "Pretraining",
    "Step",
    "build",
    "check_kind",
    "config",
    "find",
]
