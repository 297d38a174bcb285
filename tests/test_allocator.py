"""On the CPU, a new tensor reuses the memory of freed ones."""

import subprocess
import sys

import pytest

FAULTS = """
import resource
import torch
from comatch.device import choose_device

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        ones + ones
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

torch.set_num_threads(1)
ones = torch.ones(12 << 20)  # 48 MiB: more than the C library keeps by default
default = faults()
choose_device("cpu")
faults(), faults()  # the first blocks may be split by small allocations
print(default, faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other C libraries are not configured")
def test_freed_memory_is_reused():
    run = subprocess.run([sys.executable, "-c", FAULTS], check=True, capture_output=True, text=True)
    default, configured = map(int, run.stdout.split())
    if default < 1000:
        pytest.skip("this C library keeps memory by default")
    assert configured < default / 4
