"""Files from the network: whole and as published, or not there at all."""

import hashlib
import os
import shutil
import tarfile
import tempfile
import zlib
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from urllib.request import urlopen

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from comatch.errors import UserError

BLOCK = 1 << 20


def fetch(url: str, path: Path, md5: str, progress: bool = True, timeout: float = 30.0) -> None:
    """Download `url` to `path`, which appears only once it is complete and its checksum is right.

    The bytes gather in a file of this process beside it, so neither an interruption nor a second
    process that wants the same file can leave a wrong one.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if _stream(url, part, progress, timeout) != md5:
            raise UserError(
                f"{url} came damaged or has changed (its md5 is not {md5}): try again, "
                f"or download it by other means to {path}"
            )
        part.replace(path)
    except (OSError, HTTPException) as error:  # URLError and timeouts are OSErrors
        raise UserError(
            f"cannot download {url} ({_reason(error)}): "
            f"fetch it where there is a network and put it at {path}"
        ) from error
    finally:
        part.unlink(missing_ok=True)


def _stream(url: str, part: Path, progress: bool, timeout: float) -> str:
    """Write what `url` gives into `part` and return its md5."""
    digest = hashlib.md5(usedforsecurity=False)
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    bar = Progress(*columns, console=Console(stderr=True), transient=True, disable=not progress)
    with urlopen(url, timeout=timeout) as answer, part.open("wb") as file, bar:
        size = answer.headers.get("Content-Length")
        task = bar.add_task(url.rpartition("/")[2], total=int(size) if size else None)
        while block := answer.read(BLOCK):
            file.write(block)
            digest.update(block)
            bar.advance(task, len(block))
    return digest.hexdigest()


def _reason(error: Exception) -> str:
    return " ".join(str(getattr(error, "reason", error)).split()) or type(error).__name__


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar archive into `folder`: all of it or nothing, and never outside of it.

    What is there already stays as it is.
    """
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".unpacking-") as temporary:
            with tarfile.open(archive) as tar:
                tar.extraction_filter = getattr(tarfile, "data_filter", None)  # from 3.11.4 on
                for member in tar:
                    _check_plain(member)
                    tar.extract(member, temporary)
                while tar.fileobj and tar.fileobj.read(BLOCK):
                    pass  # gzip compares its checksum only at the very end, past the last member
            for entry in sorted(Path(temporary).iterdir()):
                if not (folder / entry.name).exists():  # else another process was faster
                    shutil.move(entry, folder / entry.name)
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise UserError(
            f"cannot unpack {archive} ({_reason(error)}): mend or remove it and try again"
        ) from error


def _check_plain(member: tarfile.TarInfo) -> None:
    """A file or a folder, and inside: older versions of Python do not see to it themselves."""
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or not (member.isfile() or member.isdir()):
        raise tarfile.TarError(f"{member.name} is no plain file or folder inside of it")
