"""Image files of every kind, and files that are none: as bytes, each with a name."""

import io
import struct
import zlib
from functools import cache

import numpy as np
from PIL import Image, PngImagePlugin

FORMATS = {
    "JPEG": ["L", "RGB", "CMYK", "YCbCr"],
    "PNG": ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"],
    "WEBP": ["RGB", "RGBA"],
    "BMP": ["1", "L", "P", "RGB"],
    "GIF": ["L", "P", "RGB"],
    "TIFF": ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "LAB", "I;16", "I", "F"],
}
SUFFIXES = [".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".PNG", ".JpEg"]


def grey(width: int, height: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width), dtype=np.uint8)


def in_mode(mode: str, width: int = 9, height: int = 7, seed: int = 0) -> Image.Image:
    values = grey(width, height, seed)
    if mode == "F":
        values = values.astype(np.float32)
        values[0, 0], values[-1, -1] = np.nan, np.inf
        return Image.fromarray(values)
    if mode.startswith("I"):
        return Image.fromarray(values.astype(np.uint16 if mode == "I;16" else np.int32) * 200)
    if mode == "LAB":
        return Image.frombytes("LAB", (width, height), np.stack([values] * 3, 2).tobytes())
    return Image.fromarray(np.stack([values] * 3, 2)).convert(mode)


def encode(image: Image.Image, form: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def png(width: int, height: int, depth: int, colour: int, rows: bytes, *chunks: bytes) -> bytes:
    """A PNG from its rows, which may be fewer than its header claims."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    body = chunk(b"IHDR", header) + b"".join(chunks) + chunk(b"IDAT", zlib.compress(rows, 1))
    return b"\x89PNG\r\n\x1a\n" + body + chunk(b"IEND", b"")


def chunk(kind: bytes, content: bytes) -> bytes:
    check = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)


@cache
def plain(seed: int) -> bytes:
    """A small image; another one for each seed."""
    return encode(in_mode("RGB", seed=seed), "PNG")


@cache
def unusual() -> dict[str, bytes]:
    """Images that can be read."""
    found = {
        f"{form} {mode}": encode(in_mode(mode), form)
        for form, modes in FORMATS.items()
        for mode in modes
    }
    frames = [in_mode("RGB", seed=seed) for seed in range(3)]
    for form in ("GIF", "WEBP", "PNG", "TIFF"):
        found[f"animated {form}"] = encode(frames[0], form, save_all=True, append_images=frames[1:])
    for turn in (0, 1, 5, 6, 9, 65535):
        exif = Image.Exif()
        exif[0x0112] = turn
        for form in ("JPEG", "PNG", "WEBP", "TIFF"):
            found[f"orientation {turn} {form}"] = encode(frames[0], form, exif=exif.tobytes())
    transparent = {"transparency": 0}
    found["transparent GIF"] = encode(in_mode("P"), "GIF", **transparent)
    found["transparent PNG"] = encode(in_mode("P"), "PNG", **transparent)
    found["16 bits RGB"] = png(2, 2, 16, 2, (b"\0" + b"\x80\x01" * 6) * 2)
    found["long and thin"] = encode(Image.new("RGB", (1, 20_000), "red"), "PNG")
    found["wide and thin"] = encode(Image.new("RGB", (20_000, 1), "red"), "JPEG")
    found["one pixel"] = encode(Image.new("L", (1, 1)), "PNG")
    text = PngImagePlugin.PngInfo()
    text.add_text("comment", "line\nline\0" * 9)
    found["text"] = encode(frames[0], "PNG", pnginfo=text)
    found["profile"] = encode(frames[0], "JPEG", icc_profile=b"\0" * 3000)
    return found


@cache
def hostile() -> dict[str, bytes]:
    """Bombs, and files that are no images."""
    zeros = b"\0" * 100_000_000
    small = b"\0" * 4
    gif = bytearray(encode(in_mode("L"), "GIF"))
    gif[6:10] = b"\xff\xff\xff\xff"  # width and height of the screen
    bmp = bytearray(encode(in_mode("RGB"), "BMP"))
    bmp[18:26] = struct.pack("<ii", 2**31 - 1, -(2**31))
    webp = b"RIFF" + struct.pack("<I", 22) + b"WEBPVP8X" + struct.pack("<I", 10) + b"\x10\0\0\0"
    jpeg = bytearray(encode(in_mode("L"), "JPEG"))
    start = jpeg.find(b"\xff\xc0")
    jpeg[start + 5 : start + 9] = b"\xff\xdc\xff\xdc"
    tiff = bytearray(encode(in_mode("L"), "TIFF"))
    tags = {0x0100: 3_000_000, 0x0101: 3_000_000}
    first = struct.unpack_from("<I", tiff, 4)[0]
    for i in range(struct.unpack_from("<H", tiff, first)[0]):
        at = first + 2 + 12 * i
        if (tag := struct.unpack_from("<H", tiff, at)[0]) in tags:
            struct.pack_into("<HHII", tiff, at, tag, 4, 1, tags[tag])
    return {
        "bomb of 900 million pixels": png(30_000, 30_000, 1, 0, zeros),
        "bomb with a huge header": png(2**31 - 1, 2**31 - 1, 8, 6, small),
        "bomb just below the limit": png(13_000, 13_000, 1, 0, small),
        "text bomb": png(4, 4, 8, 0, small * 5, chunk(b"zTXt", b"a\0\0" + zlib.compress(zeros, 1))),
        "profile bomb": png(
            4, 4, 8, 0, small * 5, chunk(b"iCCP", b"a\0\0" + zlib.compress(zeros, 1))
        ),
        "GIF with a huge screen": bytes(gif),
        "BMP with huge sides": bytes(bmp),
        "WebP with a huge canvas": webp + b"\xff\xff\xff" * 2,
        "JPEG with huge sides": bytes(jpeg),
        "TIFF with huge sides": bytes(tiff),
        "empty": b"",
        "zeros": b"\0" * 5000,
        "table": b"path,label\na.png,cat\n",
        "page": b"<!doctype html><html><body>404</body></html>",
        "drawing": b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>',
        "pickle": b"cos\nsystem\n(S'exit 1'\ntR.",
        "PostScript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        "portable map": b"P6\n9 9\n255\n" + b"\1" * 243,
        "archive": b"PK\x03\x04" + b"\0" * 60,
    }


def damaged(content: bytes, cut: float, flips: list[tuple[float, int]]) -> bytes:
    """A part of the content, with bytes changed at places between 0 and 1."""
    some = bytearray(content[: round(len(content) * cut)])
    for place, change in flips:
        if some:
            some[int(place * (len(some) - 1))] ^= change
    return bytes(some)
