"""The labels of a session, in a CSV file that other programs and pages may change meanwhile.

Every action is written before it is confirmed: under a lock, the file is read again if it changed,
merged row by row, and replaced atomically. Only the rows of an action are changed; other rows,
columns and the order stay. What cannot be written, because the disk is full or the file is damaged,
waits in memory and is tried again.

A row that is missing from the file changes nothing: another program may be writing it. A row that
is back at a value from before an action of this session is taken for an old copy that a program
saved, and the action is kept.
"""

import csv
import io
import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from comatch.commands.suggest.table import EMPTY, HEAD, STATUS, Mark, mark_of, status_column
from comatch.data.image_files import finder
from comatch.data.labels_file import UNLABELLED_NAMES, Columns, Table, read_table
from comatch.errors import UNPRINTABLE, UserError
from comatch.files import atomic_writer

LONGEST = 100  # letters of a class
UNDONE = 1000  # actions of a tab that can be undone
LOCK_SECONDS = 2.0
HALF_WRITTEN = 2.0  # seconds for which a file without an end of line may be half written


Stamp = tuple[int, int, int]


class BusyError(Exception):
    """The file is in use; it is tried again soon."""


def class_name(text: str) -> str:
    """A class as a person typed it, without needless spaces; or an error."""
    name = " ".join(text.split())
    if not name or len(name) > LONGEST or UNPRINTABLE.search(name):
        raise UserError(f"a class needs a name of 1 to {LONGEST} letters")
    if name.lower() in UNLABELLED_NAMES:
        raise UserError(f"'{name}' is no class: skip the picture instead")
    return name


