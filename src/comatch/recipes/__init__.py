"""What to run: one function a setting.

A recipe takes the name of a method and gives a `Recipe`; its docstring promises command, cost and
result. A new one is a function in a file of this folder, and a line in the list below.
"""

from collections.abc import Callable

from comatch.config import Recipe, check_name
from comatch.recipes.cifar10 import cifar10, cifar10_fast
from comatch.recipes.digits import digits
from comatch.recipes.folder import folder, folder_gpu, folder_pretrained
from comatch.recipes.imagenet import imagenet_1pct, imagenet_10pct, tiny_imagenet
from comatch.recipes.stl10 import stl10

RECIPES: dict[str, Callable[[str], Recipe]] = {
    "digits": digits,
    "cifar10": cifar10,
    "cifar10-fast": cifar10_fast,
    "stl10": stl10,
    "folder": folder,
    "folder-pretrained": folder_pretrained,
    "folder-gpu": folder_gpu,
    "imagenet-1pct": imagenet_1pct,
    "imagenet-10pct": imagenet_10pct,
    "tiny-imagenet": tiny_imagenet,
}
MANY_CLASSES = ("imagenet-1pct", "imagenet-10pct", "tiny-imagenet")


def get(name: str, method: str | None = None) -> Recipe:
    """The recipe for this method; left out, it is CoMatch in the form for so many classes."""
    check_name(name, RECIPES, "recipe")
    form = "comatch_momentum" if name in MANY_CLASSES else "comatch"
    return RECIPES[name](method or form)


def default_for(data: str, gpu: bool) -> str:
    """The recipe of the data set's name; for anything else the one for folders."""
    if data in RECIPES:
        return data
    return "folder-gpu" if gpu else "folder"
