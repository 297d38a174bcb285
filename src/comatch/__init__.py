"""comatch: an image classifier from a handful of labels and many unlabelled images."""

import importlib
import time
from typing import TYPE_CHECKING, Any

from comatch import compiler_cache as cache

if TYPE_CHECKING:
    from comatch.api import evaluate, load, train
    from comatch.commands.compare import compare
    from comatch.commands.cross_validation import cross_validate
    from comatch.commands.export import export

__version__ = "0.1.0"
BORN = time.perf_counter()  # start-up is counted from here: torch is not imported yet
__all__ = ["compare", "cross_validate", "evaluate", "export", "load", "train"]

cache.share_with_compilers()  # here, before torch's compiler settles on a place of its own


ROOMS = {  # where they live, if not in api
    "compare": "comparison",
    "cross_validate": "folds",
    "export": "portable",
}


def __getattr__(name: str) -> Any:
    # Importing torch takes seconds; `comatch --help` should not.
    if name in __all__:
        return getattr(importlib.import_module(f"comatch.{ROOMS.get(name, 'api')}"), name)
    raise AttributeError(f"module 'comatch' has no attribute '{name}'")
