"""Features on disk: computed once for each image, encoder and view, and used by all runs.

    ROOT/files-2.sqlite         the digest of each file, valid while its size and time stay the same
    ROOT/ENCODER/v00.features   rows of float16, appended
    ROOT/ENCODER/v00.keys       for each row the digest of the image and a checksum

Features are found by the content of the image, so a file that was changed or moved is no problem,
and a copy costs nothing. Rows are written before their keys, so a row counts once it is complete,
even if a process is killed or the machine stops. A row whose checksum is wrong is not used.
"""

import os
import shutil
import sqlite3
import time
import zlib
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from filelock import FileLock

from comatch import compiler_cache
from comatch.data.views import Digest, digest_of
from comatch.errors import UserError
from comatch.types import Images, Part

KEY = np.dtype([("digest", "<u8", 2), ("checksum", "<u4")])
LIMIT = 20 * 10**9  # bytes of all features, unless COMATCH_CACHE_LIMIT says otherwise
LOCK_SECONDS = 600  # that a process waits for another one that writes
UNKNOWN = -1
CHECKED = 4096  # rows that are read at once to check them
HASH_CHUNK = 4096  # files whose digests are written together


def default_root() -> Path:
    return compiler_cache.folder() / "features"


def limit() -> int:
    """The largest size of the cache in bytes: $COMATCH_CACHE_LIMIT in GB, or 20 GB."""
    text = os.environ.get("COMATCH_CACHE_LIMIT", "")
    try:
        return int(float(text) * 1e9) if text else LIMIT
    except ValueError:
        raise UserError(f"COMATCH_CACHE_LIMIT={text}: give a number of gigabytes") from None


class Stored(NamedTuple):
    """The features of one encoder in the cache."""

    name: str
    images: int  # with at least one view
    views: int  # of all images together
    bytes: int
    used: float  # the time of the last use


