"""The memory of a method: ring buffers, moving averages, and the EMA copy of a network.

The whole state of these modules is buffers, so a checkpoint contains it. They are written in place
and without a device sync.
"""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comatch import distributed


class RingBuffer(nn.Module):
    """The last `size` rows that were pushed, oldest overwritten first."""

    rows: Tensor  # [size, width]
    cursor: Tensor  # [] position of the next row
    filled: Tensor  # [] number of rows that were written

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
    def push(self, *parts: Tensor) -> None:
        """Append rows [n, width], in one or several parts."""
        rows = parts[0] if len(parts) == 1 else torch.cat(parts)
        rows = rows.detach()[-self.size :].to(self.rows.dtype)
        self.rows.index_copy_(0, self._places(len(rows)), rows)
        self.cursor.add_(len(rows)).remainder_(self.size)
        self.filled.add_(len(rows)).clamp_(max=self.size)

    def kept_by(self, count: int) -> Tensor:  # [size] bool
        """Which rows are filled and will not be overwritten by the next `count` rows."""
        places = torch.arange(self.size, device=self.rows.device)
        overwritten = (places - self.cursor).remainder(self.size) < count
        return (places < self.filled) & ~overwritten

    def mean_with(self, row: Tensor) -> Tensor:
        """The mean of the buffer including `row` [width], which is not pushed yet."""
        window = self.rows.index_copy(0, self._places(1), row[None].to(self.rows.dtype))
        return window.sum(0) / (self.filled + 1).clamp(max=self.size)

    def _places(self, count: int) -> Tensor:
        steps = torch.arange(count, device=self.rows.device)
        return (self.cursor + steps).remainder(self.size)


class Window(RingBuffer):
    """Means over the last batches, one row each. Ranks that share a batch push one mean row."""

    def mean_with(self, row: Tensor) -> Tensor:
        return super().mean_with(distributed.mean(row))

    def push(self, *rows: Tensor) -> None:
        """One row [1, width] from each rank."""
        super().push(torch.cat(rows).mean(0, keepdim=True) if distributed.world() > 1 else rows[0])


class RunningMean(nn.Module):
    """An exponential moving average of one row a batch.

        m <- decay m + (1 - decay) row,      starting at a guess

    Ranks that share a batch push one mean row.
    """

    row: Tensor  # [width] m

    def __init__(self, guess: Tensor, decay: float) -> None:
        super().__init__()
        self.decay = decay
        self.register_buffer("row", guess.clone())

    def mean_with(self, row: Tensor) -> Tensor:
        """The average including `row` [width], which is not pushed yet."""
        return self.row.lerp(distributed.mean(row).to(self.row.dtype), 1 - self.decay)

    @torch.no_grad()
    def push(self, rows: Tensor) -> None:
        """One row [1, width] from each rank."""
        row = rows.mean(0) if distributed.world() > 1 else rows[0]
        self.row.lerp_(row.detach().to(self.row.dtype), 1 - self.decay)


class Averages(nn.Module):
    """One exponential moving average for each image, updated when the image is in a batch.

        Z_i <- alpha Z_i + (1 - alpha) z_i,      read as Z_i / (1 - alpha^visits_i)

    The division corrects the bias of the initial zeros: after one visit the average is z_i.
    """

    rows: Tensor  # [images, width] Z
    mass: Tensor  # [images] 1 - alpha^visits: the same average, of ones

    def __init__(self, images: int, width: int, alpha: float) -> None:
        super().__init__()
        self.alpha = alpha
        self.register_buffer("rows", torch.zeros(images, width))
        self.register_buffer("mass", torch.zeros(images))

    def read(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Averages [n, width] of these images, and whether [n] each was seen; zeros if not."""
        mass = self.mass.index_select(0, images)
        seen = mass > 0
        return self.rows.index_select(0, images) / mass.masked_fill(~seen, 1.0)[:, None], seen

    @torch.no_grad()
    def push(self, images: Tensor, rows: Tensor) -> None:
        """Update the averages of these images. An image that occurs twice is updated once.

        Its last row is used: all its occurrences write the same value, in any order.
        """
        same = images[:, None] == images[None, :]
        last = (same * torch.arange(len(images), device=images.device)).amax(1)
        new = rows.detach().to(self.rows.dtype).index_select(0, last)
        old, mass = self.rows.index_select(0, images), self.mass.index_select(0, images)
        self.rows.index_copy_(0, images, new.lerp(old, self.alpha))
        self.mass.index_copy_(0, images, torch.ones_like(mass).lerp(mass, self.alpha))


class UnitAverages(Averages):
    """Averages that start as random vectors of length one instead of zeros."""

    def __init__(self, images: int, width: int, alpha: float) -> None:
        super().__init__(images, width, alpha)
        self.rows.copy_(random_units(images, width))
        self.mass.fill_(1)


def random_units(rows: int, width: int) -> Tensor:  # [rows, width]
    """Random vectors of length one."""
    return F.normalize(torch.randn(rows, width), dim=1)


class Ema(nn.Module):
    """An exponential moving average (EMA) of a network's weights.

        theta_ema <- m theta_ema + (1 - m) theta                            (paper, section 3.3)

    Batch-norm statistics and other buffers are copied: they are averages already.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = copy.deepcopy(net).requires_grad_(False)

    @torch.no_grad()
    def update(self, net: nn.Module, decay: float | Tensor) -> None:
        """Update the average. The decay m may be a number or, if it changes, a tensor []."""
        both = zip(self.net.parameters(), net.parameters(), strict=True)
        moving = [
            pair for pair in both if pair[1].requires_grad
        ]  # frozen parameters are the same in both
        averages: list[Tensor] = [pair[0] for pair in moving]
        weights: list[Tensor] = [pair[1] for pair in moving]
        if isinstance(decay, Tensor):
            changes = torch._foreach_sub(weights, averages)
            torch._foreach_mul_(changes, 1 - decay)
            torch._foreach_add_(averages, changes)
        else:
            torch._foreach_lerp_(averages, weights, 1 - decay)
        for kind in {buffer.dtype for buffer in net.buffers()}:  # one kernel for each type
            pairs = zip(self.net.buffers(), net.buffers(), strict=True)
            kept, new = zip(*(pair for pair in pairs if pair[1].dtype == kind), strict=True)
            torch._foreach_copy_(kept, new)
