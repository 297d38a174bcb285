"""Pre-training steps per second, beside the same method as a plain PyTorch loop.

    python benchmarks/pretrain_speed.py FILE.json
    python benchmarks/pretrain_speed.py FILE.json --device cpu --batch 16 --net wrn-10-1 --steps 3

Both learn with SimCLR on 50,000 random images of 32 x 32, with the same network, batch, views and
optimiser, in bf16 where the GPU has it. The plain loop is what tutorials show: a DataLoader whose
worker processes augment each image with torchvision, then forward, backward and step in eager mode.
"""

import argparse
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from comatch import recipes
from comatch.config import replace
from comatch.data import splits
from comatch.device import choose_device, choose_precision, synchronize
from comatch.files import write_json
from comatch.nets import build_encoder
from comatch.nets.heads import Mlp
from comatch.nets.network import width_of
from comatch.training.build import build
from comatch.training.environment import environment
from comatch.training.lars import Lars
from comatch.types import Dataset as Data
from comatch.types import Images

IMAGES, SIDE, T = 50_000, 32, 0.5
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)


class TwoViews(Dataset):  # type: ignore[type-arg]
    """Two augmented views of each image, made one image at a time."""

    def __init__(self, images: np.ndarray) -> None:
        self.images = images
        jitter = transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)
        self.view = transforms.Compose(
            [
                transforms.RandomResizedCrop(SIDE, scale=(0.08, 1.0)),
                transforms.RandomHorizontalFlip(),
                transforms.RandomApply([jitter], p=0.8),
                transforms.RandomGrayscale(p=0.2),
                transforms.ToTensor(),
                transforms.Normalize(MEAN, STD),
            ]
        )

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        image = Image.fromarray(self.images[row])
        return self.view(image), self.view(image)


def plain_loss(z: Tensor) -> Tensor:
    """NT-Xent of 2N rows, the second half the other views of the first."""
    z = F.normalize(z.float(), dim=1)
    logits = (z @ z.T / T).fill_diagonal_(-torch.inf)
    half = len(z) // 2
    positive = torch.cat([torch.arange(half, 2 * half), torch.arange(half)]).to(z.device)
    return F.cross_entropy(logits, positive)


def plain_seconds(images: np.ndarray, given: argparse.Namespace, device: torch.device) -> float:
    """Seconds of a step of the plain loop."""
    encoder = build_encoder(given.net, SIDE)
    width = width_of(encoder)
    head = Mlp([width, width, 128], norm=True, last_norm=True)
    net = nn.Sequential(encoder, head).to(device, memory_format=torch.channels_last)
    optimizer = Lars(list(net.parameters()), torch.tensor(2.0, device=device), 0.9, 1e-4)
    loader = DataLoader(
        TwoViews(images),
        given.batch,
        shuffle=True,
        drop_last=True,
        num_workers=given.workers,
        pin_memory=device.type == "cuda",
        persistent_workers=given.workers > 0,
    )
    low = choose_precision("auto", device) == "bf16"
    done, began = -given.warmup, 0.0
    while True:
        for views in loader:
            if done == 0:
                began = synchronize(device)
            x = torch.cat(views).to(device, non_blocking=True, memory_format=torch.channels_last)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=low):
                z = net(x)
            optimizer.zero_grad(set_to_none=True)
            plain_loss(z).backward()
            optimizer.step()
            done += 1
            if done == given.steps:
                return (synchronize(device) - began) / given.steps


def our_seconds(images: np.ndarray, given: argparse.Namespace, device: torch.device) -> float:
    """Seconds of a step of `comatch pretrain`."""
    recipe = replace(
        recipes.get("pretrain-cifar10", "simclr"),
        net=given.net,
        batch=given.batch,
        steps=given.warmup + given.steps,
        precision=choose_precision("auto", device),
    )
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
    labels = torch.full((len(images),), -1)
    data = Data("random", [], Images(pixels, labels, [str(i) for i in range(len(images))]))
    split = splits.without_labels(splits.make(data, recipe.dataset, 0))
    run = build(recipe, data, split, device)
    for step in range(given.warmup):
        run.step(step)
    began = synchronize(device)
    for step in range(given.warmup, given.warmup + given.steps):
        run.step(step)
    return (synchronize(device) - began) / given.steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--net", default="resnet18")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    device = choose_device(given.device)
    images = np.random.default_rng(0).integers(0, 256, (given.images, SIDE, SIDE, 3), np.uint8)
    began = time.perf_counter()
    seconds = {"comatch": our_seconds(images, given, device)}
    seconds["plain"] = plain_seconds(images, given, device)
    rows = {name: round(1 / value, 2) for name, value in seconds.items()}
    settings = {key: value for key, value in vars(given).items() if key != "file"}
    result = {
        "environment": environment(device),
        "settings": settings,
        "steps_per_second": rows,
        "times_faster": round(seconds["plain"] / seconds["comatch"], 2),
    }
    write_json(given.file, result)
    print(f"{rows} steps/s, {result['times_faster']} times, {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
