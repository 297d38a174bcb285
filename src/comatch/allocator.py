"""The C library's allocator, configured for a process that computes on the CPU."""

import ctypes
import sys

TRIM_THRESHOLD, MMAP_MAX = -1, -4  # from <malloc.h> of glibc


def keep_freed_memory() -> None:
    """Let new tensors reuse the memory of freed ones, instead of returning it to the system.

    glibc maps each block above 32 MiB anew, and the system clears every page of it at the first
    write. For the activations of a large batch, that takes longer than computing them. Other C
    libraries are left as they are.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(MMAP_MAX, 0)
        mallopt(TRIM_THRESHOLD, 2**31 - 1)
