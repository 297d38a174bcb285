"""The wide ResNet with the fused kernels of `comatch.kernels`.

PyTorch's layers read and write each activation about fifteen times in a step. Here batch norm and
activation are computed while a convolution reads its input and writes its output. Parameters,
statistics and results are those of the unfused network, except for rounding.
"""

import importlib.util
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from comatch.nets.wide_resnet import WideResNet

TRITON = importlib.util.find_spec("triton") is not None
MAX_WIDTH = 128  # channels that the shortcut's kernel supports


def possible(net: "WideResNet", x: Tensor) -> bool:
    """Whether the kernels apply: training in bf16 on a GPU, supported image sizes and widths."""
    if not (net.fused and net.training and x.is_cuda and in_bf16()) or x.requires_grad:
        return False
    power_of_two = net.num_features & (net.num_features - 1) == 0
    fits = net.num_features <= MAX_WIDTH and power_of_two
    fits = fits and x.shape[-1] == x.shape[-2] and x.shape[-1] % 4 == 0
    return fits and type(net.norm) is nn.BatchNorm2d and TRITON


def in_bf16() -> bool:
    return torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == torch.bfloat16


@torch.compiler.disable  # the kernels are compiled already
def forward(net: "WideResNet", x: Tensor) -> Tensor:
    from comatch.kernels.block import Block, Features, Lower, Settings, Stem
    from comatch.kernels.conv import made_for

    blocks: list[Any] = list(net.blocks)
    convs = [conv for block in blocks for conv in (block.conv1, block.conv2)]
    weight = {conv: conv.weight for conv in convs}
    others = [conv for conv in convs if not made_for(conv.weight)]  # cuDNN runs these
    weight.update(zip(others, Lower.apply(*(conv.weight for conv in others)), strict=True))

    seen: list[
        tuple[nn.BatchNorm2d, Tensor, int]
    ] = []  # norms, their statistics, and of how many values
    x, parts = Stem.apply(x.contiguous(memory_format=torch.channels_last), net.stem.weight)
    for block in blocks:
        norm1, norm2, before = block.norm1, block.norm2, x
        settings = Settings(block.conv1.stride[0], block.activate_shortcut, norm1.eps, net.slope)
        shortcut = None if block.shortcut is None else block.shortcut.weight
        x, parts, stats1, stats2 = Block.apply(
            settings, x, parts, norm1.weight, norm1.bias, weight[block.conv1],
            norm2.weight, norm2.bias, weight[block.conv2], shortcut,
        )  # fmt: skip
        seen += [(norm1, stats1, count(before)), (norm2, stats2, count(x))]
    settings = Settings(eps=net.norm.eps, slope=net.slope)
    features, stats = Features.apply(settings, x, parts, net.norm.weight, net.norm.bias)
    track([*seen, (net.norm, stats, count(x))])
    return features  # [N, width], float32


def count(x: Tensor) -> int:
    """The number of values of each channel."""
    return x.numel() // x.shape[1]


@torch.no_grad()
def track(seen: list[tuple[nn.BatchNorm2d, Tensor, int]]) -> None:
    """Update running statistics as `nn.BatchNorm2d` does: with unbiased variances."""
    norms: list[Any] = [norm for norm, _, _ in seen]
    means = [stats[0] for _, stats, _ in seen]
    variances = torch._foreach_mul([s[1] for _, s, _ in seen], [n / (n - 1) for _, _, n in seen])
    torch._foreach_lerp_([norm.running_mean for norm in norms], means, norms[0].momentum)
    torch._foreach_lerp_([norm.running_var for norm in norms], variances, norms[0].momentum)
    torch._foreach_add_([norm.num_batches_tracked for norm in norms], 1)
