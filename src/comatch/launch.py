"""What `torchrun` tells a process that it starts; known without importing torch."""

import os

TOLD = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def several() -> bool:
    """Whether this is one of several processes that belong together."""
    return all(name in os.environ for name in TOLD) and os.environ["WORLD_SIZE"] != "1"


def rank() -> int:
    """Which of them this is."""
    return int(os.environ["RANK"]) if several() else 0


def local_rank() -> int:
    """Which of those on this machine."""
    return int(os.environ["LOCAL_RANK"]) if several() else 0


def on_this_machine() -> int:
    """How many of them share this machine's cores."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def restarts() -> int:
    """How often torchrun started all of them again because one had failed."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
