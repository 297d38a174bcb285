"""The contract of an estimator: a classifier of scikit-learn on features of a frozen encoder.

An estimator is a method that takes no steps. It is fitted once, to the same features that the heads
of other methods learn from. `linear` says whether its weights are those of a linear classifier:
then they are saved and `predict` can use them. Other estimators compare an image with all training
images, and only their accuracy is recorded.
"""

from typing import Any, ClassVar, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comatch.methods.method import Method, Step
from comatch.types import UNLABELLED, Batch, Examples


class Fitted(Protocol):
    """What an estimator of scikit-learn is after `fit`."""

    classes_: Any  # the classes that were in the labels

    def predict_proba(self, features: np.ndarray) -> np.ndarray: ...


class Estimator(Method):
    """A classifier that is fitted once, without steps."""

    views = ("weak",)  # unlabelled images are there: the features depend on all images
    linear: ClassVar[bool] = True

    @property
    def evaluated(self):  # type: ignore[no-untyped-def]
        return self.net

    def fit(self, examples: Examples) -> None:
        """Fit to the features, and let the network predict what the estimator does."""
        fitted = self.estimate(examples)
        if self.linear:
            self.set_weights(fitted)
        else:
            self.net.classifier = Predicting(fitted, self.classes)  # type: ignore[assignment]

    def estimate(self, examples: Examples) -> Any:
        """The fitted estimator."""
        raise NotImplementedError

    @torch.no_grad()
    def set_weights(self, fitted: Any) -> None:
        """The weights of a linear classifier. Of two classes, scikit-learn has one row."""
        weight, bias = torch.from_numpy(fitted.coef_), torch.from_numpy(fitted.intercept_)
        if len(weight) == 1:
            weight, bias = torch.cat([-weight, weight]) / 2, torch.cat([-bias, bias]) / 2
        self.net.classifier.weight.copy_(weight)
        self.net.classifier.bias.copy_(bias)

    def forward(self, batch: Batch) -> Step:
        raise NotImplementedError(f"{self.config.method} is fitted once, without steps")


class Predicting(nn.Module):
    """The probabilities of a fitted estimator as logits."""

    def __init__(self, fitted: Fitted, classes: int) -> None:
        super().__init__()
        self.fitted, self.classes = fitted, classes
        self.register_buffer("weight", torch.zeros(()))  # of the precision that features have

    def forward(self, features: Tensor) -> Tensor:
        found = torch.from_numpy(self.fitted.predict_proba(features.cpu().numpy())).float()
        p = found.new_zeros(len(found), self.classes)
        p[:, torch.from_numpy(self.fitted.classes_)] = found
        return p.clamp(min=1e-12).log().to(features.device)


def with_unlabelled(examples: Examples) -> tuple[np.ndarray, np.ndarray]:
    """Plain views of labelled and unlabelled images, and labels that are -1 where unknown."""
    y = F.pad(examples.y, (0, len(examples.u)), value=UNLABELLED)
    return torch.cat([examples.x[:, 0], examples.u]).cpu().numpy(), y.cpu().numpy()
