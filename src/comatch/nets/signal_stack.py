"""Keeps a library from leaving a signal stack behind.

OpenVINO gives the calling thread an alternate stack for signals, and frees its memory later. The
next signal that Python handles, such as Ctrl-C, would then be delivered into freed memory.
"""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class Stack(ctypes.Structure):
    """`stack_t` of the C library, on Linux."""

    _fields_ = (("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@contextmanager
def kept() -> Iterator[None]:
    """Give this thread its alternate stack for signals back, if it has one, or none."""
    if sys.platform != "linux":
        yield
        return
    library, before = ctypes.CDLL(None), Stack()
    library.sigaltstack(None, ctypes.byref(before))
    try:
        yield
    finally:
        library.sigaltstack(ctypes.byref(before), None)
