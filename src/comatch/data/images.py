"""One image: from a file to a square of pixels.

This module does not import PyTorch, so that worker processes start fast.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

MOST_PIXELS = 10**8  # after a JPEG is decoded at a fraction; more would need gigabytes
MANY_PIXELS = 2**24  # from here on, an image is converted and reduced in strips
STRIP = 2**22  # pixels
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")  # decoders of other formats are not used
ORIENTATION = ExifTags.Base.Orientation


class Room:
    """Memory that threads share: who finds too little of it waits for the others."""

    def __init__(self, size: int) -> None:
        self.free, self.changed = size, threading.Condition()

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        with self.changed:
            self.changed.wait_for(lambda: self.free >= size)
            self.free -= size
        try:
            yield
        finally:
            with self.changed:
                self.free += size
                self.changed.notify_all()


MEMORY = Room(10**9)  # bytes of all images that are decoded at once; each needs less


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


def read_rgb(path: Path, size: int) -> Image.Image:
    """Decode one image upright in RGB. Of a large one, the shorter side is about twice `size`."""
    with _opened(path, size) as image:
        return bounded(image, size)


def bounded(image: Image.Image, size: int) -> Image.Image:
    """The image upright in RGB, reduced so that its shorter side is about twice `size`."""
    if image.width * image.height > MANY_PIXELS:
        image.load()
        return _upright(_reduced(image, (0, 0, *image.size), min(image.size) // (2 * size)))
    image = _rgb(_upright(image))
    factor = min(image.size) // (2 * size)
    return image.reduce(factor) if factor > 1 else image


def original_size(path: Path) -> tuple[int, int] | None:
    """Width and height of the upright image, from the head of the file; None if unreadable."""
    try:
        if not path.is_file():  # opening a pipe would block
            return None
        with Image.open(path, formats=FORMATS) as image:
            # Other formats may have their EXIF data at the end.
            sideways = image.format == "JPEG" and image.getexif().get(ORIENTATION, 1) > 4
            return (image.height, image.width) if sideways else image.size
    except Exception:  # a damaged file can cause any error
        return None


def read_upload(content: bytes, size: int, side: int, most: int) -> np.ndarray:  # [3, size, size]
    """Decode an image of at most so many pixels that somebody sent, or raise `ImageError`.

    It is resized to a square of `side` pixels, of which the central `size` are kept.
    """
    margin = (side - size) // 2
    with _opened(content, side, most) as image:
        return square(image, side)[:, margin : margin + size, margin : margin + size]


@contextmanager
def _opened(source: Path | bytes, size: int, most: int | None = None) -> Iterator[Image.Image]:
    """An image file, or its content. `most` limits its pixels before a JPEG is reduced."""
    try:
        if isinstance(source, Path) and source.exists() and not source.is_file():
            raise ImageError("not a file")  # opening a pipe would block
        file = BytesIO(source) if isinstance(source, bytes) else source
        with Image.open(file, formats=FORMATS) as image:
            _check_pixels(image, most)
            image.draft(None, (2 * size, 2 * size))  # a big JPEG is decoded at a fraction
            _check_pixels(image, MOST_PIXELS)
            with MEMORY.taken(_bytes(image)):
                yield image
    except Exception as error:  # a damaged file can cause any error
        raise ImageError(_why(error, source)) from error


def _bytes(image: Image.Image) -> int:
    """The memory that decoding and converting an image takes, at most."""
    pixels = image.width * image.height
    if pixels > MANY_PIXELS:
        return 4 * pixels + 32 * STRIP
    return pixels * (32 if image.mode.startswith(("I", "F")) else 16)


def _check_pixels(image: Image.Image, most: int | None) -> None:
    if most is not None and image.width * image.height > most:
        raise ImageError(f"too large ({image.width} x {image.height} pixels)")


def _why(error: Exception, source: Path | bytes) -> str:
    if isinstance(error, UnidentifiedImageError):
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        return "not an image" if size else "an empty file"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return " ".join(str(error).split()) or type(error).__name__


def square(image: Image.Image, size: int, position: float = 0.5) -> np.ndarray:  # [3, size, size]
    """The image upright in RGB, its shorter side resized to `size`, the longer side cropped.

    `position` of the crop is 0 at the beginning of the longer side and 1 at its end.
    """
    if image.width * image.height > MANY_PIXELS:
        image.load()
        side = min(image.size)
        left, top = (round((edge - side) * position) for edge in image.size)
        box = (left, top, left + side, top + side)
        image = _upright(_reduced(image, box, side // (2 * size)))
    else:
        image = _rgb(_upright(image))
    centering = (position, position)
    image = ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR, centering=centering)
    return np.ascontiguousarray(np.array(image).transpose(2, 0, 1))


def _reduced(image: Image.Image, box: tuple[int, int, int, int], factor: int) -> Image.Image:
    """A box of a large image in RGB, reduced by a factor, not yet upright."""
    left, top, right, bottom = box
    factor = max(1, factor)
    rows = factor * max(1, STRIP // (factor * (right - left)))
    boxes = [(left, y, right, min(y + rows, bottom)) for y in range(top, bottom, rows)]
    scale = None
    if image.mode.startswith(("I", "F")):
        extremes = [_extremes(_values(image.crop(box))) for box in boxes]
        lows, highs = zip(*extremes, strict=True)
        scale = _scale(image.mode, min(lows), max(highs))
    strips = [np.asarray(_rgb(image.crop(box), scale).reduce(factor)) for box in boxes]
    reduced = Image.fromarray(np.concatenate(strips))
    reduced.getexif()[ORIENTATION] = image.getexif().get(ORIENTATION, 1)
    return reduced


def _upright(image: Image.Image) -> Image.Image:
    image.load()  # some formats have their EXIF data at the end
    return ImageOps.exif_transpose(image) if turned(image) else image  # this always copies


def turned(image: Image.Image) -> bool:
    """Whether EXIF says that the image is rotated."""
    return bool(image.getexif().get(ORIENTATION, 1) != 1)


def _rgb(image: Image.Image, scale: tuple[float, float] | None = None) -> Image.Image:
    """The image in RGB: 16-bit grey values are scaled, and transparency becomes white."""
    if image.mode.startswith(("I", "F")):
        return _eight_bits(image, scale).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image if image.mode == "RGB" else image.convert("RGB")


def _eight_bits(image: Image.Image, scale: tuple[float, float] | None) -> Image.Image:
    """A grey image of 16 bits, 32 bits or floats, in 8 bits."""
    values = _values(image)
    black, white = scale or _scale(image.mode, *_extremes(values))
    return Image.fromarray(np.round((values - black) * (255 / (white - black))).astype(np.uint8))


def _values(image: Image.Image) -> np.ndarray:  # [H, W]
    return np.nan_to_num(np.asarray(image, dtype=np.float64))


def _extremes(values: np.ndarray) -> tuple[float, float]:
    return float(values.min()), float(values.max())


def _scale(mode: str, low: float, high: float) -> tuple[float, float]:
    """The values that become black and white.

    White is the smallest common full scale (1, 255 or 65535) above all values, so that images of
    one kind stay comparable. If there is none, the image's own range is stretched.
    """
    scales = (1, 255, 65535) if mode == "F" else (65535,)
    full = next((scale for scale in scales if low >= 0 and high <= scale), None)
    return (low, high if high > low else low + 1) if full is None else (0, full)
