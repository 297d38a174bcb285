"""The device that computes: which one, how precisely, and how much of its memory is in use."""

import gc
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from comatch import distributed
from comatch.allocator import keep_freed_memory
from comatch.errors import UserError

DEVICES = ("auto", "cpu", "cuda", "mps")


def choose_device(device: str) -> torch.device:
    """The device of this name. "auto" is a CUDA GPU if there is one, else the CPU.

    Each of several ranks gets a GPU of its own. Apple's GPU, "mps", is used only on request.
    """
    if device not in DEVICES:
        raise UserError(f"unknown device '{device}': use {', '.join(DEVICES)}")
    gpu = torch.cuda.is_available()
    if device == "cuda" and not gpu:
        raise UserError("no CUDA GPU can be used here: use --device cpu, or auto")
    if device == "mps":
        if not torch.backends.mps.is_available():
            raise UserError("no Apple GPU can be used here: use --device cpu, or auto")
        if distributed.world() > 1:
            raise UserError("several processes cannot share an Apple GPU: use --device cpu")
        return torch.device("mps")
    if gpu and device != "cpu":
        return distributed.device()
    keep_freed_memory()
    return torch.device("cpu")


def choose_precision(precision: str, device: torch.device) -> str:
    """What "auto" means here. A run records it and keeps it, wherever it is continued."""
    return precision if precision != "auto" else "bf16" if has_bf16(device) else "fp32"


def has_bf16(device: torch.device) -> bool:
    """Whether the hardware computes in bf16, so that it is faster than float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "mps":
        return False
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def synchronize(device: torch.device) -> float:
    """Wait until the device has finished its work; return the time."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter()


def peak_memory_mb(device: torch.device) -> int | None:
    """Peak memory of the GPU, or without one of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) // 2**20
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit // 2**20


def reset_peak_memory(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def free_memory(device: torch.device) -> None:
    """Release everything a finished run holds, so that the next starts as the first did."""
    gc.collect()  # a step and its graph refer to each other
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()  # or it stops compiling a function after eight runs
    if device.type == "cuda":
        torch.cuda.empty_cache()
    reset_peak_memory(device)


@contextmanager
def threads(number: int | None) -> Iterator[None]:
    """With so many threads of the CPU; None changes nothing."""
    if number is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
