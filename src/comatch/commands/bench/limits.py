"""What a step is compared with: the machine's own limits, and the plain twin of the step.

Operations are those of convolutions and matrix products, forward and backward. Least traffic is
what no fusion around the layers can avoid as long as activations go through memory between them.
Summed over convolutions and linear layers, in elements:

    forward     input + output             read, written
    backward    output + input + input     gradient read, input read, its gradient written (if any)

Weights, optimiser and augmentation are left out. Both are counted on the twin, whose modules are
PyTorch's own; bytes are those of the type that the measured network computes in.
"""

import statistics
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from comatch.commands.bench.stages import Work, calls_to_fill, time_parts
from comatch.config import Recipe, replace
from comatch.data.splits import Split
from comatch.training.build import Assembly, assemble
from comatch.types import Dataset


def assemble_twin(recipe: Recipe, dataset: Dataset, split: Split, device: torch.device) -> Assembly:
    """The same step as plain PyTorch would have it: eager, float32, images as [N, C, H, W]."""
    plain = replace(recipe, engine="eager", precision="fp32")
    run = assemble(plain, dataset, split, device)
    run.method.to(memory_format=torch.contiguous_format)
    run.step.memory_format = torch.contiguous_format
    return run


def tf32_flags(device: torch.device) -> dict[str, str]:
    """What PyTorch calls float32 on this GPU: bench leaves the flags as it finds them."""
    if device.type != "cuda":
        return {}
    return {
        "fp32_convolutions": torch.backends.cudnn.conv.fp32_precision,  # type: ignore[attr-defined]
        "fp32_products": torch.backends.cuda.matmul.fp32_precision,
    }


def count(run: Assembly) -> tuple[int, int]:
    """Floating-point operations of a step, and elements that it must at least move."""
    elements = 0

    def look(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal elements
        read, written = inputs[0].numel(), output.numel()
        elements += read + written
        if output.requires_grad:
            elements += written + read + (read if inputs[0].requires_grad else 0)

    layers = [m for m in run.method.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    hooks = [layer.register_forward_hook(look) for layer in layers]
    run.data.before_step(0)
    batch, _ = run.step.draw()
    with FlopCounterMode(display=False) as counter:
        run.method(batch).loss.backward()
    for hook in hooks:
        hook.remove()
    return counter.get_total_flops(), elements


def ceilings(device: torch.device, precision: str) -> dict[str, Any]:
    """What this machine can do: a matrix product in the step's precision, and a copy."""
    gpu, kind = device.type == "cuda", torch.bfloat16 if precision == "bf16" else torch.float32
    side = 8192 if gpu else 1280
    size = min(2**31, torch.cuda.mem_get_info(device)[0] // 4) if gpu else 2**28  # bytes
    a, b = (torch.randn(side, side, device=device).to(kind) for _ in range(2))
    product = torch.empty_like(a)
    here = torch.ones(size, dtype=torch.uint8, device=device)
    there = torch.zeros_like(here)
    operations, moved = 2 * side**3, 2 * size  # what is copied is read and written
    return {
        "tflop_per_s": operations / 1e12 / seconds(lambda: torch.mm(a, b, out=product), device),
        "product": f"{precision} product, side {side:,}",
        "tb_per_s": moved / 1e12 / seconds(lambda: there.copy_(here), device),
        "copy": f"copy of {size // 2**20:,} MiB",
    }


def seconds(work: Work, device: torch.device) -> float:
    """The median of several, after a first call that does not count."""
    work()
    calls = calls_to_fill(work, device)
    return statistics.median(time_parts({"": work}, calls, device)[""]) / 1000
