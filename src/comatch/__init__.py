"""comatch: an image classifier from a handful of labels and many unlabelled pictures."""

import time
from typing import TYPE_CHECKING, Any

from comatch import cache

if TYPE_CHECKING:
    from comatch.api import evaluate, load, train
    from comatch.comparison import compare

__version__ = "0.1.0"
BORN = time.perf_counter()  # start-up is counted from here: torch is not imported yet
__all__ = ["compare", "evaluate", "load", "train"]

cache.share_with_compilers()  # here, before torch's compiler settles on a place of its own


def __getattr__(name: str) -> Any:
    # Importing torch takes seconds; `comatch --help` should not.
    if name == "compare":
        from comatch import comparison

        return comparison.compare
    if name in __all__:
        from comatch import api

        return getattr(api, name)
    raise AttributeError(f"module 'comatch' has no attribute '{name}'")