class FeatureStore:
    """The features of one encoder."""

    def __init__(self, root: Path, encoder: str, width: int) -> None:
        self.root, self.path, self.width = root, root / encoder, width
        self.known: dict[int, np.ndarray] = {}  # of each view, the digests [n, 2], sorted
        self.rows: dict[int, np.ndarray] = {}  # the row of each of these
        self.checksums: dict[int, np.ndarray] = {}  # of each row
        self.sound: dict[int, np.ndarray] = {}  # whether the checksum of each row is right
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            os.utime(self.path)
        except OSError as error:
            raise unwritable(self.path, error) from None

    # ------------------------------------------------------------------------------- reading

    def has(self, view: int, digests: np.ndarray) -> np.ndarray:  # [n, 2] -> [n] bool
        """Whether each is there and undamaged."""
        return self._check(view, self._find(view, digests))

    def read(self, view: int, digests: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Features [n, width] float16, and whether [n] each is there and undamaged."""
        rows = self._find(view, digests)
        there = self._check(view, rows)
        features = np.zeros((len(digests), self.width), np.float16)
        features[there] = self._rows(view, rows[there])
        return features, there

    def _check(self, view: int, rows: np.ndarray) -> np.ndarray:  # [n] -> [n] bool
        """Whether these rows have the right checksum. Each row is looked at once."""
        there = rows >= 0
        sound = self.sound[view]
        unknown = np.unique(rows[there])
        unknown = unknown[sound[unknown] == UNKNOWN]
        for begin in range(0, len(unknown), CHECKED):
            some = unknown[begin : begin + CHECKED]
            found = [zlib.crc32(row.tobytes()) for row in self._rows(view, some)]
            sound[some] = self.checksums[view][some] == np.array(found, np.uint32)
        there[there] = sound[rows[there]] == 1
        return there

    def _rows(self, view: int, rows: np.ndarray) -> np.ndarray:  # [n, width]
        if not len(rows):
            return np.empty((0, self.width), np.float16)
        shape = (int(rows.max()) + 1, self.width)
        try:
            return np.memmap(self._file(view), np.float16, "r", shape=shape)[rows]
        except (OSError, ValueError):  # ValueError: it is shorter than it was
            raise UserError(
                f"another process has changed the feature cache {self.path}: start again"
            ) from None

    def _find(self, view: int, digests: np.ndarray) -> np.ndarray:  # [n] rows, -1: absent
        if view not in self.known:
            keys = self._complete_keys(view)
            order = np.lexsort((np.arange(len(keys)), keys["digest"][:, 0]))
            self.rows[view], self.checksums[view] = order, keys["checksum"]
            self.sound[view] = np.full(len(keys), UNKNOWN, np.int8)
            self.known[view] = keys["digest"][order]
        known = self.known[view]
        if not len(known):
            return np.full(len(digests), -1)
        # Of a digest that occurs twice the last row counts: the one before it was damaged.
        place = np.searchsorted(known[:, 0], digests[:, 0], side="right") - 1
        same = (known[place] == digests).all(1) & (place >= 0)
        return np.where(same, self.rows[view][place], -1)

    def _complete_keys(self, view: int) -> np.ndarray:
        """The keys of all rows that were written completely."""
        try:
            keys = self._file(view, "keys").read_bytes()
            rows = self._file(view).stat().st_size // (2 * self.width)
        except FileNotFoundError:
            return np.empty(0, KEY)
        return np.frombuffer(keys, KEY, min(len(keys) // KEY.itemsize, rows))

    def _file(self, view: int, kind: str = "features") -> Path:
        return self.path / f"v{view:02d}.{kind}"

    def refresh(self) -> None:
        """Read the keys again: other processes may have added some."""
        self.known.clear()

    # ------------------------------------------------------------------------------- writing

    def append(self, view: int, digests: np.ndarray, features: np.ndarray) -> None:
        """Add the features [n, width] of images that have none of this view."""
        features = np.ascontiguousarray(features, np.float16)
        keys = np.empty(len(digests), KEY)
        keys["digest"] = digests
        keys["checksum"] = [zlib.crc32(row.tobytes()) for row in features]
        try:
            with FileLock(self.path / ".lock", timeout=LOCK_SECONDS):
                rows = len(self._complete_keys(view))
                write_at(self._file(view), rows * 2 * self.width, features.tobytes())
                write_at(self._file(view, "keys"), rows * KEY.itemsize, keys.tobytes())
        except OSError as error:
            raise unwritable(self.path, error) from None
        self.known.pop(view, None)

    def make_room(self, more: int) -> None:
        """Delete the least recently used encoders until so many bytes fit below the limit."""
        most, others = limit(), [one for one in stored(self.root) if one.name != self.path.name]
        size = sum(one.bytes for one in stored(self.root))
        for one in sorted(others, key=lambda one: one.used):
            if size + more <= most:
                return
            shutil.rmtree(self.root / one.name, ignore_errors=True)
            size -= one.bytes
        if size + more > most:
            raise UserError(
                f"the features take {(size + more) / 1e9:.1f} GB, more than the cache may have "
                f"({most / 1e9:.0f} GB): use fewer views (--set views=...), or set "
                "COMATCH_CACHE_LIMIT to a number of gigabytes"
            )


def write_at(path: Path, position: int, content: bytes) -> None:
    """Write behind the complete rows, over what a killed process left, and wait for the disk."""
    path.touch()
    with path.open("r+b") as file:
        file.truncate(position)
        file.seek(position)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def unwritable(path: Path, error: OSError) -> UserError:
    return UserError(
        f"cannot write the feature cache {path}: {error.strerror or error}. What was computed is "
        "kept: make room, or set COMATCH_CACHE to another folder"
    )


def stored(root: Path) -> list[Stored]:
    """What the cache has, the encoder that was used last first."""
    found = []
    for folder in sorted(path for path in root.glob("*") if path.is_dir()):
        keys = {path: path.stat().st_size // KEY.itemsize for path in folder.glob("*.keys")}
        size = sum(path.stat().st_size for path in folder.iterdir())
        found.append(
            Stored(
                folder.name,
                max(keys.values(), default=0),
                sum(keys.values()),
                size,
                folder.stat().st_mtime,
            )
        )
    return sorted(found, key=lambda one: -one.used)


def delete(root: Path, names: Collection[str]) -> int:
    """Delete the features of these encoders; return how many bytes that frees."""
    freed = sum(one.bytes for one in stored(root) if one.name in names)
    try:
        for name in names:
            shutil.rmtree(root / name)
    except OSError as error:
        raise unwritable(root, error) from None
    return freed


# ------------------------------------------------------------------------------------ digests


def digests(root: Path, part: Part) -> np.ndarray:  # [N, 2]
    """The digest of each image of a part. A file is read only if it is new or has changed.

    An unreadable file has a digest of zeros.
    """
    if isinstance(part, Images):
        found = [digest_of(image.numpy().tobytes()) for image in part.images]
        return np.frombuffer(b"".join(found), "<u8").reshape(-1, 2)
    paths = [os.fspath((part.root / name).absolute()) for name in part.names]
    try:
        found = digests_of_files(root, paths)
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in NOT_DAMAGE:
            raise unusable(root, error) from None
        remove_index(root)
        try:
            found = digests_of_files(root, paths)
        except sqlite3.Error as again:
            raise unusable(root, again) from None
    return np.frombuffer(b"".join(found), "<u8").reshape(-1, 2)


def digests_of_files(root: Path, paths: list[str]) -> list[Digest]:
    found: list[Digest] = []
    with opened(root) as index, ThreadPoolExecutor() as pool:
        for begin in range(0, len(paths), HASH_CHUNK):
            some = paths[begin : begin + HASH_CHUNK]
            states = dict(zip(some, pool.map(state_of, some), strict=True))
            known = {path: look_up(index, path, state) for path, state in states.items()}
            new = [path for path, digest in known.items() if digest is None]
            hashed = dict(zip(new, pool.map(hash_file, new), strict=True))
            store_digests(index, hashed, states)
            found += [known[path] or hashed[path] for path in some]
    return found


UNREADABLE: Digest = bytes(16)
# Size of a file and times of its last change. A copy can bring its time along, but not the second.
State = tuple[int, int, int]
INDEX = "files-2.sqlite"
NOT_DAMAGE = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_LOCKED,
}


def state_of(path: str) -> State | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def hash_file(path: str) -> Digest:
    try:
        if not os.path.isfile(path):  # opening a pipe would block
            return UNREADABLE
        with open(path, "rb") as file:
            return digest_of(file.read())
    except OSError:
        return UNREADABLE


@contextmanager
def opened(root: Path) -> Iterator[sqlite3.Connection]:
    """The index of files."""
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(root, error) from None
    with closing(sqlite3.connect(root / INDEX, timeout=LOCK_SECONDS)) as index:
        index.execute(
            "CREATE TABLE IF NOT EXISTS files "
            "(path TEXT PRIMARY KEY, size INT, changed INT, status INT, digest BLOB, checksum INT)"
        )
        yield index


def remove_index(root: Path) -> None:
    """Remove a damaged index: it only saves reading, and is made anew."""
    try:
        for name in (INDEX, f"{INDEX}-journal", f"{INDEX}-wal", f"{INDEX}-shm"):
            (root / name).unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(root, error) from None


def unusable(root: Path, error: sqlite3.Error) -> UserError:
    return UserError(
        f"cannot use the feature cache {root / INDEX}: {error}. Make room, or set COMATCH_CACHE to "
        "another folder"
    )


def look_up(index: sqlite3.Connection, path: str, state: State | None) -> Digest | None:
    if state is None:
        return None
    row = index.execute(
        "SELECT digest, checksum FROM files "
        "WHERE path = ? AND size = ? AND changed = ? AND status = ?",
        (encoded(path), *state),
    ).fetchone()
    sound = row and isinstance(row[0], bytes) and row[1] == checksum(path, state, row[0])
    return row[0] if sound else None


def checksum(path: str, state: State, digest: Digest) -> int:
    """A checksum of an entry of the index: SQLite has none, and a wrong digest is another image."""
    return zlib.crc32(repr((encoded(path), state, digest)).encode())


def store_digests(
    index: sqlite3.Connection, hashed: dict[str, Digest], states: dict[str, State | None]
) -> None:
    """Remember digests, except of files that changed a moment ago and may change again unseen."""
    now = time.time_ns()
    rows = [
        (encoded(path), *state, digest, checksum(path, state, digest))
        for path, digest in hashed.items()
        if digest != UNREADABLE and (state := states[path]) and now - state[1] > 2 * 10**9
    ]
    with index:
        index.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)", rows)


def encoded(path: str) -> bytes:
    """A path can have bytes that are no text."""
    return os.fsencode(path)
