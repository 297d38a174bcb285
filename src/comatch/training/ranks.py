"""What ranks agree on before they train together, and what each of them keeps for itself.

A checkpoint holds what all ranks share once (weights, memory, order of the images), and each
rank's random state and sums. With another number of ranks, those cannot go back to where they were:
the run goes on, and says so.
"""

import warnings
from typing import Any

import torch

from comatch import distributed
from comatch.config import Recipe, to_json
from comatch.data import splits
from comatch.errors import UserError
from comatch.training import checkpoint
from comatch.training.build import Assembly
from comatch.training.run_folder import RunFolder
from comatch.types import Dataset


def check_same(folder: RunFolder, recipe: Recipe, dataset: Dataset) -> None:
    """Every rank must see the same images, settings and run folder, or all of them stop."""
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


def own_states(run: Assembly) -> list[dict[str, Any]]:
    """What each rank keeps for itself, in the order of ranks."""
    own = {"meter": run.step.meter.state_dict(), "random": checkpoint.random_state()}
    return distributed.collect(own)


def restore_own(run: Assembly, states: list[dict[str, Any]], seed: int, step: int) -> None:
    before, now, rank = len(states), distributed.world(), distributed.rank()
    if rank < before:
        checkpoint.set_random_state(states[rank]["random"])
    else:
        distributed.seed(seed, step)
    meter = states[min(rank, before - 1)]["meter"]
    if before != now:
        sums = torch.stack([state["meter"]["sums"] for state in states]).mean(0)
        meter = {**meter, "sums": sums}
        warnings.warn(
            f"this run was saved by {before} processes and goes on with {now}: weights, memory and "
            "the order of images go on as they were, but augmentation draws other random numbers",
            stacklevel=2,
        )
    run.step.meter.load_state_dict(meter, run.mean.device)
