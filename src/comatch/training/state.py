"""The state of a run: saved into its checkpoint, and restored from it.

A checkpoint holds once what all ranks share (weights, memory, order of the images), and for each
rank its random state and metrics. If another number of ranks resumes the run, the random states
cannot be restored: the run continues with a warning.
"""

import warnings
from typing import Any

import torch

from comatch import distributed
from comatch.errors import UserError
from comatch.training import checkpoint
from comatch.training.build import Built
from comatch.training.run_folder import RunFolder


def save(folder: RunFolder, run: Built, step: int, seconds: float, position: int) -> None:
    """Save all that the next step depends on; of several ranks, the first writes it."""
    own = {"meter": run.step.meter.state_dict(), "random": checkpoint.random_state()}
    first, *others = distributed.collect(own)
    state = {
        "step": step,
        "seconds": seconds,
        "journal": position,
        "method": run.method.state_dict(),
        "optimizer": run.step.optimizer.state_dict(),
        "data": run.feed.state_dict(),
        **first,
        "others": others,
    }
    checkpoint.save(folder.checkpoint, state)


def restore(folder: RunFolder, run: Built) -> tuple[int, float, int]:
    """Restore the last checkpoint if there is one; return step, seconds and journal position."""
    if not folder.checkpoint.exists():
        return 0, 0.0, 0
    state = checkpoint.load(folder.checkpoint)
    try:
        run.method.load_state_dict(state["method"])
        run.feed.load_state_dict(state["data"])
        run.step.load_optimizer(state["optimizer"])
        restore_rank(run, [state, *state.get("others", [])], state["step"])
    except (LookupError, RuntimeError, TypeError, AttributeError, ValueError):
        raise UserError(
            f"{folder.checkpoint} is of another version or another run: start with another --out"
        ) from None
    return state["step"], state["seconds"], state["journal"]


def restore_rank(run: Built, states: list[dict[str, Any]], step: int) -> None:
    """Restore this rank's random state and metrics."""
    before, now, rank = len(states), distributed.world(), distributed.rank()
    if rank < before:
        checkpoint.set_random_state(states[rank]["random"])
    else:
        distributed.seed(run.recipe.seed, step)
    meter = states[min(rank, before - 1)]["meter"]
    if before != now:
        sums = torch.stack([state["meter"]["sums"] for state in states]).mean(0)
        meter = {**meter, "sums": sums}
        warnings.warn(
            f"this run was saved by {before} processes and continues with {now}: weights, memory "
            "and the order of images are restored, but augmentation draws other random numbers",
            stacklevel=2,
        )
    run.step.meter.load_state_dict(meter, run.mean.device)
