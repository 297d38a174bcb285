"""MixMatch: sharpened pseudo-labels, and MixUp of all images (Berthelot et al., 2019).

    q_b = sharpen(mean of p over two weak views of u_b, T)
    mixed = l a + (1 - l) b,   l = max(l', 1 - l'),   l' ~ Beta(alpha, alpha)

Labelled and unlabelled images are shuffled together, and each image and its label are mixed with
another. The loss is cross-entropy on labelled images and squared error on unlabelled ones:

    L = H(mixed labels, p) + w(t) 1/C || mixed pseudo-labels - p ||^2
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from comatch import losses
from comatch.augment.mixing import mix, sample_mix
from comatch.config import MethodConfig, setting
from comatch.methods.method import Method, Step
from comatch.types import Batch


class MixMatch(Method):
    """Sharpened mean predictions as pseudo-labels, and MixUp of all images."""

    views = ("weak", "weak")

    @dataclass(frozen=True)
    class Config(MethodConfig):
        method = "mixmatch"
        temperature: float = setting(0.5, "T: sharpening temperature of pseudo-labels", above=0)
        alpha: float = setting(0.75, "of the Beta distribution: small values mix little", above=0)
        lambda_u: float = setting(75.0, "final weight of the unlabelled loss", least=0)
        ramp: float = setting(
            1.0, "share of the run over which that weight rises linearly", above=0
        )

    def forward(self, batch: Batch) -> Step:
        c = self.config
        with torch.no_grad():
            q = self.pseudo_labels(*batch.u)  # [muB, C]
            y = F.one_hot(batch.y, self.classes).to(q.dtype)
            images = torch.cat([batch.x, *batch.u])
            labels = torch.cat([y, q, q])
            drawn = sample_mix(len(labels), c.alpha, q.device)
            mixed, targets = mix(images, drawn), mix(labels, drawn)
        logits_x, logits_u = self.net(mixed).logits.split([len(y), 2 * len(q)])
        targets_x, targets_u = targets.split([len(y), 2 * len(q)])
        weight = c.lambda_u * (self.progress / c.ramp).clamp(max=1)

        loss_x = F.cross_entropy(logits_x, targets_x)
        loss_u = F.mse_loss(F.softmax(logits_u, dim=1), targets_u)
        metrics = {"loss_x": loss_x.detach(), "loss_u": loss_u.detach(), "weight": weight}
        return Step(loss_x + weight * loss_u, metrics, {}, q.argmax(1))

    def pseudo_labels(self, one: Tensor, other: Tensor) -> Tensor:
        """The sharpened mean prediction on both views [muB, C].

        The network learns from mixed images only, so these do not update batch norm's averages.
        """
        p = F.softmax(self.net.untracked(torch.cat([one, other])).logits, dim=1)
        return losses.sharpen(p.view(2, len(one), -1).mean(0), self.config.temperature)
