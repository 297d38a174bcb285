"""Downloads with a checksum, and archives that are unpacked completely or not at all."""

import shutil
import tarfile
import tempfile
import zlib
from pathlib import Path, PurePosixPath
from urllib.parse import urlparse
from urllib.request import url2pathname

from comatch.errors import UserError

BLOCK = 1 << 20


def fetch(url: str, path: Path, md5: str, progress: bool = True, timeout: float = 30.0) -> None:
    """Download `url` to `path`, which appears once it is complete and its checksum is right."""
    try:
        import pooch  # only downloads need it
    except ModuleNotFoundError as error:
        raise _cannot_download(url, path, "pooch is not installed") from error

    def copy(url: str, target: str, _: object) -> None:
        shutil.copyfile(url2pathname(urlparse(url).path), target)

    pooch.get_logger().setLevel("WARNING")
    over_http = pooch.HTTPDownloader(
        progressbar=progress,
        chunk_size=BLOCK,
        timeout=timeout,
        headers={"Accept-Encoding": "identity"},  # else requests unpacks what some servers send
    )
    downloader = copy if url.startswith("file:") else over_http
    try:
        pooch.retrieve(url, f"md5:{md5}", path.name, path.parent, downloader=downloader)
    except OSError as error:  # those of requests too
        raise _cannot_download(url, path, _reason(error)) from error
    except ValueError as error:
        raise UserError(
            f"{url} came damaged or has changed (its md5 is not {md5}): try again, "
            f"or download it by other means to {path}"
        ) from error


def _cannot_download(url: str, path: Path, why: str) -> UserError:
    return UserError(
        f"cannot download {url} ({why}): fetch it where there is a network and put it at {path}"
    )


def _reason(error: BaseException) -> str:
    """One line: that of the error which caused the others."""
    while cause := error.__cause__ or error.__context__:
        error = cause
    return " ".join(str(error).split()) or type(error).__name__


def fetch_and_unpack(
    url: str, archive: Path, md5: str, folder: Path, progress: bool = True
) -> None:
    """Unpack `archive` into `folder`. A missing archive is downloaded, and deleted afterwards."""
    downloaded = not archive.is_file()
    if downloaded:
        fetch(url, archive, md5, progress)
    folder.mkdir(parents=True, exist_ok=True)
    unpack(archive, folder)
    if downloaded:
        archive.unlink(missing_ok=True)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar archive into `folder`: all of it or nothing, and never outside the folder.

    Files and folders that exist there stay as they are.
    """
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".unpacking-") as temporary:
            with tarfile.open(archive) as tar:
                tar.extraction_filter = getattr(tarfile, "data_filter", None)  # from 3.11.4 on
                for member in tar:
                    _check_plain(member)
                    tar.extract(member, temporary)
                while tar.fileobj and tar.fileobj.read(BLOCK):
                    pass  # gzip compares its checksum only at the end, after the last member
            for entry in sorted(Path(temporary).iterdir()):
                if not (folder / entry.name).exists():  # else another process was faster
                    shutil.move(entry, folder / entry.name)
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise UserError(
            f"cannot unpack {archive} ({_reason(error)}): mend or remove it and try again"
        ) from error


def _check_plain(member: tarfile.TarInfo) -> None:
    """Refuse links, devices and paths outside; Python before 3.11.4 does not check them."""
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or not (member.isfile() or member.isdir()):
        raise tarfile.TarError(f"{member.name} is no plain file or folder inside of it")
