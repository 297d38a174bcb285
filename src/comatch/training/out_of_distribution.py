"""What a run learns, after its last step, to tell out-of-distribution images later."""

import torch
from torch import Tensor

from comatch import evaluation
from comatch.data.splits import Split
from comatch.evaluation.known_images import KnownImages, sampled
from comatch.training.build import Built
from comatch.types import Part

CONFIDENT = 0.95  # probability from which an unlabelled image counts as one of a class


def learn(run: Built, train: Part, split: Split) -> KnownImages:
    """Features of labelled images, and the distances of held-out ones.

    Held out are validation images, else unlabelled images with a confident prediction: their labels
    were not used. A method without unlabelled images is compared by its labelled ones alone.
    """
    labelled, _ = outputs(run, train, split.labelled)
    if len(split.validation):
        held_out, _ = outputs(run, train, split.validation)
    elif run.method.views:
        held_out, p = outputs(run, train, split.unlabelled)
        held_out = held_out[p.amax(1) > CONFIDENT]
    else:
        held_out = labelled[:0]
    return KnownImages.learn(labelled, held_out)


def outputs(run: Built, train: Part, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Features and probabilities of some of these images, without augmentation."""
    net = run.method.evaluated
    part = train.subset(rows[sampled(len(rows))])
    pieces = [evaluation.both(net, inputs) for inputs, _ in run.feed.inputs(part)] if part else []
    if not pieces:
        return torch.zeros(0, 1), torch.zeros(0, 1)
    features, p = zip(*pieces, strict=True)
    return torch.cat(features), torch.cat(p)
