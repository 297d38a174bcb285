"""Checkpoints: tensors and plain values in one file, and the state of the random generators."""

from pathlib import Path
from typing import Any

import torch

from comatch import weights
from comatch.errors import UserError
from comatch.files import write_file


def save(path: Path, state: dict[str, Any]) -> None:
    write_file(path, lambda file: torch.save(state, file))


def load(path: Path) -> dict[str, Any]:
    """Tensors and plain values only: nothing in the file is executed."""
    try:
        state = weights.read(path)
        if not isinstance(state, dict):
            raise ValueError("not a checkpoint")
    except Exception as error:  # a damaged file can cause any error
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"{path} is damaged ({reason}): start again with another --out, with --init "
            f"{path.parent} to begin with the weights of this run"
        ) from None
    return state


def random_state() -> dict[str, torch.Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    if torch.backends.mps.is_available():
        state["mps"] = torch.mps.get_rng_state()
    return state


def set_random_state(state: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    if "mps" in state and torch.backends.mps.is_available():
        torch.mps.set_rng_state(state["mps"])
