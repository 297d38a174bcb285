"""What a method remembers: the last rows of something, and a slowly moving copy of a network.

Both are modules whose whole state is buffers, so a checkpoint holds them without knowing them,
and both are written in place without waiting for the device.
"""

import copy

import torch
from torch import Tensor, nn


class RingBuffer(nn.Module):
    """The last `size` rows that were pushed, oldest overwritten first."""

    rows: Tensor  # [size, width]
    cursor: Tensor  # [] where the next row goes
    filled: Tensor  # [] how many rows hold something

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(size, width))
        # The cursor is a tensor, so `push` never waits for the device.
        self.register_buffer("cursor", torch.zeros((), dtype=torch.long))
        self.register_buffer("filled", torch.zeros((), dtype=torch.long))

    @property
    def size(self) -> int:
        return self.rows.shape[0]

    @property
    def full(self) -> Tensor:  # [] bool
        return self.filled >= self.size

    @torch.no_grad()
    def push(self, rows: Tensor) -> None:
        rows = rows.detach()[-self.size :].to(self.rows.dtype)
        self.rows.index_copy_(0, self._places(len(rows)), rows)
        self.cursor.add_(len(rows)).remainder_(self.size)
        self.filled.add_(len(rows)).clamp_(max=self.size)

    def mean_with(self, row: Tensor) -> Tensor:
        """Mean over the window as it will be once `row` [width] is pushed."""
        window = self.rows.index_copy(0, self._places(1), row[None].to(self.rows.dtype))
        return window.sum(0) / (self.filled + 1).clamp(max=self.size)

    def _places(self, count: int) -> Tensor:
        steps = torch.arange(count, device=self.rows.device)
        return (self.cursor + steps).remainder(self.size)


class Ema(nn.Module):
    """A copy of a network whose weights follow it slowly.

        theta_ema <- m theta_ema + (1 - m) theta                            (paper, section 3.3)

    Batch-norm statistics and other buffers are copied, not averaged: they are averages already.
    """

    def __init__(self, net: nn.Module, decay: float) -> None:
        super().__init__()
        self.decay = decay
        self.net = copy.deepcopy(net).requires_grad_(False)

    @torch.no_grad()
    def update(self, net: nn.Module) -> None:
        mine: list[Tensor] = list(self.net.parameters())
        torch._foreach_lerp_(mine, list(net.parameters()), 1 - self.decay)
        for kind in {buffer.dtype for buffer in net.buffers()}:  # one kernel for each
            pairs = zip(self.net.buffers(), net.buffers(), strict=True)
            kept, new = zip(*(pair for pair in pairs if pair[1].dtype == kind), strict=True)
            torch._foreach_copy_(kept, new)
