"""What a step is compared with: the limits of the machine, and a reference implementation.

Floating-point operations are those of convolutions and matrix products, forward and backward.
Minimum memory traffic is that of the layers' activations, summed over convolutions and linear
layers, in elements:

    forward     read the input, write the output
    backward    read the output's gradient and the input, write the input's gradient (if needed)

Fusing other operations into the layers cannot avoid it. Weights, optimiser and augmentation are
left out. Both are counted on the reference implementation, whose modules are PyTorch's own. Bytes
are those of the data type in which the measured network computes.
"""

import statistics
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from comatch.augment.batch import AugmentBatch
from comatch.commands.bench.stages import (
    Work,
    build_prepared,
    calls_per_repetition,
    time_alternately,
)
from comatch.config import replace
from comatch.data.splits import Split
from comatch.training.build import Built
from comatch.training.recipe import Recipe
from comatch.types import Dataset


def build_reference(recipe: Recipe, dataset: Dataset, split: Split, device: torch.device) -> Built:
    """The same step in plain PyTorch: eager, float32, images as [N, C, H, W] in memory."""
    plain = replace(recipe, engine="eager", precision="fp32")
    run = build_prepared(plain, dataset, split, device)
    run.method.to(memory_format=torch.contiguous_format)
    if isinstance(run.feed.augment, AugmentBatch):
        run.feed.augment.memory_format = torch.contiguous_format
    return run


def float32_settings(device: torch.device) -> dict[str, str]:
    """Whether PyTorch uses TF32 for float32 on this GPU. `bench` does not change these settings."""
    if device.type != "cuda":
        return {}
    return {
        "fp32_convolutions": torch.backends.cudnn.conv.fp32_precision,  # type: ignore[attr-defined]
        "fp32_products": torch.backends.cuda.matmul.fp32_precision,
    }


def count(run: Built) -> tuple[int, int]:
    """Floating-point operations of a step, and the elements that it moves at least."""
    elements = 0

    def add(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal elements
        read, written = inputs[0].numel(), output.numel()
        elements += read + written
        if output.requires_grad:
            elements += written + read + (read if inputs[0].requires_grad else 0)

    layers = [m for m in run.method.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    hooks = [layer.register_forward_hook(add) for layer in layers]
    run.feed.before_step(0)
    batch, _ = run.feed.next()
    with FlopCounterMode(display=False) as counter:
        run.method(batch).loss.backward()
    for hook in hooks:
        hook.remove()
    return counter.get_total_flops(), elements


def ceilings(device: torch.device, precision: str) -> dict[str, Any]:
    """Limits of this machine: a matrix product in the step's precision, and a copy."""
    gpu, dtype = device.type == "cuda", torch.bfloat16 if precision == "bf16" else torch.float32
    side = 8192 if gpu else 1280
    size = min(2**31, torch.cuda.mem_get_info(device)[0] // 4) if gpu else 2**28  # bytes
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    product = torch.empty_like(a)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    operations, moved = 2 * side**3, 2 * size  # a copy reads and writes each byte
    return {
        "tflop_per_s": operations / 1e12 / seconds(lambda: torch.mm(a, b, out=product), device),
        "product": f"{precision} product, side {side:,}",
        "tb_per_s": moved / 1e12 / seconds(lambda: target.copy_(source), device),
        "copy": f"copy of {size // 2**20:,} MiB",
    }


def seconds(work: Work, device: torch.device) -> float:
    """The median of several calls after a warm-up."""
    work()
    calls = calls_per_repetition(work, device)
    return statistics.median(time_alternately({"": work}, calls, device)[""]) / 1000
