"""Resized and cropped squares against Pillow's."""

import numpy as np
import pytest
import torch

from comatch.data.images import square
from helpers import photograph

pytest.importorskip("triton")
from comatch.kernels import squares

pytestmark = pytest.mark.slow

SHAPES = [(40, 30), (20, 91), (8, 8), (60, 7)]


@pytest.mark.parametrize(
    ("side", "position", "by_pixel"), [(8, 0.3, True), (8, 1.0, False), (20, 0.0, True)]
)
def test_squares_equal_pillows(device, side, position, by_pixel, monkeypatch):
    """With channels last, as Pillow stores images, and with channels first."""
    monkeypatch.setattr(squares, "LINE", 16)  # two programs for a line of the larger one
    images = [photograph(*shape, seed=i) for i, shape in enumerate(SHAPES)]
    tensors = [torch.from_numpy(np.array(image)).to(device).permute(2, 0, 1) for image in images]
    tensors = tensors if by_pixel else [tensor.contiguous() for tensor in tensors]
    rows = torch.randperm(len(images)).tolist()
    ours = torch.zeros(len(images) + 1, 3, side, side, dtype=torch.uint8, device=device)
    squares.fit(tensors, [position] * len(images), ours, rows)
    assert ours[-1].count_nonzero() == 0
    for image, row in zip(images, rows, strict=True):
        difference = ours[row].cpu().int() - torch.from_numpy(square(image, side, position)).int()
        assert difference.abs().max() <= 2  # both round twice, for tall images in the other order
        assert difference.abs().float().mean() < 0.3
