"""The version, and when the package was imported. It needs no other module."""

import time

__version__ = "0.2.0"

IMPORTED = time.perf_counter()  # start-up time is measured from here, before torch is imported
