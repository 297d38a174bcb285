"""A CPU run keeps the memory that its tensors leave behind."""

import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import torch
from comatch import api

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

if len(sys.argv) > 1:
    api.choose_device(sys.argv[1])
torch.set_num_threads(1)
given = torch.ones(12 << 20)  # 48 MiB: above what the C library keeps by itself
for _ in range(3):
    given + given
before = faults()
for _ in range(10):
    given + given
print(faults() - before)
"""


def page_faults(*device):
    run = [sys.executable, "-c", FAULTS, *device]
    return int(subprocess.run(run, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="other C libraries are left as they are")
def test_a_tensor_takes_the_memory_that_the_last_one_left():
    by_itself = page_faults()
    if by_itself < 1000:
        pytest.skip("this C library keeps memory by itself")
    assert page_faults("cpu") < by_itself / 4  # none, or once more for a block that was split
