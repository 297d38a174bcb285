"""VAT: a prediction should not change in the direction in which it changes most (Miyato, 2018).

    r_b = eps d / |d|,   d = the gradient of KL(p(y | u_b) || p(y | u_b + xi r)) at a random small r
    L   = L_x + lambda_u KL(p(y | u_b) || p(y | u_b + r_b)) + lambda_entropy H(p(y | u_b))

The image is changed by what harms the prediction most instead of by an augmentation, and entropy
minimisation makes the predictions decided. One power iteration finds the direction.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from comatch.config import MethodConfig, setting
from comatch.methods.method import Method, Step
from comatch.types import Batch


class Vat(Method):
    """Predictions that withstand the worst small change, and are decided."""

    views = ("weak",)

    @dataclass(frozen=True)
    class Config(MethodConfig):
        method = "vat"
        epsilon: float = setting(
            6.0, "length of the adversarial change of a normalised image", above=0
        )
        xi: float = setting(1e-2, "length of the step with which its direction is found", above=0)
        lambda_u: float = setting(0.3, "weight of the adversarial loss", least=0)
        lambda_entropy: float = setting(0.06, "weight of the entropy of predictions", least=0)

    def forward(self, batch: Batch) -> Step:
        c = self.config
        (weak,) = batch.u
        logits_x, logits_u = self.logits(batch.x, weak)
        target = F.softmax(logits_u.detach(), dim=1)
        worst = weak + c.epsilon * self.direction(weak, target)

        loss_x = F.cross_entropy(logits_x, batch.y)
        loss_u = divergence(target, self.net(worst).logits)
        entropy = -(F.softmax(logits_u, dim=1) * F.log_softmax(logits_u, dim=1)).sum(1).mean()
        metrics = {"loss_x": loss_x, "loss_u": loss_u, "entropy": entropy}
        return Step(
            loss_x + c.lambda_u * loss_u + c.lambda_entropy * entropy,
            {name: value.detach() for name, value in metrics.items()},
            {},
        )

    def direction(self, images: Tensor, target: Tensor) -> Tensor:
        """Of length one for each image: the way in which its prediction changes fastest."""
        weights = {name: value.detach() for name, value in self.net.named_parameters()}
        # An argument of its own, because batch norm writes to it; then it is thrown away.
        notes = {name: value.clone() for name, value in self.net.named_buffers()}

        def harm(change: Tensor, notes: dict[str, Tensor]) -> Tensor:
            out = torch.func.functional_call(self.net, weights | notes, (images + change,))
            return divergence(target, out.logits)

        start = self.config.xi * unit(torch.randn_like(images))
        return unit(torch.func.grad(harm)(start, notes)).detach()


def divergence(target: Tensor, logits: Tensor) -> Tensor:
    """KL(target || softmax(logits)), the mean over images."""
    return F.kl_div(F.log_softmax(logits, dim=1), target, reduction="batchmean")


def unit(change: Tensor) -> Tensor:
    return F.normalize(change.flatten(1), dim=1).view_as(change)
