"""On the CPU, a new tensor reuses the memory of freed ones."""

import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import torch
from comatch.device import choose_device

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

if len(sys.argv) > 1:
    choose_device(sys.argv[1])
torch.set_num_threads(1)
ones = torch.ones(12 << 20)  # 48 MiB: more than the C library keeps by default
for _ in range(3):
    ones + ones
before = faults()
for _ in range(10):
    ones + ones
print(faults() - before)
"""


def page_faults(*device):
    run = [sys.executable, "-c", FAULTS, *device]
    return int(subprocess.run(run, check=True, capture_output=True, text=True).stdout)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other C libraries are not configured")
def test_freed_memory_is_reused():
    default = page_faults()
    if default < 1000:
        pytest.skip("this C library keeps memory by default")
    assert page_faults("cpu") < default / 4  # none, or a few for a block that was split
