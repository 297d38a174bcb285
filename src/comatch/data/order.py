"""The order in which rows are drawn: shuffled passes over the data.

A pass draws each row once. If there are fewer rows than a batch takes, one batch has several
shuffles of them. All ranks share the order, and each draws its part of a batch.
"""

import numpy as np
import torch
from torch import Tensor, nn

from comatch import distributed


def batches_of(rows: int, batch: int) -> int:
    """Batches in one pass. The rows that are left over are not drawn in this pass."""
    return max(1, rows // max(1, batch))


class Shuffler(nn.Module):
    """An order on the device, drawn from the global generator.

    Its state is buffers, so a checkpoint restores it in the middle of a pass.
    """

    order: Tensor  # [batches * batch]
    cursor: Tensor  # []

    def __init__(self, rows: int, batch: int) -> None:
        super().__init__()
        self.rows, self.batch = rows, batch
        self.batches = batches_of(rows, batch)
        self.register_buffer("order", torch.zeros(self.batches * batch, dtype=torch.long))
        self.register_buffer("cursor", torch.zeros((), dtype=torch.long))

    def before_step(self, step: int) -> None:
        """Start a new pass if one is due. The step's number says so, without a device sync."""
        if self.rows and step % self.batches == 0:
            self.shuffle()

    def shuffle(self) -> None:
        rounds = -(-len(self.order) // self.rows)
        keys = torch.rand(rounds, self.rows, device=self.order.device)
        order = keys.argsort(dim=1).flatten()[: len(self.order)]
        self.order.copy_(distributed.from_first_rank(order))
        self.cursor.zero_()

    def draw(self) -> Tensor:  # [batch]
        mine = distributed.share(self.batch)
        positions = self.cursor + torch.arange(mine.start, mine.stop, device=self.order.device)
        rows = self.order.index_select(0, positions)
        self.cursor.add_(self.batch)
        return rows


class Schedule:
    """An order on the host. It depends only on the seeds, so the rows of any step are known."""

    def __init__(self, rows: int, batch: int, *seeds: int) -> None:
        self.rows, self.batch, self.seeds = rows, batch, seeds
        self.batches = batches_of(rows, batch)
        self.number, self.order = -1, np.empty(0, dtype=np.int64)  # of the present pass

    def at(self, step: int) -> np.ndarray:  # [batch]
        number, place = divmod(step, self.batches)
        if number != self.number:
            random = np.random.default_rng([*self.seeds, number])
            rounds = -(-self.batches * self.batch // max(1, self.rows))
            shuffles = [random.permutation(self.rows) for _ in range(rounds)]
            self.number, self.order = number, np.concatenate([np.empty(0, np.int64), *shuffles])
        return self.order[place * self.batch : (place + 1) * self.batch][slice_of(self.batch)]


def slice_of(batch: int) -> slice:
    """This rank's part of a batch."""
    mine = distributed.share(batch)
    return slice(mine.start, mine.stop)
