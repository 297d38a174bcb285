"""Downloads are verified, and archives are unpacked safely."""

import hashlib
import http.server
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from comatch.data import downloads
from comatch.data.downloads import unpack
from comatch.errors import UserError

Fetch = Callable[..., None]
CONTENT = bytes(range(256)) * 10_000  # more than one block
MD5 = hashlib.md5(CONTENT).hexdigest()


class _Handler(http.server.BaseHTTPRequestHandler):
    """/whole sends the file; /short promises more bytes than it sends; /slow sends none."""

    released = threading.Event()

    def do_GET(self) -> None:
        if self.path.startswith("/missing"):
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        if self.path.startswith("/slow"):
            self.released.wait(5)
            return
        self.wfile.write(CONTENT[:1000] if self.path.startswith("/short") else CONTENT)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    _Handler.released.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        _Handler.released.set()
        server.shutdown()


@pytest.fixture
def fetch() -> Fetch:
    pytest.importorskip("pooch")
    return downloads.fetch


@pytest.mark.parametrize("progress", [True, False])
def test_fetch_brings_the_file_and_makes_its_folder(
    fetch: Fetch, server: str, tmp_path: Path, progress: bool
) -> None:
    target = tmp_path / "new" / "folder" / "file.bin"
    fetch(f"{server}/whole/file.bin", target, MD5, progress)
    assert target.read_bytes() == CONTENT
    assert list(target.parent.iterdir()) == [target]


def test_fetch_shows_its_bar_on_stderr_only(
    fetch: Fetch, server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fetch(f"{server}/whole/file.bin", tmp_path / "file.bin", MD5, progress=True)
    assert capsys.readouterr().out == ""


def test_fetch_from_a_file_address(fetch: Fetch, tmp_path: Path) -> None:
    (tmp_path / "here").write_bytes(CONTENT)
    fetch((tmp_path / "here").as_uri(), tmp_path / "there", MD5)
    assert (tmp_path / "there").read_bytes() == CONTENT


@pytest.mark.parametrize("kind", ["whole", "short"])
def test_a_wrong_checksum_leaves_nothing(
    fetch: Fetch, server: str, tmp_path: Path, kind: str
) -> None:
    md5 = MD5 if kind == "short" else "0" * 32
    with pytest.raises(UserError, match=r"damaged or has changed|cannot download"):
        fetch(f"{server}/{kind}/file.bin", tmp_path / "file.bin", md5)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_checksum_leaves_the_old_file_alone(
    fetch: Fetch, server: str, tmp_path: Path
) -> None:
    (tmp_path / "file.bin").write_text("old")
    with pytest.raises(UserError):
        fetch(f"{server}/whole/file.bin", tmp_path / "file.bin", "0" * 32)
    assert (tmp_path / "file.bin").read_text() == "old"


def test_no_network_says_what_to_put_where(fetch: Fetch, tmp_path: Path) -> None:
    url = "http://127.0.0.1:9/file.bin"  # the discard port: nobody listens
    with pytest.raises(UserError) as caught:
        fetch(url, tmp_path / "file.bin", MD5)
    message = str(caught.value)
    assert url in message
    assert f"put it at {tmp_path / 'file.bin'}" in message
    assert "\n" not in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("kind", "reason"), [("missing", "Not Found"), ("slow", "timed out")])
def test_a_failing_server_is_a_user_error(
    fetch: Fetch, server: str, tmp_path: Path, kind: str, reason: str
) -> None:
    with pytest.raises(UserError, match=reason):
        fetch(f"{server}/{kind}/file.bin", tmp_path / "file.bin", MD5, timeout=0.3)
    assert list(tmp_path.iterdir()) == []


def _tar(path: Path, *names: str) -> Path:
    member = path.parent / "member"
    member.write_text("hello")
    with tarfile.open(path, "w:gz") as tar:
        for name in names:
            tar.add(member, arcname=name)
    member.unlink()
    return path


def test_unpack(tmp_path: Path) -> None:
    archive = _tar(tmp_path / "a.tar.gz", "folder/one", "folder/deep/two", "three")
    unpack(archive, tmp_path)
    files = {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()}
    assert files == {"a.tar.gz", "folder/one", "folder/deep/two", "three"}
    assert (tmp_path / "folder/deep/two").read_text() == "hello"


def test_unpack_leaves_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "one").write_text("mine")
    unpack(_tar(tmp_path / "a.tar.gz", "folder/one"), tmp_path)
    assert (tmp_path / "folder" / "one").read_text() == "mine"
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a.tar.gz", "folder", "one"]


@pytest.mark.filterwarnings("ignore:.*filter extracted tar:DeprecationWarning")
@pytest.mark.parametrize("filtered", [True, False])  # before 3.11.4, tarfile believed every name
@pytest.mark.parametrize("evil", ["../evil", "../../evil", "folder/../../evil", "/evil", "link"])
def test_unpack_refuses_to_write_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evil: str, filtered: bool
) -> None:
    if not filtered:
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    inside, archive = tmp_path / "inside", tmp_path / "a.tar.gz"
    inside.mkdir()
    with tarfile.open(archive, "w:gz") as tar:
        for name in ("good", evil):
            member = tarfile.TarInfo(name)
            if name == "link":
                member.type, member.linkname = tarfile.SYMTYPE, str(tmp_path)
            tar.addfile(member)
    with pytest.raises(
        UserError, match=r"cannot unpack .* is no plain file or folder inside of it"
    ):
        unpack(archive, inside)
    assert {p.name for p in tmp_path.rglob("*")} == {"inside", "a.tar.gz"}


@pytest.mark.parametrize("damage", ["truncated", "garbage", "empty", "flipped"])
def test_a_damaged_archive_leaves_nothing(tmp_path: Path, damage: str) -> None:
    archive = tmp_path / "a.tar.gz"
    (tmp_path / "big").write_bytes(hashlib.sha512(b"").digest() * 5000)
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "big", arcname="folder/big")
    (tmp_path / "big").unlink()
    whole = archive.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 255
    content = {"truncated": whole[:-20], "garbage": b"?" * 999, "empty": b"", "flipped": flipped}
    archive.write_bytes(content[damage])
    with pytest.raises(UserError, match="cannot unpack") as caught:
        unpack(archive, tmp_path)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == [archive]


def test_without_pooch_says_what_to_put_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(UserError, match=r"pooch is not installed.*put it at"):
        downloads.fetch("http://127.0.0.1:9/file.bin", tmp_path / "file.bin", MD5)
