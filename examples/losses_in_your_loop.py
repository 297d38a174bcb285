"""CoMatch in a plain PyTorch loop: comatch's losses and memory, everything else your own.

python examples/losses_in_your_loop.py

Trains a small network on scikit-learn's digits: 40 labelled images, 1,397 unlabelled ones. It uses
two modules of comatch: `losses` (functions of tensors) and `memory` (ring buffers).
"""

import sys

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from comatch import losses
from comatch.memory import RingBuffer, Window

BATCH, MU, LABELS_EACH = 20, 4, 4
ALPHA, TEMPERATURE, THRESHOLD, EDGE_THRESHOLD = 0.9, 0.2, 0.95, 0.8


class Net(nn.Module):
    """Any network with two outputs will do: logits, and embeddings of length one."""

    def __init__(self, classes: int, width: int = 16) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs, stride in ((1, width, 1), (width, 2 * width, 2), (2 * width, 64, 2)):
            layers += [nn.Conv2d(inputs, outputs, 3, stride, 1), nn.BatchNorm2d(outputs), nn.ReLU()]
        self.encoder = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier = nn.Linear(64, classes)
        self.projector = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.encoder(x)
        return self.classifier(features), F.normalize(self.projector(features), dim=1)


def augment(x: Tensor, shift: int, noise: float) -> Tensor:
    """Your own augmentation: shift every image by a few pixels, and add noise."""
    padded = F.pad(x, [shift] * 4)
    places = torch.randint(0, 2 * shift + 1, (len(x), 2)).tolist()
    views = [one[:, i : i + 8, j : j + 8] for one, (i, j) in zip(padded, places, strict=True)]
    return torch.stack(views) + noise * torch.randn_like(x)


def main(steps: int = 600) -> float:
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1
    labels = torch.tensor(digits.target)
    train, test = torch.randperm(len(labels)).split([1437, len(labels) - 1437])
    known = torch.cat([train[labels[train] == c][:LABELS_EACH] for c in range(10)])
    unlabelled = train[~torch.isin(train, known)]

    net = Net(classes=10)
    ema = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.98), use_buffers=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    bank_p, bank_z, recent = RingBuffer(1280, 10), RingBuffer(1280, 64), Window(32, 10)

    for _ in range(steps):
        x = known[torch.randint(len(known), (BATCH,))]
        u = unlabelled[torch.randint(len(unlabelled), (MU * BATCH,))]
        weak, strong, contrast = (augment(images[u], 1 + s, 0.4 * s) for s in (0, 1, 1))
        batch = torch.cat([augment(images[x], 1, 0.0), strong, contrast, weak])
        sizes = [len(x), len(u), len(u), len(u)]
        (logits_x, logits, _, logits_weak), (z_x, z, z_other, z_weak) = (
            output.split(sizes) for output in net(batch)
        )
        with torch.no_grad():  # pseudo-labels: alignment, then smoothing with the memory bank
            p = F.softmax(logits_weak, dim=1)
            mean_p = p.mean(0)
            p = losses.align(p, recent.mean_with(mean_p))
            q = losses.memory_smooth(p, z_weak, bank_p.rows, bank_z.rows, ALPHA, TEMPERATURE)
            q = torch.where(bank_p.full, q, p)
        loss_x = F.cross_entropy(logits_x, labels[x])
        loss_u = losses.masked_cross_entropy(logits, q, q.amax(1) >= THRESHOLD)
        loss_graph = losses.graph_cross_entropy(
            losses.label_graph(q, EDGE_THRESHOLD),
            losses.embedding_graph(z, z_other, TEMPERATURE, "authors"),
        )
        optimizer.zero_grad()
        (loss_x + loss_u + loss_graph).backward()
        optimizer.step()

        bank_p.push(F.one_hot(labels[x], 10).float(), p)
        bank_z.push(z_x, z_weak)
        recent.push(mean_p[None])
        ema.update_parameters(net)

    accuracy = (ema.eval()(images[test])[0].argmax(1) == labels[test]).float().mean().item()
    print(f"{steps} steps, {len(known)} labels: {accuracy:.1%} of {len(test)} test images")
    return accuracy


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
