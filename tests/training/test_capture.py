"""When a step is captured as a CUDA graph, with a simulated GPU; and the choice of an engine."""

import contextlib
import threading
import warnings
from types import SimpleNamespace

import pytest
import torch

from comatch.training.capture import EAGER_STEPS, Captured, choose_engine


def test_choosing_an_engine():
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert choose_engine("auto", cpu) == "eager"
    assert choose_engine("auto", cuda) == choose_engine("captured", cuda) == "captured"
    assert choose_engine("compiled", cpu) == "compiled"
    with pytest.warns(UserWarning, match="only a step on a GPU can be captured"):
        assert choose_engine("captured", cpu) == "eager"


class SimulatedGpu:
    """Counts direct, recorded and replayed steps."""

    def __init__(self, monkeypatch, capturable=True, waits=False):
        self.capturable, self.waits = capturable, waits
        self.mode = "default"
        self.capturing = False
        self.direct = self.recorded = self.replayed = 0
        nothing = SimpleNamespace(wait_stream=lambda stream: None)
        monkeypatch.setattr(torch.cuda, "Stream", lambda: nothing)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: nothing)
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=self.replay))
        monkeypatch.setattr(torch.cuda, "graph", self.graph)
        monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: self.mode)
        monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", self.set_mode)

    def set_mode(self, mode):
        self.mode = mode

    @contextlib.contextmanager
    def graph(self, graph, stream, capture_error_mode):
        self.capturing = True
        try:
            yield
        finally:
            self.capturing = False

    def take(self):
        if self.waits and self.mode == "warn":
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        if not self.capturing:
            self.direct += 1
            return
        self.recorded += 1
        if not self.capturable:
            raise RuntimeError("operation not permitted when stream is capturing\nDetails follow.")

    def replay(self):
        self.replayed += 1

    def run(self, count):
        """Call a step several times; each call must take exactly one step."""
        step = Captured(self.take)
        for call in range(1, count + 1):
            step()
            assert self.direct + self.replayed == call


def test_steps_are_captured_once_and_replayed(monkeypatch):
    gpu = SimulatedGpu(monkeypatch)
    gpu.run(10)
    assert gpu.mode == "default"
    assert (gpu.direct, gpu.recorded, gpu.replayed) == (EAGER_STEPS, 1, 10 - EAGER_STEPS)


def test_a_failed_capture_is_tried_once_and_reported_in_one_line(monkeypatch):
    gpu = SimulatedGpu(monkeypatch, capturable=False)
    with pytest.warns(UserWarning, match="cannot be captured") as said:
        gpu.run(10)
    assert len(said) == 1
    assert "\n" not in str(said[0].message)
    assert (gpu.direct, gpu.recorded, gpu.replayed) == (10, 1, 0)


def test_a_step_that_waits_for_the_gpu_is_never_captured(monkeypatch):
    gpu = SimulatedGpu(monkeypatch, waits=True)
    with pytest.warns(UserWarning, match=r"cannot be captured.*waits for the GPU") as said:
        gpu.run(10)
    assert len(said) == 1
    assert gpu.mode == "default"
    assert (gpu.direct, gpu.recorded, gpu.replayed) == (10, 0, 0)


def test_other_threads_may_wait_for_the_gpu(monkeypatch):
    """Threads that prepare the next batches do so, and the step is captured all the same."""
    gpu = SimulatedGpu(monkeypatch, waits=True)
    take = gpu.take

    def with_another_thread():
        gpu.waits = True
        thread = threading.Thread(target=take)
        thread.start()
        thread.join()
        gpu.waits, gpu.direct = False, gpu.direct - (not gpu.capturing)
        take()

    gpu.take = with_another_thread
    gpu.run(10)
    assert gpu.replayed == 10 - EAGER_STEPS
