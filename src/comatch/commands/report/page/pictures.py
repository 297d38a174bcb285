"""Small pictures of a run's images, as text that a page holds without another file."""

import base64
import io
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from comatch.data.images import ImageError, read_image

SIDE = 112  # pixels of an example
DOT = 56  # pixels of a picture on the map
QUALITY = {SIDE: 72, DOT: 60}  # of JPEG
ROOM = 9 * 2**20  # bytes of all pictures of a page: the rest of it takes less than a megabyte


@dataclass
class Album:
    """Draws pictures until a page has no room for more; then a picture is an empty text."""

    room: int = ROOM

    def take(self, image: np.ndarray | None, side: int) -> str:  # [3, S, S] uint8
        """A picture as a `data:` address; empty if there is no image, or no room."""
        if image is None:
            return ""
        written = io.BytesIO()
        picture = Image.fromarray(image.transpose(1, 2, 0))
        picture.resize((side, side), Image.Resampling.BILINEAR).save(
            written, "JPEG", quality=QUALITY[side]
        )
        text = f"data:image/jpeg;base64,{base64.b64encode(written.getvalue()).decode()}"
        if len(text) > self.room:
            return ""
        self.room -= len(text)
        return text


def read_all(sources: list[Path | Tensor]) -> list[np.ndarray | None]:
    """Each image as a square [3, SIDE, SIDE] uint8; None if it cannot be read any more."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(read, sources))


def read(source: Path | Tensor) -> np.ndarray | None:
    try:
        if isinstance(source, Path):
            return read_image(source, SIDE)
    except ImageError:
        return None
    image = Image.fromarray(source.permute(1, 2, 0).numpy())
    # Pixels of small images stay visible as squares.
    resample = Image.Resampling.NEAREST if image.width < SIDE else Image.Resampling.BILINEAR
    return np.ascontiguousarray(np.asarray(image.resize((SIDE, SIDE), resample)).transpose(2, 0, 1))
