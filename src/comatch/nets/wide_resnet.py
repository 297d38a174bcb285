"""Wide ResNet with pre-activation blocks, as semi-supervised papers use it on CIFAR-10.

As in the authors' code: LeakyReLU with slope 0.1, kaiming-normal convolutions, and a first block
whose shortcut starts after the activation.

In training with bf16 on a GPU, the layers run as fused kernels (`fused`).
"""

import torch.nn.functional as F
from torch import Tensor, nn

from comatch.nets import fused

SLOPE = 0.1


class Block(nn.Module):
    """Norm, activation and convolution, twice, and a shortcut: 1x1 convolution if shapes differ."""

    def __init__(self, width_in: int, width: int, stride: int, activate_shortcut: bool) -> None:
        super().__init__()
        self.activate_shortcut = activate_shortcut
        self.norm1 = nn.BatchNorm2d(width_in)
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        same = width_in == width and stride == 1
        self.shortcut = None if same else nn.Conv2d(width_in, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = F.leaky_relu(self.norm1(x), SLOPE)
        y = self.conv1(active)
        y = self.conv2(F.leaky_relu(self.norm2(y), SLOPE))
        x = active if self.activate_shortcut else x
        return y + (x if self.shortcut is None else self.shortcut(x))


class WideResNet(nn.Module):
    """WRN-depth-width: a 3x3 stem, three groups of (depth - 4) / 6 blocks, global average."""

    def __init__(self, depth: int = 28, width: int = 2) -> None:
        super().__init__()
        if depth < 10 or (depth - 4) % 6:
            raise ValueError(f"depth must be 10, 16, 22, 28, ...: got {depth}")
        blocks = (depth - 4) // 6
        widths = [16, 16 * width, 32 * width, 64 * width]
        self.stem = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.blocks = nn.Sequential()
        for group in range(3):
            for i in range(blocks):
                first = i == 0
                self.blocks.append(
                    Block(
                        width_in=widths[group if first else group + 1],
                        width=widths[group + 1],
                        stride=2 if first and group > 0 else 1,
                        activate_shortcut=first and group == 0,
                    )
                )
        self.norm = nn.BatchNorm2d(widths[3])
        self.num_features = widths[3]
        self.fused = True  # if the kernels apply
        self.slope = SLOPE
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, a=SLOPE, mode="fan_in")

    def forward(self, x: Tensor) -> Tensor:
        if fused.possible(self, x):
            return fused.forward(self, x)
        x = self.blocks(self.stem(x))
        return F.leaky_relu(self.norm(x), SLOPE).mean((2, 3))  # [N, 64 * width]
