"""VAT: predictions that are robust to adversarial perturbations (Miyato et al., 2018).

    r_b = eps d / |d|,   d = the gradient of KL(p(y | u_b) || p(y | u_b + xi r)) at a random small r
    L   = L_x + lambda_u KL(p(y | u_b) || p(y | u_b + r_b)) + lambda_entropy H(p(y | u_b))

The perturbation r_b is the one that changes the prediction most, found by one power iteration. It
takes the place of augmentation. Entropy minimisation makes the predictions confident.
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

    @dataclass(frozen=True)
    class Config(MethodConfig):
        method = "vat"
        epsilon: float = setting(6.0, "norm of the perturbation of a normalised image", above=0)
        xi: float = setting(1e-2, "norm of the step of the power iteration", above=0)
        lambda_u: float = setting(0.3, "weight of the adversarial loss", least=0)
        lambda_entropy: float = setting(0.06, "weight of the entropy loss", least=0)

    def forward(self, batch: Batch) -> Step:
        c = self.config
        (weak,) = batch.u
        logits_x, logits_u = self.logits(batch.x, weak)
        target = F.softmax(logits_u.detach(), dim=1)
        perturbed = weak + c.epsilon * self.direction(weak, target)

        loss_x = F.cross_entropy(logits_x, batch.y)
        loss_u = divergence(target, self.net(perturbed).logits)
        entropy = -(F.softmax(logits_u, dim=1) * F.log_softmax(logits_u, dim=1)).sum(1).mean()
        metrics = {"loss_x": loss_x, "loss_u": loss_u, "entropy": entropy}
        return Step(
            loss_x + c.lambda_u * loss_u + c.lambda_entropy * entropy,
            {name: value.detach() for name, value in metrics.items()},
            {},
        )

    def direction(self, images: Tensor, target: Tensor) -> Tensor:
        """The direction, of norm one, in which the prediction of each image changes fastest."""
        weights = {name: value.detach() for name, value in self.net.named_parameters()}
        # Batch norm writes to the buffers, so they are an argument, and the copy is dropped.
        buffers = {name: value.clone() for name, value in self.net.named_buffers()}

        def change_of(perturbation: Tensor, buffers: dict[str, Tensor]) -> Tensor:
            out = torch.func.functional_call(self.net, weights | buffers, (images + perturbation,))
            return divergence(target, out.logits)

        start = self.config.xi * unit(torch.randn_like(images))
        return unit(torch.func.grad(change_of)(start, buffers)).detach()


def divergence(target: Tensor, logits: Tensor) -> Tensor:
    """KL(target || softmax(logits)), the mean over images."""
    return F.kl_div(F.log_softmax(logits, dim=1), target, reduction="batchmean")


def unit(vectors: Tensor) -> Tensor:
    return F.normalize(vectors.flatten(1), dim=1).view_as(vectors)
