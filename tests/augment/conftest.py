"""Photographs cut into tiles, and flat images on which formulas divide by zero."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import Tensor


@pytest.fixture(scope="session")
def photographs() -> Callable[[int], Tensor]:
    """photographs(size): uint8 [24, 3, size, size], tiles of a temple and of a flower."""

    def cut(size: int) -> Tensor:
        tiles = []
        for photograph in load_sample_images().images:  # [427, 640, 3]
            photo = torch.from_numpy(photograph.copy()).permute(2, 0, 1)
            every = photo.unfold(1, size, size).unfold(2, size, size).flatten(1, 2).transpose(0, 1)
            tiles.append(every[torch.linspace(0, len(every) - 1, 12).long()])
        return torch.cat(tiles)

    return cut


@pytest.fixture(scope="session")
def tiles(photographs) -> Callable[[int], Tensor]:
    """tiles(size): float32 [32, 3, size, size] of whole grey levels; the last 8 are hard cases."""

    def cut(size: int) -> Tensor:
        photos = photographs(size).float()
        dark, bright = photos[3], photos[18]
        one_flat_channel = dark.clone()
        one_flat_channel[1] = 77
        nearly_flat = torch.full_like(dark, 90)
        nearly_flat[:, 0, 0] = 91
        hard = [
            torch.zeros_like(dark),
            torch.full_like(dark, 255),
            torch.full_like(dark, 128),
            nearly_flat,
            100 + (dark / 64).floor(),  # low contrast
            (bright > bright.mean()).float() * 255,  # two values
            bright[:1].expand_as(bright),  # no colour
            one_flat_channel,
        ]
        return torch.cat((photos, torch.stack(hard)))

    return cut


@pytest.fixture(scope="session")
def by_pillow() -> Callable[..., Tensor]:
    """by_pillow(images, f, *rows): f(image, *row) for one Pillow image at a time."""

    def run(images: Tensor, function: Callable[..., Image.Image], *rows: Tensor) -> Tensor:
        results = []
        for i, image in enumerate(images):
            image = Image.fromarray(image.to(torch.uint8).permute(1, 2, 0).numpy())
            result = function(image, *(row[i].item() for row in rows)).convert("RGB")
            results.append(torch.from_numpy(np.array(result)).permute(2, 0, 1).float())
        return torch.stack(results)

    return run
