"""One image: from a file to a square of pixels.

This module does not import PyTorch, so that worker processes start fast.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")  # decoders of other formats are not used


class ImageError(Exception):
    """An unreadable file; the text says why in a few words."""


def read_image(path: Path, size: int, position: float = 0.5) -> np.ndarray:  # [3, size, size]
    """Decode, resize and crop one image to uint8, or raise `ImageError`."""
    with _opened(path, size) as image:
        return square(image, size, position)


def read_whole(path: Path, size: int, room: int) -> np.ndarray | None:  # [H, W, 3] uint8
    """Decode one image upright in RGB, without resizing; None if it has more than `room` bytes."""
    with _opened(path, size) as image:
        if 3 * image.width * image.height > room:
            return None
        return np.asarray(_rgb(_upright(image)))


@contextmanager
def _opened(path: Path, size: int) -> Iterator[Image.Image]:
    try:
        if path.exists() and not path.is_file():  # opening a pipe would block
            raise ImageError("not a file")
        with Image.open(path, formats=FORMATS) as image:
            image.draft(None, (2 * size, 2 * size))  # a big JPEG is decoded at a fraction
            yield image
    except Exception as error:  # a damaged file can cause any error
        raise ImageError(_why(error, path)) from error


def _why(error: Exception, path: Path) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not an image" if path.stat().st_size else "an empty file"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return " ".join(str(error).split()) or type(error).__name__


def square(image: Image.Image, size: int, position: float = 0.5) -> np.ndarray:  # [3, size, size]
    """The image upright in RGB, its shorter side resized to `size`, the longer side cropped.

    `position` of the crop is 0 at the beginning of the longer side and 1 at its end.
    """
    image = _rgb(_upright(image))
    centering = (position, position)
    image = ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR, centering=centering)
    return np.ascontiguousarray(np.array(image).transpose(2, 0, 1))


def _upright(image: Image.Image) -> Image.Image:
    image.load()  # some formats have their EXIF data at the end
    return ImageOps.exif_transpose(image) if turned(image) else image  # this always copies


def turned(image: Image.Image) -> bool:
    """Whether EXIF says that the image is rotated."""
    return bool(image.getexif().get(ExifTags.Base.Orientation, 1) != 1)


def _rgb(image: Image.Image) -> Image.Image:
    """The image in RGB: 16-bit grey values are scaled, and transparency becomes white."""
    if image.mode.startswith(("I", "F")):
        return _eight_bits(image).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image if image.mode == "RGB" else image.convert("RGB")


def _eight_bits(image: Image.Image) -> Image.Image:
    """A grey image of 16 bits, 32 bits or floats, in 8 bits.

    White is the smallest common full scale (1, 255 or 65535) above all values, so that images of
    one kind stay comparable. If there is none, the image's own range is stretched.
    """
    values = np.nan_to_num(np.asarray(image, dtype=np.float64))  # [H, W]
    low, high = values.min(), values.max()
    scales = (1, 255, 65535) if image.mode == "F" else (65535,)
    full = next((scale for scale in scales if low >= 0 and high <= scale), None)
    if full is None:
        values, full = values - low, (high - low) or 1
    return Image.fromarray(np.round(values * (255 / full)).astype(np.uint8))
