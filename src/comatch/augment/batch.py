"""From drawn images to the batch of a method: all views augmented and normalised."""

from collections.abc import Sequence

import torch
from torch import Tensor

from comatch.augment import policies
from comatch.augment.policies import Views, normalise
from comatch.types import Batch


class AugmentBatch:
    """A weak view of each labelled image, and the named views of each unlabelled image."""

    def __init__(self, names: Sequence[str], views: Views, mean: Tensor, std: Tensor) -> None:
        self.mean, self.std = mean, std
        self.memory_format = torch.channels_last
        self.labelled = policies.build("weak", views)
        self.unlabelled = [policies.build(name, views) for name in names]

    def __call__(self, x: Tensor, y: Tensor, u: Tensor, rows: Tensor) -> Batch:
        labelled = self.plain(self.labelled(x) if len(x) else x)
        return Batch(labelled, y, tuple(self.plain(view(u)) for view in self.unlabelled), rows)

    def plain(self, images: Tensor) -> Tensor:
        """Images as inputs of the network, without augmentation."""
        images = normalise(images.to(self.mean.dtype), self.mean, self.std)
        return images.contiguous(memory_format=self.memory_format)
