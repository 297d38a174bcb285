"""Settings that the other methods' papers have on CIFAR-10 and STL-10.

The CoMatch paper trains them for 1,024 epochs, twice as long as CoMatch, with one network,
optimiser and learning rate for all (section 4.1). Settings that are the same on every data set are
in each method's `Config`.
"""

from typing import Any

from comatch.config import replace
from comatch.training.recipe import Recipe

EPOCH = 1024  # steps
RAMP = 16_000 / (1024 * EPOCH)  # MixMatch and ReMixMatch: the first 16,000 steps
OWN: dict[str, dict[str, Any]] = {
    "remixmatch": {"mu": 1, "ramp": RAMP},
    "mixmatch": {"mu": 1, "ramp": RAMP},
    "vat": {"mu": 1},
    "s4l_rotation": {"mu": 1},
    "label_propagation": {"mu": 1},
    "mean_teacher": {"mu": 1},
    "temporal_ensembling": {"mu": 1},
    "pi_model": {"mu": 1},
    "pseudo_label": {"mu": 1},
}
ON_STL10: dict[str, dict[str, Any]] = {"mixmatch": {"lambda_u": 50.0}}


def with_published_settings(recipe: Recipe) -> Recipe:
    """The recipe with the settings of its method's own paper."""
    name = recipe.method.method
    if name.startswith("comatch") or name.endswith(".py"):
        return recipe
    special = ON_STL10.get(name, {}) if recipe.dataset.data == "stl10" else {}
    return replace(recipe, steps=1024 * EPOCH, **OWN.get(name, {}) | special)
