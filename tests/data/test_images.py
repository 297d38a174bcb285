"""Images of all formats become squares; an unreadable file gets a short reason."""

import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from comatch.data import images as module
from comatch.data.image_folder import find_images
from comatch.data.images import ImageError, read_image, square
from helpers import write_image


def test_square_resizes_the_shorter_side_and_crops_the_centre() -> None:
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, :10, 0], wide[:, 10:20, 1], wide[:, 20:, 2] = 255, 255, 255
    for image in (Image.fromarray(wide), Image.fromarray(wide.transpose(1, 0, 2))):
        pixels = square(image, 20)
        assert pixels.shape == (3, 20, 20)
        assert pixels.dtype == np.uint8
        assert pixels.flags.writeable  # torch.from_numpy wants to
        assert pixels.flags.c_contiguous
        assert (pixels[1, 1:-1, 1:-1] == 255).all()  # the edge blends with what is beyond it
        assert (pixels[[0, 2], 1:-1, 1:-1] == 0).all()


def test_square_crops_at_a_position() -> None:
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, :10, 0], wide[:, 10:20, 1], wide[:, 20:, 2] = 255, 255, 255
    for image in (Image.fromarray(wide), Image.fromarray(wide.transpose(1, 0, 2))):
        for channel, place in enumerate((0.0, 0.5, 1.0)):
            pixels = square(image, 10, place)[:, 2:8, 2:8]
            assert pixels[channel].min() == 255
            assert pixels.sum() == pixels[channel].sum()


def test_square_antialiases() -> None:
    board = (np.indices((256, 256)).sum(0) % 2 * 255).astype(np.uint8)
    pixels = square(Image.fromarray(board), 8)
    assert np.abs(pixels.astype(int) - 127).max() <= 3


@pytest.mark.parametrize("shape", [(1, 1), (1, 500), (500, 1), (3, 2), (1000, 7)])
def test_any_size_becomes_square(tmp_path: Path, shape: tuple[int, int]) -> None:
    pixels = read_image(write_image(tmp_path / "x.png", (9, 99, 199), shape), 16)
    assert (pixels == np.array([9, 99, 199])[:, None, None]).all()
    assert pixels.shape == (3, 16, 16)


@pytest.mark.parametrize(
    "name", ["x.jpg", "x.JPEG", "x.png", "x.PnG", "x.webp", "x.bmp", "x.gif", "x.tif", "x.TIFF"]
)
def test_formats(tmp_path: Path, name: str) -> None:
    path = write_image(tmp_path / name, (200, 100, 50), (20, 20))
    assert find_images([tmp_path]) == [path]
    middle = read_image(path, 8)[:, 4, 4].astype(int)
    assert np.abs(middle - [200, 100, 50]).max() <= 4


def half_clear(mode: str) -> Image.Image:
    """Black and fully transparent on the left, a solid colour on the right."""
    image = Image.new("RGBA", (16, 16), (0, 0, 0, 0))
    image.paste((40, 40, 40, 255), (8, 0, 16, 16))
    return image.convert(mode)


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
@pytest.mark.parametrize("suffix", ["png", "tiff"])
def test_transparency_is_white(tmp_path: Path, mode: str, suffix: str) -> None:
    path = tmp_path / f"x.{suffix}"
    half_clear(mode).save(path)
    with Image.open(path) as image:
        assert image.mode == mode
    pixels = read_image(path, 16)
    assert (pixels[:, :, :8] == 255).all()
    assert (pixels[:, :, 8:] == 40).all()


def test_half_transparency_is_half_white() -> None:
    assert np.abs(square(Image.new("RGBA", (4, 4), (0, 0, 0, 128)), 4).astype(int) - 127).max() <= 1


@pytest.mark.parametrize("suffix", ["png", "gif"])
def test_palettes_with_and_without_transparency(tmp_path: Path, suffix: str) -> None:
    image = Image.new("P", (16, 16), 0)
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.paste(1, (8, 0, 16, 16))
    image.save(tmp_path / f"solid.{suffix}")
    image.save(tmp_path / f"clear.{suffix}", transparency=0)
    solid = read_image(tmp_path / f"solid.{suffix}", 16)
    clear = read_image(tmp_path / f"clear.{suffix}", 16)
    assert solid[:, 3, 3].tolist() == [255, 0, 0]
    assert clear[:, 3, 3].tolist() == [255, 255, 255]
    assert solid[:, 3, 12].tolist() == clear[:, 3, 12].tolist() == [0, 0, 255]


@pytest.mark.parametrize(("mode", "colour", "seen"), [("L", 77, 77), ("1", 1, 255), ("1", 0, 0)])
def test_grey_and_black_and_white(tmp_path: Path, mode: str, colour: int, seen: int) -> None:
    Image.new(mode, (9, 9), colour).save(tmp_path / "x.png")
    assert (read_image(tmp_path / "x.png", 8) == seen).all()


@pytest.mark.parametrize("suffix", ["jpg", "tiff"])
def test_cmyk(tmp_path: Path, suffix: str) -> None:
    Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(tmp_path / f"x.{suffix}")
    red = read_image(tmp_path / f"x.{suffix}", 8)[:, 4, 4].astype(int)
    assert np.abs(red - [255, 0, 0]).max() <= 4


RAMP = np.linspace(0, 1, 256)[None].repeat(256, 0)  # [256, 256], dark to light


