"""Squares of images against Pillow's."""

import numpy as np
import pytest
import torch

from comatch.data.images import square
from helpers import photograph

pytest.importorskip("triton")
from comatch.kernels import squares

SHAPES = [(40, 30), (20, 91), (8, 8), (60, 7)]


@pytest.mark.parametrize(
    ("side", "place", "by_pixel"), [(8, 0.3, True), (8, 1.0, False), (20, 0.0, True)]
)
def test_squares_are_those_of_pillow(device, side, place, by_pixel, monkeypatch):
    """Whether colours come pixel by pixel, as Pillow has them, or one after the other."""
    monkeypatch.setattr(squares, "LINE", 16)  # a line of the larger one takes two programs
    images = [photograph(*shape, seed=i) for i, shape in enumerate(SHAPES)]
    tensors = [torch.from_numpy(np.array(image)).to(device).permute(2, 0, 1) for image in images]
    tensors = tensors if by_pixel else [tensor.contiguous() for tensor in tensors]
    rows = torch.randperm(len(images)).tolist()
    ours = torch.zeros(len(images) + 1, 3, side, side, dtype=torch.uint8, device=device)
    squares.fit(tensors, [place] * len(images), ours, rows)
    assert ours[-1].count_nonzero() == 0
    for image, row in zip(images, rows, strict=True):
        difference = ours[row].cpu().int() - torch.from_numpy(square(image, side, place)).int()
        assert difference.abs().max() <= 2  # both round twice, of long images in another order
        assert difference.abs().float().mean() < 0.3
