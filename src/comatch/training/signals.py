"""Stopping a run between two steps, on Ctrl-C or when a batch system sends SIGTERM."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """Whether a stop was requested."""

    def __init__(self) -> None:
        self.asked = False

    def ask(self, number: int, frame: FrameType | None) -> None:
        # A second Ctrl-C stops at once. SIGTERM may come twice: from torchrun and from its parent.
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True


@contextmanager
def stoppable() -> Iterator[StopRequest]:
    """Turn Ctrl-C and SIGTERM into a request that the loop answers between two steps."""
    request = StopRequest()
    try:
        before = {n: signal.signal(n, request.ask) for n in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # only the main thread may handle signals
        yield request
        return
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
