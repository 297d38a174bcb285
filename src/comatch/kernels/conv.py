"""The 3x3 convolutions of `conv3x3.cu`, compiled for the shapes that are used.

They are CUDA C++ and not Triton, because all nine taps read one tile in shared memory at offsets
that Triton cannot address. NVRTC, a part of PyTorch, compiles them: no CUDA toolkit is needed.
"""

import functools
from pathlib import Path
from typing import Any

import torch
import torch.cuda._utils as nvrtc
from torch import Tensor

from comatch import compiler_cache as cache
from comatch.kernels.norm import add_parts, table

SOURCE = Path(__file__).with_name("conv3x3.cu")
TEAMS, WARPS, ROWS = 4, 4, 8  # teams of a block, warps of a team, rows of a tile
STAGGER = 1500  # ns
# PyTorch's loader of kernels is private. Older versions have other names and other results.
LOADS_KERNELS = torch.torch_version.TorchVersion(torch.__version__) >= "2.11"


@functools.cache
def _kernel(name: str, device: torch.device, shared: int, **defined: Any) -> Any:
    header = "".join(f"#define {key} {value}\n" for key, value in defined.items())
    source = header + SOURCE.read_text()
    major, minor = torch.cuda.get_device_capability(device)
    key = f"{torch.version.cuda} sm_{major}{minor} {name}\n{source}"
    binary = cache.cached(key, lambda: nvrtc._nvrtc_compile(source, name)[0])
    kernels: Any = nvrtc._cuda_load_module(binary, [name])
    kernel = kernels[name]
    kernel.set_shared_memory_config(shared)
    return kernel


def _tile(channels: int, rows: int, width: int) -> int:
    """Bytes of a tile in shared memory, padded as in the source."""
    pixels = rows * width
    return channels * 2 * (pixels + (10 - pixels % 8) % 8)


@functools.cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def fits(x: Tensor, weight: Tensor, stride: int) -> bool:
    """Whether these kernels support the convolution, and the GPU supports these kernels."""
    size_fits = x.shape[-1] == x.shape[-2] == 32
    return size_fits and stride == 1 and made_for(weight) and x.is_cuda and _able(x.device)


def made_for(weight: Tensor) -> bool:
    return tuple(weight.shape) in ((32, 16, 3, 3), (32, 32, 3, 3))


@functools.cache
def _able(device: torch.device) -> bool:
    if not LOADS_KERNELS:
        return False
    gpu = torch.cuda.get_device_properties(device)
    most = TEAMS * (_tile(32, ROWS + 2, 34) + _tile(32, ROWS, 32))
    return gpu.major >= 8 and gpu.shared_memory_per_block_optin >= most


def forward(
    x: Tensor, coef: Tensor, weight: Tensor, slope: float, residual: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """conv(leaky(scale x + shift)) (+ residual), and its partial sums [blocks, 2, C]."""
    return _conv(x, coef, weight, slope, residual, weight.shape[0], False)


def backward_input(
    dy: Tensor, x: Tensor, coef: Tensor, weight: Tensor, slope: float
) -> tuple[Tensor, Tensor]:
    """dn, the gradient before the activation, and its partial sums [blocks, 2, C]."""
    return _conv(dy, coef, weight, slope, x, weight.shape[1], True)


def _conv(
    x: Tensor, coef: Tensor, weight: Tensor, slope: float, beside: Tensor | None, channels: int,
    backward: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    n, into, size, _ = x.shape
    weight = weight.contiguous(memory_format=torch.channels_last)
    blocks = _processors(x.device)
    shared = 18 * into * channels + 8 * channels
    shared += TEAMS * _tile(into, ROWS + 2, size + 2)
    out = torch.empty(
        (n, channels, size, size), dtype=x.dtype, device=x.device,
        memory_format=torch.channels_last,
    )  # fmt: skip
    parts = table(x, blocks, 2, channels)
    kernel = _kernel(
        "conv", x.device, shared, K_CH=into, N_CH=channels, SIZE=size, ROWS=ROWS, TEAMS=TEAMS,
        WARPS=WARPS, STAGGER=STAGGER, BACKWARD=int(backward), SLOPE=f"{slope}f",
    )  # fmt: skip
    beside = x.new_empty(0) if beside is None else beside  # its address is null
    kernel(
        grid=(blocks, 1, 1), block=(32 * TEAMS * WARPS, 1, 1), shared_mem=shared,
        args=[x, coef, weight, beside, out, parts, n * size // ROWS],
    )  # fmt: skip
    return out, parts


def backward_weight(dy: Tensor, x: Tensor, coef: Tensor, slope: float) -> Tensor:
    """The gradient of the weight [out, in, 3, 3], in float32."""
    n, into, size, _ = x.shape
    out = dy.shape[1]
    blocks = _processors(x.device)
    shared = TEAMS * (_tile(into, ROWS + 2, size + 2) + _tile(out, ROWS, size))
    shared = max(shared, 36 * into * out)
    parts = table(x, blocks, out, 3, 3, into)
    kernel = _kernel(
        "weight_gradient", x.device, shared, K_CH=into, N_CH=out, SIZE=size, ROWS=ROWS, TEAMS=TEAMS,
        WARPS=WARPS, STAGGER=STAGGER, BACKWARD=0, SLOPE=f"{slope}f",
    )  # fmt: skip
    kernel(
        grid=(blocks, 1, 1), block=(96 * TEAMS, 1, 1), shared_mem=shared,
        args=[x, coef, dy, parts, n * size // ROWS],
    )  # fmt: skip
    return add_parts(parts).permute(0, 3, 1, 2)
