"""The pictures of a folder that may change, and small JPEG files of them, made on demand."""

import io
import os
import threading
from collections import OrderedDict
from pathlib import Path

from PIL import Image

from comatch.commands.suggest.table import Pictures, find_pictures
from comatch.data.image_files import is_inside
from comatch.data.images import ImageError, read_image, read_rgb
from comatch.errors import UserError

THUMBNAIL, LARGE = 200, 600  # pixels of the shorter side
LONGEST_SIDE = 1600
QUALITY = 85
MEMORY = 64 * 2**20  # bytes of JPEG files that are kept


class PictureList:
    """Names of pictures by number. A number stays; new files are appended."""

    def __init__(self, pictures: Pictures) -> None:
        self.root = pictures.root
        self.names = list(pictures.names)
        self.numbers = {name: number for number, name in enumerate(self.names)}
        self.gone: set[int] = set()
        self.left_out = pictures.left_out
        self.problem = ""
        self._stamps = self._stamps_of(pictures.names)

    def refresh(self) -> list[str]:
        """Look for files that appeared or went; return the new names."""
        if self._stamps_of(self.names) == self._stamps:
            return []
        try:
            found = find_pictures(self.root, inside=True)
            self.problem = ""
        except UserError as error:
            self.problem = str(error)
            return []
        self._stamps = self._stamps_of(found.names)
        new = [name for name in found.names if name not in self.numbers]
        self.numbers |= {name: len(self.names) + i for i, name in enumerate(new)}
        self.names += new
        there = set(found.names)
        self.gone = {number for number, name in enumerate(self.names) if name not in there}
        return new

    def _stamps_of(self, names: list[str]) -> dict[str, int]:
        """When each folder with pictures changed."""
        folders = {""}
        for name in names:
            while (name := os.path.dirname(name)) not in folders:
                folders.add(name)
        stamps = {}
        for folder in folders:
            try:
                stamps[folder] = os.stat(self.root / folder).st_mtime_ns
            except OSError:
                stamps[folder] = 0
        return stamps


class Thumbnails:
    """JPEG files of pictures. The last used ones are kept, up to so many bytes."""

    def __init__(self, root: Path, memory: int = MEMORY) -> None:
        self.root, self.home, self.memory = root, os.path.realpath(root), memory
        self.kept: OrderedDict[tuple[str, int, int], bytes] = OrderedDict()
        self.bytes = 0
        self.lock = threading.Lock()

    def small(self, name: str) -> bytes:
        """The central square of a picture, or an `ImageError`."""
        path = self._path(name)
        try:
            status = path.stat()
        except OSError as error:
            raise ImageError((error.strerror or str(error)).lower()) from None
        key = (name, status.st_mtime_ns, status.st_size)
        with self.lock:
            if key in self.kept:
                self.kept.move_to_end(key)
                return self.kept[key]
        pixels = read_image(path, THUMBNAIL).transpose(1, 2, 0)
        content = jpeg(Image.fromarray(pixels))
        with self.lock:
            if key not in self.kept:
                self.bytes += len(content)
            self.kept[key] = content
            while self.bytes > self.memory:
                self.bytes -= len(self.kept.popitem(last=False)[1])
        return content

    def large(self, name: str) -> bytes:
        """The whole picture, or an `ImageError`."""
        image = read_rgb(self._path(name), LARGE)
        image.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
        return jpeg(image)

    def _path(self, name: str) -> Path:
        path = self.root / name
        if not is_inside(str(path), self.home):  # a link, perhaps made after the folder was read
            raise ImageError("a link out of the folder")
        return path


def jpeg(image: Image.Image) -> bytes:
    """Encoded anew: nothing of the file but its pixels leaves this process."""
    content = io.BytesIO()
    image.save(content, "JPEG", quality=QUALITY)
    return content.getvalue()