@pytest.mark.parametrize(
    ("values", "name", "mode"),
    [
        ((RAMP * 65535).astype(np.uint16), "x.png", "I;16"),
        ((RAMP * 65535).astype(np.uint16), "x.tiff", "I;16"),
        ((RAMP * 65535).astype(">u2"), "x.tiff", "I;16B"),
        ((RAMP * 65535).astype(np.int32), "x.tiff", "I"),
        ((RAMP * 2**31 - 2**30).astype(np.int32), "x.tiff", "I"),
        (RAMP.astype(np.float32), "x.tiff", "F"),
        ((RAMP * 255).astype(np.float32), "x.tiff", "F"),
        ((RAMP * 65535).astype(np.float32), "x.tiff", "F"),
        ((RAMP * 12 - 6).astype(np.float32), "x.tiff", "F"),
    ],
)
def test_16_bit_greys_are_scaled(tmp_path: Path, values: np.ndarray, name: str, mode: str) -> None:
    image = Image.fromarray(values)
    image.save(tmp_path / name)
    with Image.open(tmp_path / name) as stored:
        assert stored.mode == mode
    pixels = read_image(tmp_path / name, 256).astype(int)
    assert np.abs(pixels - RAMP * 255).max() <= 1


def test_a_dark_16_bit_image_stays_dark(tmp_path: Path) -> None:
    Image.fromarray((RAMP * 6553.5).astype(np.uint16)).save(tmp_path / "x.png")
    assert abs(int(read_image(tmp_path / "x.png", 256).max()) - 26) <= 1


def test_floats_that_are_not_finite(tmp_path: Path) -> None:
    values = np.full((8, 8), np.nan, np.float32)
    values[:, :4] = 1
    Image.fromarray(values).save(tmp_path / "x.tiff")
    assert read_image(tmp_path / "x.tiff", 8)[0, 0].tolist() == [255] * 4 + [0] * 4


@pytest.mark.parametrize("name", ["x.jpg", "x.png", "x.webp", "x.tiff"])
def test_exif_rotation_is_applied(tmp_path: Path, name: str) -> None:
    upright = Image.new("RGB", (16, 16), "red")
    upright.paste((0, 0, 255), (0, 8, 16, 16))  # blue below
    exif = Image.Exif()
    exif[0x0112] = 6  # "turn me to the right"
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / name, exif=exif)
    pixels = read_image(tmp_path / name, 16).astype(int)
    assert pixels[0, 2, 2] > 200 > 50 > pixels[2, 2, 2]
    assert pixels[2, 13, 13] > 200 > 50 > pixels[0, 13, 13]
    assert pixels[0, 2, 13] > 200 > 50 > pixels[0, 13, 2]


@pytest.mark.parametrize("name", ["x.gif", "x.tiff", "x.webp", "x.png"])
def test_the_first_frame_is_read(tmp_path: Path, name: str) -> None:
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("red", "lime", "blue")]
    frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:])
    with Image.open(tmp_path / name) as image:
        assert image.n_frames == 3  # type: ignore[attr-defined]
    pixels = read_image(tmp_path / name, 8)[:, 4, 4].astype(int)
    assert np.abs(pixels - [255, 0, 0]).max() <= 4


def test_large_jpegs_are_decoded_at_a_fraction_of_their_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = np.meshgrid(np.linspace(0, 6, 1600), np.linspace(0, 4, 1200))
    big = np.stack([127 + 120 * np.sin(x), 127 + 120 * np.cos(y), 127 + 120 * np.sin(x + y)], 2)
    Image.fromarray(big.astype(np.uint8)).save(tmp_path / "x.jpg", quality=95)
    decoded = []
    monkeypatch.setattr(
        module, "square", lambda image, *how: (decoded.append(image.size), square(image, *how))[1]
    )
    pixels = read_image(tmp_path / "x.jpg", 32)
    assert max(decoded[0]) <= 400
    assert np.abs(pixels - square(Image.fromarray(big.astype(np.uint8)), 32).astype(int)).max() <= 6


def bomb(path: Path) -> None:
    """A PNG whose header promises 40,000 x 40,000 pixels."""
    header = b"IHDR" + struct.pack(">IIBBBBB", 40_000, 40_000, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk + struct.pack(">I", 9) + b"IDAT" + b"\0" * 13)


def test_every_unreadable_file_is_an_image_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    reasons = {}
    for suffix in ("jpg", "png", "webp", "bmp", "gif", "tiff"):
        path = tmp_path / f"truncated.{suffix}"
        Image.fromarray(noise).save(path)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "text.png").write_text("I am no image")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "loop.png").symlink_to("loop.png")
    os.mkfifo(tmp_path / "pipe.png")
    bomb(tmp_path / "bomb.png")
    for path in [*tmp_path.iterdir(), tmp_path / "missing.png"]:
        with pytest.raises(ImageError) as caught:
            read_image(path, 8)
        reasons[path.name] = str(caught.value)
    assert reasons["empty.png"] == "an empty file"
    assert reasons["text.png"] == "not an image"
    assert reasons["folder.png"] == reasons["pipe.png"] == "not a file"
    assert reasons["missing.png"] == "no such file or directory"
    assert "truncated" in reasons["truncated.jpg"]
    assert "decompression bomb" in reasons["bomb.png"]
    assert all(reason and "\n" not in reason for reason in reasons.values())

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Image, "open", refuse)  # root may read everything, so chmod proves nothing
    with pytest.raises(ImageError, match="permission denied"):
        read_image(write_image(tmp_path / "secret.bmp"), 8)


def test_other_decoders_of_pillow_are_not_used(tmp_path: Path) -> None:
    Image.new("RGB", (9, 9)).save(tmp_path / "x.ppm")
    (tmp_path / "x.ppm").rename(tmp_path / "x.png")
    with pytest.raises(ImageError, match="not an image"):
        read_image(tmp_path / "x.png", 8)
