"""Images that live on the device, and batches drawn from them there.

A whole data set of small images fits on a GPU as bytes (CIFAR-10: 150 MB), so drawing a batch is
one gather and nothing is ever copied from the host while training.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from comatch import distributed
from comatch.types import AllImages, Images


class Shuffler(nn.Module):
    """Rows in random order, each used once before any is used again.

    If there are fewer rows than a batch takes, several shuffles follow each other within it. Its
    state is buffers, so a checkpoint brings it back in the middle of a pass. Ranks share the order,
    and each draws its part of a batch.
    """

    order: Tensor  # [batches * batch]
    cursor: Tensor  # []

    def __init__(self, rows: int, batch: int) -> None:
        super().__init__()
        self.rows, self.batch = rows, batch
        self.batches = max(1, rows // batch)  # in one pass; what is left over waits for the next
        self.register_buffer("order", torch.zeros(self.batches * batch, dtype=torch.long))
        self.register_buffer("cursor", torch.zeros((), dtype=torch.long))

    def shuffle(self) -> None:
        """Starts a new pass. Called by the loop, which knows the step without asking the device."""
        rounds = -(-len(self.order) // self.rows)
        keys = torch.rand(rounds, self.rows, device=self.order.device)
        order = keys.argsort(dim=1).flatten()[: len(self.order)]
        self.order.copy_(distributed.from_first_rank(order))
        self.cursor.zero_()

    def draw(self) -> Tensor:  # [batch]
        mine = distributed.share(self.batch)
        places = self.cursor + torch.arange(mine.start, mine.stop, device=self.order.device)
        rows = self.order.index_select(0, places)
        self.cursor.add_(self.batch)
        return rows


class Draw(NamedTuple):
    """Images that become views; or, from `CachedFeatures`, features of views."""

    x: Tensor  # [B, 3, H, W] uint8            or [B, width]
    y: Tensor  # [B]
    u: Tensor  # [muB, 3, H, W] uint8          or [muB, views, width]
    rows: Tensor  # [muB] which of the unlabelled images these are
    truth: Tensor  # [muB] what u really shows where known: for scoring, methods never see it


class Resident(nn.Module):
    """Labelled and unlabelled images on one device."""

    images_x: Tensor
    labels_x: Tensor
    images_u: Tensor
    labels_u: Tensor

    def __init__(self, labelled: Images, unlabelled: Images, batch: int, mu: int) -> None:
        super().__init__()
        for name, value in (
            ("images_x", labelled.images),
            ("labels_x", labelled.labels),
            ("images_u", unlabelled.images),
            ("labels_u", unlabelled.labels),
        ):  # data is moved with the module, but is no part of a checkpoint
            self.register_buffer(name, value, persistent=False)
        self.shuffle_x = Shuffler(len(labelled), batch)
        self.shuffle_u = Shuffler(len(unlabelled), batch * mu)

    def before_step(self, step: int) -> None:
        for shuffler in (self.shuffle_x, self.shuffle_u):
            if step % shuffler.batches == 0:
                shuffler.shuffle()

    def counts(self) -> dict[str, float]:
        """Of what a stream meets on its way, nothing happens here."""
        return {}

    def everything(self) -> AllImages:
        return AllImages(self.images_x, self.labels_x, self.images_u)

    def draw(self) -> Draw:
        x, u = self.shuffle_x.draw(), self.shuffle_u.draw()
        return Draw(
            self.images_x.index_select(0, x),
            self.labels_x.index_select(0, x),
            self.images_u.index_select(0, u),
            u,
            self.labels_u.index_select(0, u),
        )
