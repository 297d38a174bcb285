"""ReMixMatch: distribution alignment and augmentation anchoring (Berthelot et al., 2020).

    q_b = sharpen(Normalize(p(y | weak view of u_b) p(y) / mean of the last batches' p), T)

is the pseudo-label of the weak view and of K strong views. p(y) is the class frequency in the last
labelled batches. All images are mixed as in MixMatch, with cross-entropy as the loss. One strong
view also has an unmixed loss and a rotation loss:

    L = H(mixed labels, p) + w(t) lambda_u H(mixed pseudo-labels, p)
      + w(t) lambda_u1 H(q, p(y | strong view)) + lambda_r H(r, p_rot(r | strong view rotated by r))

Strong views come from CTAugment, which learns its strengths on labelled images; the loss on labels
uses strong views too. CTAugment's probes go through the network together with the anchors; the
authors' code evaluates them with the EMA model. The paper uses K = 8 strong views and tries fewer.
Here K = 2, which halves the number of images that go through the network.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comatch import losses
from comatch.augment.ctaugment import CTAugment
from comatch.augment.mixing import mix, sample_mix
from comatch.augment.policies import denormalise, normalise
from comatch.config import MethodConfig, setting
from comatch.memory import Window
from comatch.methods.method import Method, Step
from comatch.methods.s4l_rotation import QUARTERS
from comatch.types import Batch, Task


class ReMixMatch(Method):
    """Aligned predictions on weak views as pseudo-labels of strong views of learned strength."""

    views = ("weak", "weak", "weak")  # the anchor, and the images that become strong views
    rotates_images = True
    mean: Tensor  # [3]
    std: Tensor  # [3]

    @dataclass(frozen=True)
    class Config(MethodConfig):
        method = "remixmatch"
        temperature: float = setting(0.5, "T: sharpening temperature of pseudo-labels", above=0)
        alpha: float = setting(0.75, "of the Beta distribution: small values mix little", above=0)
        lambda_u: float = setting(1.5, "final weight of the mixed unlabelled loss", least=0)
        lambda_u1: float = setting(0.5, "final weight of the unmixed strong view's loss", least=0)
        lambda_r: float = setting(0.5, "weight of the rotation loss", least=0)
        ramp: float = setting(
            1 / 64, "share of the run over which these weights rise linearly", above=0
        )
        alignment_window: int = setting(
            128, "batches over which alignment averages predictions and labels", least=1
        )
        bin_decay: float = setting(
            0.99, "rho: decay of the weight of a CTAugment bin", least=0, most=1
        )
        bin_threshold: float = setting(
            0.8, "minimum weight of a bin in use, as a share of the largest", least=0, most=1
        )

    def __init__(self, encoder: nn.Module, task: Task, config: Config) -> None:
        super().__init__(encoder, task, config)
        self.rotation = nn.Linear(self.net.classifier.in_features, QUARTERS)
        self.augment = CTAugment(config.bin_decay, config.bin_threshold)
        self.recent_p = Window(config.alignment_window, task.classes)
        self.recent_y = Window(config.alignment_window, task.classes)
        self.register_buffer("mean", torch.tensor(task.mean), persistent=False)
        self.register_buffer("std", torch.tensor(task.std), persistent=False)

    def forward(self, batch: Batch) -> Step:
        c = self.config
        anchor, *others = batch.u
        with torch.no_grad():
            weak = denormalise(torch.cat([batch.x, *others]), self.mean, self.std)  # 0 .. 255
            probes, drawn = self.augment.probe(weak[: len(batch.x)])
            strong = normalise(self.augment(weak), self.mean, self.std)
            x, first, second = strong.split([len(batch.x), *map(len, others)])

            probes = normalise(probes, self.mean, self.std)
            logits = self.net.untracked(torch.cat([anchor, probes])).logits
            logits_anchor, logits_probes = logits.split([len(anchor), len(probes)])
            y = F.one_hot(batch.y, self.classes).to(logits_anchor.dtype)
            match = 1 - (F.softmax(logits_probes, dim=1) - y).abs().sum(1) / 2  # [B]
            p = F.softmax(logits_anchor, dim=1)  # [muB, C]
            mean_p, mean_y = p.mean(0), y.mean(0)
            q = self.pseudo_labels(p, mean_p, mean_y)

            images, labels = torch.cat([x, anchor, first, second]), torch.cat([y, q, q, q])
            mixing = sample_mix(len(labels), c.alpha, q.device)
            mixed, targets = mix(images, mixing), mix(labels, mixing)
            rotated, quarters = rotate(first)

        out = self.net(torch.cat([mixed, first, rotated]))
        logits_x, logits_u, logits_first, _ = out.logits.split([len(x), 3 * len(q), len(q), len(q)])
        rotations = self.rotation(out.features[-len(rotated) :])
        weight = (self.progress / c.ramp).clamp(max=1)

        loss_x = F.cross_entropy(logits_x, targets[: len(x)])
        loss_u = F.cross_entropy(logits_u, targets[len(x) :])
        loss_u1 = F.cross_entropy(logits_first, q)
        loss_r = F.cross_entropy(rotations, quarters)
        metrics = {"loss_x": loss_x, "loss_u": loss_u, "loss_u1": loss_u1, "loss_r": loss_r}
        return Step(
            loss_x + weight * (c.lambda_u * loss_u + c.lambda_u1 * loss_u1) + c.lambda_r * loss_r,
            {n: v.detach() for n, v in metrics.items()} | {"weight": weight, "match": match.mean()},
            {
                "recent_p": mean_p[None],
                "recent_y": mean_y[None],
                "augment": (drawn.kind, drawn.bin, match),
            },
            q.argmax(1),
        )

    def pseudo_labels(self, p: Tensor, mean_p: Tensor, mean_y: Tensor) -> Tensor:
        """Predictions [muB, C] aligned to the class frequency of the labels, and sharpened."""
        frequency = self.recent_y.mean_with(mean_y).clamp(min=1e-6)
        aligned = losses.align(p * frequency, self.recent_p.mean_with(mean_p))
        return losses.sharpen(aligned, self.config.temperature)


def rotate(images: Tensor) -> tuple[Tensor, Tensor]:
    """Each image rotated by a random number of quarter turns, and that number [N]."""
    quarters = torch.randint(QUARTERS, (len(images),), device=images.device)
    rotated = torch.stack([images.rot90(r, (2, 3)) for r in range(QUARTERS)])  # [4, N, 3, H, W]
    return rotated[quarters, torch.arange(len(images), device=images.device)], quarters
