"""How the C library keeps the memory of a process that computes on the CPU."""

import ctypes
import sys

TRIM_THRESHOLD, MMAP_MAX = -1, -4  # as <malloc.h> of glibc numbers them


def keep_freed_memory() -> None:
    """Memory that a tensor leaves behind is taken by the next instead of going back to the system.

    glibc maps every block above 32 MiB anew, and the system clears each of its pages when it is
    first written: activations of a large batch then cost more to get than to compute. Other C
    libraries are left as they are.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(MMAP_MAX, 0)
        mallopt(TRIM_THRESHOLD, 2**31 - 1)
