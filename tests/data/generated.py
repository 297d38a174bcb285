"""Strategies of hypothesis for folders of images and tables of labels, as nobody wants them."""

import os
import stat
import unicodedata
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import strategies as st

import specimens

LONGEST = 120  # bytes of a name
CLASSES = ["cat", "dog", "Cat", "cat ", " dog", "9", "10", "\u00dcber", "U\u0308ber", "na\u00efve"]
PARTS = ["test", "Test", "train", "val", "valid", "unlabeled", "unlabelled", ".git", "__MACOSX"]

# A folder may have any byte but the slash: undecodable ones become surrogates.
letters = st.one_of(
    st.sampled_from("ab9 ._-\n\r\t\"',;\\\u00e9\u2028\u202e\U0001f408\udc80\udcff"),
    st.characters(exclude_categories=["Cs"], exclude_characters="/\0"),
)
odd_names = st.text(letters, min_size=1, max_size=12).filter(
    lambda name: name not in (".", "..") and len(os.fsencode(name)) < LONGEST
)
long_names = st.integers(100, 255).map("x".__mul__)
names = st.one_of(st.sampled_from("abcdefgh"), odd_names, long_names)
class_names = st.one_of(st.sampled_from(CLASSES), odd_names)
suffixes = st.one_of(st.sampled_from(specimens.SUFFIXES), st.sampled_from(["", ".txt", ".csv"]))
damage = st.lists(st.tuples(st.floats(0, 1), st.integers(1, 255)), max_size=3)


@dataclass(frozen=True)
class Entry:
    """A file, link or pipe in a folder."""

    path: tuple[str, ...]
    kind: str = "file"
    content: bytes = b""
    target: str = ""  # of a link


@dataclass(frozen=True)
class Folder:
    """A generated folder, and how it is read."""

    entries: list[Entry]
    tables: dict[str, bytes]  # by path; "../labels.csv" lies outside
    options: dict[str, object] = field(default_factory=dict)

    def write(self, root: Path) -> Path:
        """Write it; return the folder of images. What the file system refuses is left out."""
        images = root / "images"
        images.mkdir(parents=True)
        (root / "outside").mkdir()
        (root / "outside" / "a.png").write_bytes(specimens.plain(99))
        for entry in self.entries:
            with suppress(OSError):  # two entries may have the same name, or one is too long
                put(images.joinpath(*entry.path), entry)
        for name, table in self.tables.items():
            with suppress(OSError):
                put(images / name, Entry((), content=table))
        return images


def put(path: Path, entry: Entry) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    match entry.kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "link":
            path.symlink_to(entry.target)
        case _:
            if path.exists() and not stat.S_ISREG(path.stat().st_mode):
                raise FileExistsError
            path.write_bytes(entry.content)


# ------------------------------------------------------------------------------------- images

common = st.integers(0, 40).map(specimens.plain)
any_images = st.one_of(
    common,
    common,
    st.sampled_from(list(specimens.unusual().values())),
    st.sampled_from(list(specimens.hostile().values())),
    st.builds(
        specimens.damaged,
        st.sampled_from([v for v in specimens.unusual().values() if len(v) < 2000]),
        st.one_of(st.just(1.0), st.floats(0, 1)),
        damage,
    ),
    st.binary(max_size=40),
)
targets = st.one_of(
    st.sampled_from([".", "..", "../..", "loop", "nowhere", "../outside", "../outside/a.png"]),
    names,
)


@st.composite
def files(draw: st.DrawFn, classes: list[str]) -> Entry:
    folders = draw(
        st.one_of(
            st.sampled_from(classes).map(lambda name: (name,)),
            st.sampled_from(classes).map(lambda name: (name,)),
            st.tuples(st.sampled_from(PARTS), st.sampled_from(classes)),
            st.lists(st.one_of(names, st.sampled_from(PARTS)), max_size=2).map(tuple),
        )
    )
    name = draw(names) + draw(suffixes)
    kind = draw(st.sampled_from(["file"] * 12 + ["link", "link", "folder", "pipe"]))
    return Entry((*folders, name), kind, draw(any_images), draw(targets))


# ------------------------------------------------------------------------------------- labels

heads = st.sampled_from(
    ["path", "file", "Filename", "image", "label", "Class", "split", "", "\ufeffpath", "ID"]
)
texts = st.text(st.one_of(letters, st.sampled_from(',;\t"\0')), max_size=8)


def spelled(name: str, way: int) -> str:
    ways = [
        name,
        f"./{name}",
        name.replace("/", "\\"),
        unicodedata.normalize("NFD", name),
        f"../images/{name}",
        name.upper(),
        name.rpartition("/")[2],
    ]
    return ways[way]


@st.composite
def tables(draw: st.DrawFn, paths: list[str], classes: list[str]) -> bytes:
    """A table of labels that is right, in one of many forms, and in half of all cases damaged."""
    label, path = st.sampled_from(classes), st.sampled_from(paths or ["a.png"])
    rows = [[name, draw(label)] for name in paths]
    rows += draw(
        st.lists(st.tuples(st.builds(spelled, path, st.integers(0, 6)), label), max_size=3)
    )
    head = [["path", "label"]]
    wrong = draw(st.booleans())
    if wrong:
        head = draw(st.lists(st.lists(heads, min_size=1, max_size=4), max_size=1))
        rows += draw(st.lists(st.lists(st.one_of(texts, path, label), max_size=4), max_size=3))
    separator = draw(st.sampled_from(",,,;\t|" if wrong else ",,,;\t"))
    newline = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    quote = draw(st.booleans()) or not wrong
    lines = [[cell(text, quote) for text in row] for row in [*head, *rows]]
    table = encoded(newline.join(separator.join(line) for line in lines), draw(encodings))
    return specimens.damaged(table, 1.0, draw(damage)) if wrong else table


encodings = st.sampled_from(["utf-8"] * 9 + ["utf-8-sig", "latin-1", "utf-16", "cp1252"])


def encoded(text: str, encoding: str) -> bytes:
    try:
        return os.fsencode(text) if encoding == "utf-8" else text.encode(encoding)
    except UnicodeEncodeError:
        return text.encode(errors="replace")


def cell(text: str, quote: bool) -> str:
    doubled = text.replace('"', '""')
    return f'"{doubled}"' if quote else text


# ------------------------------------------------------------------------------------ folders


@st.composite
def folders(draw: st.DrawFn) -> Folder:
    classes = draw(st.lists(class_names, min_size=2, max_size=4, unique=True))
    entries = [
        Entry((name, f"{i}.png"), content=specimens.plain(10 * number + i))
        for number, name in enumerate(classes)
        for i in range(draw(st.integers(1, 3)))
    ]
    if draw(st.integers(0, 5)) == 0:
        entries = []
    entries += draw(st.lists(files(classes), max_size=10))
    images = ["/".join(one.path) for one in entries if one.path[-1].endswith(".png")]
    where = st.sampled_from([(), (), ("labels.csv",), ("../labels.csv", "test/labels.csv")])
    return Folder(
        entries,
        {place: draw(tables(images, classes)) for place in draw(where)},
        {
            "image_size": draw(st.sampled_from([1, 4, 8, 16])),
            "stream": draw(st.sampled_from(["auto", "auto", "yes"])),
            "strict": draw(st.booleans()),
            "labels": draw(st.sampled_from([None, None, None, len(classes), 0.5])),
            "validation": draw(st.sampled_from([0.0, 0.0, 0.3])),
        },
    )
