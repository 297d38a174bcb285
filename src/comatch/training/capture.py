"""Running the step as one captured CUDA graph, where that is possible."""

import threading
import warnings
from collections.abc import Callable

import torch

from comatch import distributed

EAGER_STEPS = 3  # steps before the capture: they create gradients, momentum and kernels


class Captured:
    """Runs a few steps directly, records the next as a CUDA graph, and replays it from then on.

    The last direct step is watched: one that waits for the device cannot be captured, and a failed
    capture may leave the device in a bad state, so it is not tried.
    """

    def __init__(self, take: Callable[[], None]) -> None:
        self.take = take
        self.taken = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.stream = torch.cuda.Stream()
        self.reason = ""  # why the step is not captured

    def __call__(self) -> None:
        if self.graph is None and self.taken == EAGER_STEPS and not self.reason:
            self._capture()
        if self.graph is not None:
            self.graph.replay()
            return
        # A capture needs warm-up steps on a side stream.
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self._watch() if self.taken == EAGER_STEPS - 1 else self.take()
        torch.cuda.current_stream().wait_stream(self.stream)
        self.taken += 1

    def _watch(self) -> None:
        before, messages = torch.cuda.get_sync_debug_mode(), list[str]()
        this_thread = threading.get_ident()

        def collect(message: Warning | str, *_: object) -> None:
            if threading.get_ident() == this_thread:  # reader threads may wait
                messages.append(str(message))

        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = collect  # type: ignore[assignment]
            torch.cuda.set_sync_debug_mode("warn")
            try:
                self.take()
            finally:
                torch.cuda.set_sync_debug_mode(before)
        if any("synchronizing CUDA operation" in message for message in messages):
            self._give_up("it waits for the GPU")

    def _capture(self) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            # Capture this thread only: reader threads prepare the next batches meanwhile.
            mode = "thread_local"
            with torch.cuda.graph(graph, stream=self.stream, capture_error_mode=mode):
                self.take()
        except RuntimeError as error:
            self._give_up(str(error).splitlines()[0])
            return
        self.graph = graph

    def _give_up(self, reason: str) -> None:
        self.reason = reason
        warnings.warn(f"the step cannot be captured, it runs compiled: {reason}", stacklevel=2)


def choose_engine(engine: str, device: torch.device) -> str:
    """On a GPU the step is captured; on a CPU compiling costs more than a short run gains.

    Communication between ranks is not captured: with several of them the step is compiled.
    """
    alone = distributed.world() == 1
    if engine == "auto":
        return "eager" if device.type != "cuda" else "captured" if alone else "compiled"
    if engine == "captured" and device.type != "cuda":
        warnings.warn("only a step on a GPU can be captured: it runs eagerly", stacklevel=2)
        return "eager"
    if engine == "captured" and not alone:
        warnings.warn("a step of several ranks cannot be captured: it runs compiled", stacklevel=2)
        return "compiled"
    return engine