class LabelStore:
    """Marks of pictures by name, in step with a CSV file. Threads may share it."""

    def __init__(self, path: Path, root: Path, names: Iterable[str]) -> None:
        self.path, self.root = path, root
        self.marks: dict[str, Mark] = {}
        self.classes: list[str] = []  # in the order of their first use
        self.problem = ""  # why the last write or read failed, in one line
        self.notice = ""  # what was merged
        self.version = 0
        self.changed: dict[str, int] = {}  # the version in which each picture changed last
        self.pending: dict[str, Mark] = {}  # given, and not yet on the disk
        self._names = set(names)
        self._before: dict[str, set[Mark]] = defaultdict(set)  # of pictures marked in this session
        self._undo: dict[str, deque[dict[str, tuple[Mark, Mark]]]] = {}
        self._table = Table([], [], Columns(0, 1, 2), ",")
        self._places: dict[str, list[int]] = {}  # the rows of each picture
        self._stamp: Stamp | None = None
        self._find: Callable[[str], str | None] | None = None
        self._threads = threading.RLock()
        self._file_lock = FileLock(path.with_name(f".{path.name}.lock"))
        self.sync()

    # ------------------------------------------------------------------------------- actions

    def mark(self, marks: Mapping[str, Mark], tab: str = "") -> None:
        """Set the marks of some pictures, and write them."""
        with self._threads:
            self._read_changes()
            wanted = {name: mark for name, mark in marks.items() if name in self._names}
            steps = {name: (self.of(name), mark) for name, mark in wanted.items()}
            steps = {name: step for name, step in steps.items() if step[0] != step[1]}
            if steps:
                self._undo.setdefault(tab, deque(maxlen=UNDONE)).append(steps)
                self._give({name: after for name, (_, after) in steps.items()})
            self.sync()

    def undo(self, tab: str = "") -> list[str]:
        """Undo the last action of a tab; return the pictures. What changed since then stays."""
        with self._threads:
            self._read_changes()
            steps = self._undo[tab].pop() if self._undo.get(tab) else {}
            back = {name: one for name, (one, after) in steps.items() if self.of(name) == after}
            self._give(back)
            self.sync()
            return list(back)

    def of(self, name: str) -> Mark:
        return self.marks.get(name, EMPTY)

    def labels(self) -> dict[str, str]:
        with self._threads:
            return {name: mark.label for name, mark in self.marks.items() if mark.label}

    def since(self, version: int) -> dict[str, Mark]:
        """The pictures that changed after a version."""
        with self._threads:
            return {name: self.of(name) for name, when in self.changed.items() if when > version}

    def add_names(self, names: Sequence[str]) -> None:
        """Pictures that appeared in the folder."""
        with self._threads:
            self._names.update(names)
            self._find, self._stamp = None, None  # the file may have rows of them

    # --------------------------------------------------------------------------- the file

    def sync(self) -> None:
        """Read what others changed and write what is pending. A failure is told in `problem`."""
        with self._threads:
            if not self.pending and self._stamp_now() == self._stamp:
                return
            try:
                with self._file_lock.acquire(timeout=LOCK_SECONDS):
                    self._read()
                    if self.pending:
                        self._write()
                self.problem = ""
            except BusyError:
                pass
            except Timeout:
                self.problem = f"another program has locked {self.path.name}: close it"
            except UserError as error:
                self.problem = str(error)
            except OSError as error:
                reason = error.strerror or error
                self.problem = f"cannot write {self.path}: {reason}. Make room or allow writing"

    def _read_changes(self) -> None:
        """Know what others changed before an action, so that undo returns to that."""
        if self._stamp_now() != self._stamp:
            self.sync()

    def _give(self, marks: Mapping[str, Mark]) -> None:
        """Marks by a person here: they count over what an older copy of the file says."""
        for name, mark in marks.items():
            self._before[name].add(self.of(name))
            self._before[name].discard(mark)
            self.pending[name] = mark
        self._set(marks)

    def _set(self, marks: Mapping[str, Mark]) -> None:
        if not marks:
            return
        self.version += 1
        for name, mark in marks.items():
            self.changed[name] = self.version
            if mark == EMPTY:
                self.marks.pop(name, None)
            else:
                self.marks[name] = mark
            if mark.label and mark.label not in self.classes:
                self.classes.append(mark.label)

    def _stamp_now(self) -> Stamp | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> None:
        """Take over the rows that others changed."""
        now = self._stamp_now()
        if now == self._stamp and now is not None:
            return
        if now is None:  # not there yet, or deleted: all that is known is written again
            self._table, self._places = Table([], [], Columns(0, 1, 2), ","), {}
            self.pending = {**self.marks, **self.pending}
            self._stamp = None
            return
        if half_written(self.path, now):
            raise BusyError
        table = read_table(self.path)
        self._table, self._places = table, self._places_of(table)
        theirs, known = {}, bool(self.version)
        kept = 0
        for name, places in self._places.items():
            mark = mark_of([table.rows[place] for place in places], table)
            if name in self.pending or mark == self.of(name):
                continue
            if mark in self._before.get(name, ()):
                self.pending[name] = self.of(name)
                kept += 1
            else:
                theirs[name] = mark
        lost = [name for name in self.marks if name not in self._places]
        self.pending = {name: self.marks[name] for name in lost} | self.pending
        self._set(theirs)
        if known and (theirs or kept or lost):
            self.notice = merged(self.path.name, len(theirs), kept + len(lost))
        self._stamp = now

    def _places_of(self, table: Table) -> dict[str, list[int]]:
        places: dict[str, list[int]] = {}
        for number, row in enumerate(table.rows):
            name: str | None = row[table.columns.path]
            if name not in self._names:
                self._find = self._find or finder(self.root, sorted(self._names), "")
                name = self._find(row[table.columns.path])
            if name is not None:
                places.setdefault(name, []).append(number)
        return places

    def _write(self) -> None:
        """Replace the file by one with the pending marks."""
        table = with_status(self._table, any(mark.status for mark in self.pending.values()))
        rows = [list(row) for row in table.rows]
        dropped: set[int] = set()
        for name, mark in self.pending.items():
            places = self._places.get(name)
            if not places and mark == EMPTY:
                continue
            if places:
                row = rows[places[0]]
                dropped.update(places[1:])  # of a picture with two labels
            else:
                row = [""] * table.columns.width
                row[table.columns.path] = name
                rows.append(row)
            fill(row, mark, table)
        table = table._replace(rows=[row for i, row in enumerate(rows) if i not in dropped])
        text = io.StringIO()
        writer = csv.writer(text, delimiter=table.separator, lineterminator="\n")
        writer.writerows([table.head, *table.rows])
        with atomic_writer(self.path) as file:
            file.write(text.getvalue().encode())
        self._table, self._places = table, self._places_of(table)
        self._stamp = self._stamp_now()
        self.pending.clear()


def merged(name: str, theirs: int, kept: int) -> str:
    told = [f"{theirs} pictures taken over"] if theirs else []
    told += [f"{kept} labels that it lacked kept"] if kept else []
    return f"Another program changed {name}: {', '.join(told)}."


def half_written(path: Path, stamp: Stamp) -> bool:
    """Whether a program may be writing the file at this moment: its last line has no end."""
    if not stamp[1] or time.time() - stamp[0] / 1e9 > HALF_WRITTEN:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() not in (b"\n", b"\r")


def with_status(table: Table, needed: bool) -> Table:
    """The table with a head and, if it is needed, with a column for the status."""
    if not table.head:
        table = Table(list(HEAD), table.rows, Columns(0, 1, 2), table.separator)
    if not needed or status_column(table) is not None:
        return table
    width = table.columns.width
    rows = [[*row[:width], *[""] * (width - len(row)), ""] for row in table.rows]
    columns = table.columns._replace(width=width + 1)
    return Table([*table.head, STATUS], rows, columns, table.separator)


def fill(row: list[str], mark: Mark, table: Table) -> None:
    status = status_column(table)
    row += [""] * (table.columns.width - len(row))
    row[table.columns.label] = mark.label
    if status is not None:
        row[status] = mark.status
