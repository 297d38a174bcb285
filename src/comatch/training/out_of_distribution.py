"""What a run learns, after its last step, to tell out-of-distribution images later."""

import torch
from torch import Tensor

from comatch.data.splits import Split
from comatch.evaluation.known_images import KnownImages, sampled
from comatch.training.build import Built
from comatch.types import Part


def learn(run: Built, train: Part, split: Split) -> KnownImages:
    """From the features of labelled images, and of validation images if there are some."""
    labelled = features(run, train, split.labelled)
    return KnownImages.learn(labelled, features(run, train, split.validation))


@torch.no_grad()
def features(run: Built, train: Part, rows: Tensor) -> Tensor:  # [n, width]
    """Features of some of these images, without augmentation."""
    net = run.method.evaluated
    part = train.subset(rows[sampled(len(rows))])
    with net.eval_mode():
        pieces = [net(inputs).features.cpu() for inputs, _ in run.feed.inputs(part)] if part else []
    return torch.cat(pieces) if pieces else torch.zeros(0, 1)
