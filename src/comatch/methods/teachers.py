"""What label spreading and self-training say of unlabelled images, before the first step.

Both know only the features that an encoder has at the start. Their mistakes differ, so the product
of their answers is confident where both are right.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from comatch import propagation
from comatch.methods import self_training
from comatch.propagation import MOST_IN_GRAPH, shares
from comatch.types import Examples

MOST_LABELLED = 2_000  # images that they learn from
LEAST_SHARE = 1e-3  # of a class: a teacher may be wrong
NEIGHBOURS, ALPHA = 15, 0.8  # of label spreading
FOLDS, THRESHOLD = 3, 0.75  # of self-training


@torch.no_grad()
def answer(x: Tensor, y: Tensor, u: Tensor, views: Tensor, classes: int) -> Tensor:
    """The product of both answers [U, C], from features of labelled and unlabelled images.

    `views` [X, V, D] are examples of the labelled images for self-training.
    """
    some_x, some_u = evenly(x, MOST_LABELLED), evenly(u, MOST_IN_GRAPH)
    x, y, views = x[some_x], y[some_x], views[some_x]
    v_x, v_u = F.normalize(x, dim=1), F.normalize(u, dim=1)
    spread = propagation.spread_labels(v_x, y, v_u, classes, NEIGHBOURS, ALPHA)
    trained = self_trained(Examples(views, y, u[some_u]), u, classes)
    return shares(moderate(spread) * moderate(trained))


def evenly(rows: Tensor, most: int) -> slice:
    """At most so many of the rows, at even distances."""
    return slice(None, None, max(1, -(-len(rows) // most)))


def self_trained(examples: Examples, u: Tensor, classes: int) -> Tensor:
    """The probabilities [U, C] of logistic regression that labels some images by itself."""
    p = u.new_zeros(len(u), classes)
    if len(u):
        fitted = self_training.fit(examples, FOLDS, THRESHOLD)
        found = torch.from_numpy(fitted.predict_proba(u.cpu().numpy()))
        p[:, torch.from_numpy(fitted.classes_).to(p.device)] = found.to(p)
    return p


def moderate(p: Tensor) -> Tensor:
    """Divide p [U, C] by the square root of its mean, and leave a small share to each class.

    So a class is not predicted everywhere, and classes may still differ in size.
    """
    return shares(p / p.mean(0).clamp(min=1e-9).sqrt()).clamp(min=LEAST_SHARE)
