"""Images in device memory, and batches drawn from them there.

A whole data set of small images fits on a GPU as bytes (CIFAR-10: 150 MB), so drawing a batch is
one gather, and nothing is copied from the host during training.
"""

from collections.abc import Iterator

from torch import Tensor

from comatch.data.feed import Augment, Draw, Feed
from comatch.data.order import Shuffler
from comatch.data.streaming import CHUNK, plain_inputs
from comatch.types import AllImages, Images, Part


class Resident(Feed):
    """Labelled and unlabelled images on one device. Without labelled ones, batches have none."""

    images_x: Tensor
    labels_x: Tensor
    images_u: Tensor
    labels_u: Tensor

    def __init__(
        self, labelled: Images, unlabelled: Images, batch: int, mu: int, augment: Augment
    ) -> None:
        super().__init__(augment)
        for name, value in (
            ("images_x", labelled.images),
            ("labels_x", labelled.labels),
            ("images_u", unlabelled.images),
            ("labels_u", unlabelled.labels),
        ):  # as buffers they move with the module; a checkpoint has none of them
            self.register_buffer(name, value, persistent=False)
        self.shuffle_x = Shuffler(len(labelled), batch if len(labelled) else 0)
        self.shuffle_u = Shuffler(len(unlabelled), batch * mu)

    def before_step(self, step: int) -> None:
        self.shuffle_x.before_step(step)
        self.shuffle_u.before_step(step)

    def draw(self) -> Draw:
        x, u = self.shuffle_x.draw(), self.shuffle_u.draw()
        return Draw(
            self.images_x.index_select(0, x),
            self.labels_x.index_select(0, x),
            self.images_u.index_select(0, u),
            u,
            self.labels_u.index_select(0, u),
        )

    def everything(self) -> AllImages:
        x, u = (
            map(self.augment.plain, part.split(CHUNK)) for part in (self.images_x, self.images_u)
        )
        return AllImages(x, self.labels_x, u)

    def inputs(self, part: Part) -> Iterator[tuple[Tensor, Tensor]]:
        side = self.images_x.shape[-1]
        return plain_inputs(part, self.augment, side, self.images_x.device)
