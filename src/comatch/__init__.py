"""comatch: learn an image classifier from few labels and many unlabelled images."""

import importlib
from typing import TYPE_CHECKING, Any

from comatch import compiler_cache
from comatch.version import __version__ as __version__

if TYPE_CHECKING:
    from comatch.api import evaluate, load, pretrain, train
    from comatch.commands.compare import compare
    from comatch.commands.cross_validation import cross_validate
    from comatch.commands.export import export
    from comatch.commands.hub import push
    from comatch.commands.suggest.choose import suggest
    from comatch.estimator import Classifier
    from comatch.planning import Request

__all__ = [
    "Classifier",
    "Request",
    "compare",
    "cross_validate",
    "evaluate",
    "export",
    "load",
    "pretrain",
    "push",
    "suggest",
    "train",
]

HOMES = {  # the module of each public name
    "Classifier": "estimator",
    "Request": "planning",
    "compare": "commands.compare",
    "cross_validate": "commands.cross_validation",
    "evaluate": "api",
    "export": "commands.export",
    "load": "api",
    "pretrain": "api",
    "push": "commands.hub",
    "suggest": "commands.suggest.choose",
    "train": "api",
}

compiler_cache.share_with_compilers()  # torch's compiler reads the place when it is imported


def __getattr__(name: str) -> Any:
    # Importing torch takes seconds, so it waits until a function is used.
    if name in HOMES:
        return getattr(importlib.import_module(f"comatch.{HOMES[name]}"), name)
    raise AttributeError(f"module 'comatch' has no attribute '{name}'")
