"""What several ranks must agree on before they train together."""

from comatch import distributed
from comatch.config import to_json
from comatch.data import splits
from comatch.errors import UserError
from comatch.training.recipe import Recipe
from comatch.training.run_folder import RunFolder
from comatch.types import Dataset


def check_same(folder: RunFolder, recipe: Recipe, dataset: Dataset) -> None:
    """Stop all ranks unless each has the same images, settings and run folder."""
    if distributed.world() == 1:
        return
    there = folder.checkpoint.exists()
    everyone = distributed.collect(
        {
            "data": (len(dataset.train), dataset.classes, splits.fingerprint(dataset.train)),
            "settings": to_json(recipe),
            "folder": (str(folder.path.absolute()), folder.exists(), there),
            "checkpoint": folder.checkpoint.stat().st_size if there else 0,
        }
    )
    first = everyone[0]
    for rank, seen in enumerate(everyone):
        if seen["data"] != first["data"]:
            raise UserError(
                f"process {rank} sees other images than process 0 ({seen['data'][0]} for "
                f"training, not {first['data'][0]}, or other classes, labels or pixels): all "
                "must read the same data"
            )
        if seen["settings"] != first["settings"]:
            raise UserError(f"process {rank} has other settings than process 0: start all alike")
        if seen != first:
            raise UserError(
                f"process {rank} sees another run folder than process 0: --out must lie on a "
                "disk that all machines share"
            )
