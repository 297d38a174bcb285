"""comatch: learn an image classifier from few labels and many unlabelled images."""

import importlib
import time
from typing import TYPE_CHECKING, Any

from comatch import compiler_cache

if TYPE_CHECKING:
    from comatch.api import compare, cross_validate, evaluate, export, load, train
    from comatch.planning import Request

__version__ = "0.2.0"
__all__ = ["Request", "compare", "cross_validate", "evaluate", "export", "load", "train"]

IMPORTED = time.perf_counter()  # start-up time is measured from here, before torch is imported

compiler_cache.share_with_compilers()  # torch's compiler reads the place when it is imported


def __getattr__(name: str) -> Any:
    # Importing torch takes seconds, so it waits until a function is used.
    if name in __all__:
        home = "planning" if name == "Request" else "api"
        return getattr(importlib.import_module(f"comatch.{home}"), name)
    raise AttributeError(f"module 'comatch' has no attribute '{name}'")
