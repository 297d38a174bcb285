"""Compare the fused convolutions with cuDNN's and the batch-norm kernels that these need.

    python benchmarks/kernels.py benchmarks/kernels-h200.json

For the two shapes that `comatch.kernels.conv` supports, with the 1,408 images of a CoMatch step on
CIFAR-10: microseconds of a call, the median of several replays of a CUDA graph of ten calls.
"""

import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from comatch.files import write_json
from comatch.kernels import conv, norm
from comatch.training.environment import environment

IMAGES, SIZE, SLOPE, CALLS = 1408, 32, 0.1, 10
GPU = torch.device("cuda")


def microseconds(work: Callable[[], object]) -> float:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            work()
    times = []
    for _ in range(9):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1000 * begin.elapsed_time(end) / CALLS)
    return round(statistics.median(times), 1)


def images(channels: int) -> Tensor:
    x = torch.randn(IMAGES, channels, SIZE, SIZE, device=GPU, dtype=torch.bfloat16)
    return x.contiguous(memory_format=torch.channels_last)


def compare(into: int, out: int) -> dict[str, float | str]:
    x, dy, beside = images(into), images(out), images(out)
    weight = torch.randn(out, into, 3, 3, device=GPU).contiguous(memory_format=torch.channels_last)
    low, coef, k = (
        weight.bfloat16(),
        torch.rand(2, into, device=GPU),
        torch.rand(3, into, device=GPU),
    )

    def gradient(of_input: bool) -> object:
        wanted = [of_input, not of_input, False]
        return torch.ops.aten.convolution_backward(
            dy, x, low, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, wanted
        )

    fused = {
        "forward": lambda: conv.forward(x, coef, weight, SLOPE),
        "forward, residual": lambda: conv.forward(x, coef, weight, SLOPE, beside),
        "input gradient": lambda: conv.backward_input(dy, x, coef, weight, SLOPE),
        "weight gradient": lambda: conv.backward_weight(dy, x, coef, SLOPE),
    }
    cudnn = {
        "forward": lambda: torch.conv2d(x, low, padding=1),
        "input gradient": lambda: gradient(True),
        "weight gradient": lambda: gradient(False),
    }
    passes = {
        "sums of the output": lambda: norm.moments(beside),
        "sums, residual": lambda: norm.moments(dy, beside),
        "norm and activation": lambda: norm.apply(x, coef, SLOPE),
        "sums of the gradient": lambda: norm.backward_sums(x, x, coef, SLOPE),
        "norm backward": lambda: norm.backward_apply(x, x, coef, k, SLOPE),
    }
    row: dict[str, float | str] = {"convolution": f"{into} to {out} channels, {SIZE} px"}
    for name, works in (("fused", fused), ("cudnn", cudnn), ("pass", passes)):
        row |= {f"{name}: {what}": microseconds(work) for what, work in works.items()}
    return row


if __name__ == "__main__":
    rows = [compare(16, 32), compare(32, 32)]
    for row in rows:
        print("\n".join(f"{name:32}{value:>24}" for name, value in row.items()), end="\n\n")
    if len(sys.argv) > 1:
        write_json(Path(sys.argv[1]), {"environment": environment(GPU), "microseconds": rows})
