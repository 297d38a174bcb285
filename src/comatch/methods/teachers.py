"""What label spreading and logistic regression say of unlabelled images, before the first step.

Both know only the features that an encoder has at the start. Their mistakes differ, so the product
of their answers is confident where both are right.
"""

import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from comatch import propagation
from comatch.propagation import shares

LEAST_SHARE = 1e-3  # of a class: a teacher may be wrong
NEIGHBOURS, ALPHA = 15, 0.8  # of label spreading
STRENGTH = 10.0  # C of logistic regression


@torch.no_grad()
def answer(v_x: Tensor, y: Tensor, v_u: Tensor, classes: int) -> Tensor:
    """The product of both answers [U, C], from unit features of labelled and unlabelled images."""
    spread = propagation.spread_labels(v_x, y, v_u, classes, NEIGHBOURS, ALPHA)
    return shares(moderate(spread) * moderate(regression(v_x, y, v_u, classes)))


def regression(v_x: Tensor, y: Tensor, v_u: Tensor, classes: int) -> Tensor:
    """The probabilities [U, C] of logistic regression on the labels."""
    fitted = LogisticRegression(C=STRENGTH, max_iter=1000).fit(v_x.cpu().numpy(), y.cpu().numpy())
    p = v_u.new_zeros(len(v_u), classes)
    found = torch.from_numpy(fitted.predict_proba(v_u.cpu().numpy()))
    p[:, torch.from_numpy(fitted.classes_).to(p.device)] = found.to(p)
    return p


def moderate(p: Tensor) -> Tensor:
    """Divide p [U, C] by the square root of its mean, and leave a small share to each class.

    So a class is not predicted everywhere, and classes may still differ in size.
    """
    return shares(p / p.mean(0).clamp(min=1e-9).sqrt()).clamp(min=LEAST_SHARE)
