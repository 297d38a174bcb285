"""What `torchrun` tells its processes in environment variables, read without importing torch."""

import os

VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def several() -> bool:
    """Whether this is one of several processes that torchrun started."""
    return all(name in os.environ for name in VARIABLES) and os.environ["WORLD_SIZE"] != "1"


def rank() -> int:
    """The number of this process among all."""
    return int(os.environ["RANK"]) if several() else 0


def local_rank() -> int:
    """The number of this process among those on this machine."""
    return int(os.environ["LOCAL_RANK"]) if several() else 0


def on_this_machine() -> int:
    """The number of processes that share the cores of this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def restarts() -> int:
    """How often torchrun has restarted all processes because one failed."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
