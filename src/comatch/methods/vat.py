"""VAT: predictions that are robust to adversarial perturbations (Miyato et al., 2018).

    D(r) = 1/muB sum_b KL(p(y | u_b) || p(y | u_b + r_b)),      p(y | u_b) without gradient
    d    = a random direction; then, K times, d <- the gradient of D at xi d, scaled to length one
    L    = L_x + lambda_u D(epsilon d) + lambda_entropy H(p(y | u_b))

The perturbation r = epsilon d is the one that changes the prediction most, and takes the place of
augmentation. D has its minimum, zero, at r = 0, so its gradient at a small r is the Hessian times
r, and the loop is the power iteration for the Hessian's dominant eigenvector. Entropy minimisation
makes the predictions confident.

D(0) is zero only if both predictions use the same batch norm statistics. So all predictions in D
are of the unlabelled images alone and use the statistics of this batch, clean or perturbed, and
none of them updates the running averages. They are computed in float32, also in a bf16 run, because
the rounding of bf16 and TF32 is larger than the change of a prediction at xi d. The u_b are drawn
from all images, labelled or not, as in its paper.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from comatch.config import MethodConfig, setting
from comatch.methods.method import Method, Step
from comatch.types import Batch


class Vat(Method):
    """Virtual adversarial training with entropy minimisation."""

    views = ("weak",)
    labelled_too = True
    exact_float32 = True

    @dataclass(frozen=True)
    class Config(MethodConfig):
        method = "vat"
        epsilon: float = setting(6.0, "norm of the perturbation of a normalised image", above=0)
        xi: float = setting(1e-2, "norm of the perturbation in the power iteration", above=0)
        iterations: int = setting(1, "K: rounds of the power iteration", least=1)
        lambda_u: float = setting(0.3, "weight of the adversarial loss", least=0)
        lambda_entropy: float = setting(0.06, "weight of the entropy loss", least=0)

    def forward(self, batch: Batch) -> Step:
        c = self.config
        (weak,) = batch.u
        logits_x, logits_u = self.logits(batch.x, weak)
        with torch.no_grad():
            target = self.log_probabilities(weak)
            perturbed = weak + c.epsilon * self.direction(weak, target)

        loss_x = F.cross_entropy(logits_x, batch.y)
        loss_u = divergence(target, self.log_probabilities(perturbed))
        entropy = -(F.softmax(logits_u, dim=1) * F.log_softmax(logits_u, dim=1)).sum(1).mean()
        metrics = {"loss_x": loss_x, "loss_u": loss_u, "entropy": entropy}
        return Step(
            loss_x + c.lambda_u * loss_u + c.lambda_entropy * entropy,
            {name: value.detach() for name, value in metrics.items()},
            {},
        )

    def log_probabilities(self, images: Tensor) -> Tensor:  # [muB, C]
        return F.log_softmax(self.net.untracked(images, precise=True).logits, dim=1)

    def direction(self, images: Tensor, target: Tensor) -> Tensor:
        """The direction, of length one, in which the prediction of each image changes fastest."""

        def change(perturbation: Tensor) -> Tensor:
            return divergence(target, self.log_probabilities(images + perturbation))

        d = unit(torch.randn_like(images))
        for _ in range(self.config.iterations):
            d = unit(torch.func.grad(change)(self.config.xi * d))
        return d


def divergence(target: Tensor, other: Tensor) -> Tensor:
    """KL(target || other) of log-probabilities, the mean over images; zero if they are equal."""
    return F.kl_div(other, target, reduction="batchmean", log_target=True)


def unit(vectors: Tensor) -> Tensor:
    """Scaled to length one for each image; the gradient of a confident prediction is tiny."""
    return F.normalize(vectors.flatten(1), dim=1, eps=1e-30).view_as(vectors)
