"""What was read, in a few lines before training begins, and what is doubtful about it."""

import unicodedata
import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from comatch.data.copies import identical, nearly_equal
from comatch.data.splits import Split
from comatch.data.streaming import in_pieces
from comatch.errors import printable, shortened
from comatch.types import Dataset, Files, Images, Part

COLUMNS = 80
LINES = 3  # of classes
LONGEST = 24  # characters of a class name
FEW_LABELS = 3  # of a class
IMBALANCE = 10  # times as many labels as another class
SHARE = 0.01  # of copies, from which there is a warning
SMALL = 32  # pixels, of images on disk that are compared
MOST_READ = 5_000  # images on disk that are compared: a few seconds
SHRUNK = 2  # times as large as the working resolution, and details are lost


class Summary(NamedTuple):
    """Lines for the terminal, and warnings of one line each."""

    lines: list[str]
    warnings: list[str]


def summarise(dataset: Dataset, split: Split, image_size: int) -> Summary:
    """Describe a data set and the use of its labels in at most a dozen lines of 80 columns."""
    counts = labels_per_class(dataset)
    test = len(dataset.test) if dataset.test else 0
    images = counted(len(dataset.train) + test, "image")
    title = f"{shown(dataset.name)}: {images}, {counted(len(dataset.classes), 'class')}"
    hidden = sum(counts.values()) - len(split.labelled) - len(split.validation)
    rows = [("training", ", ".join(parts_of(split)))]
    if hidden > 0:
        rows.append(("", f"{counted(hidden, 'label')} not used"))
    rows.append(("test", counted(test, "image") if test else "none"))
    rows += [("classes" if i == 0 else "", line) for i, line in enumerate(class_lines(counts))]
    rows += [("size", resolution(dataset.original_size, image_size))]
    if dataset.skipped:
        rows.append(("left out", counted(len(dataset.skipped), "image")))
    if dataset.conflicts:
        rows.append(("two labels", f"{counted(len(dataset.conflicts), 'image')}, not labelled"))
    return Summary([title, *(row(head, text) for head, text in rows)], doubts(dataset, counts))


def row(head: str, text: str) -> str:
    return printable(f"  {head:<11}{text}".rstrip())


def parts_of(split: Split) -> list[str]:
    uses = [(split.labelled, "labelled"), (split.unlabelled, "unlabelled")]
    if len(split.validation):
        uses.append((split.validation, "held out"))
    return [f"{len(rows):,} {use}" for rows, use in uses]


def labels_per_class(dataset: Dataset) -> dict[str, int]:
    """How many training images of each class are labelled, the largest class first."""
    numbers = Counter(dataset.train.labels.tolist())
    counts = {name: numbers[number] for number, name in enumerate(dataset.classes)}
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def class_lines(counts: dict[str, int]) -> list[str]:
    """All classes with their labels in up to three lines, or the largest and the smallest."""
    items = [f"{shown(name)} {count:,}" for name, count in counts.items()]
    lines = [""]
    for item in items:
        if len(lines[-1]) + len(item) + 2 > COLUMNS - 13:
            lines.append("")
        lines[-1] += f"{item}, "
    if len(lines) <= LINES:
        return [line.rstrip(" ") for line in lines[:-1]] + [lines[-1].rstrip(", ")]
    return [f"most labels: {fitting(items)}", f"fewest: {fitting(items[::-1])}"]


def fitting(items: Sequence[str]) -> str:
    """As many items as fit into one line."""
    line = items[0]
    for item in items[1:]:
        if len(f"{line}, {item}") > COLUMNS - 13 - len("most labels: "):
            break
        line = f"{line}, {item}"
    return line


def resolution(original: tuple[int, int] | None, image_size: int) -> str:
    if original is None:
        return f"seen at {image_size} pixels"
    width, height = original
    about = f"images of about {width} x {height} are seen at {image_size} pixels"
    if min(original) >= SHRUNK * image_size:
        return f"{about}; --set image_size=..."
    return about


def doubts(dataset: Dataset, counts: dict[str, int]) -> list[str]:
    """What may be wrong with a folder; published data sets are as they are."""
    if dataset.original_size is None:
        return []
    found = [*class_doubts(dataset.classes, counts), *copy_doubts(dataset.train, dataset.test)]
    return [printable(doubt) for doubt in found]


def class_doubts(classes: Sequence[str], counts: dict[str, int]) -> list[str]:
    found = []
    alike: dict[str, list[str]] = defaultdict(list)
    for name in classes:
        alike["".join(unicodedata.normalize("NFKC", name).casefold().split())].append(name)
    for names in [names for names in alike.values() if len(names) > 1][:1]:
        among = f" (and {sum(len(n) > 1 for n in alike.values()) - 1} more such groups)"
        found.append(
            f"the classes {' and '.join(map(repr, names))} differ only in case, spaces or the "
            f"form of letters{among if ' 0 more' not in among else ''}: give one class one name"
        )
    few = [f"'{name}' {count}" for name, count in counts.items() if count < FEW_LABELS]
    if few:
        found.append(
            f"{counted(len(few), 'class')} with fewer than {FEW_LABELS} labels "
            f"({shortened(few[::-1])}): label more images"
        )
    (most, largest), *_, (fewest, smallest) = counts.items()
    if largest >= IMBALANCE * smallest:
        found.append(
            f"class '{most}' has {largest:,} labels and class '{fewest}' {smallest:,}: most "
            "methods expect classes of similar size, so label more images of the small ones"
        )
    return found


def as_seen(part: Part) -> Images:
    """The images of a part; those on disk as small squares, without the unreadable ones."""
    if isinstance(part, Images):
        return part
    numbered = replace(part, labels=torch.arange(len(part)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the run names what it cannot read
        found = list(in_pieces(numbered, SMALL, torch.device("cpu"), side=SMALL, some=False))
    if not found:
        return Images(torch.zeros(0, 3, SMALL, SMALL, dtype=torch.uint8), torch.zeros(0), [])
    images, rows = (torch.cat(column) for column in zip(*found, strict=True))
    return Images(images, part.labels[rows], [part.names[row] for row in rows.tolist()])


def copy_doubts(train: Part, test: Part | None) -> list[str]:
    """Images that occur more than once, if they are in memory or few enough to be read for this."""
    if isinstance(train, Files) and len(train) + (len(test) if test else 0) > MOST_READ:
        return []
    train, test = as_seen(train), as_seen(test) if test else None
    names = train.names + (test.names if test else [])
    pairs = identical(train.images, *([test.images] if test else []))
    inside = [(row, first) for row, first in pairs if row < len(train)]
    found = []
    if len(inside) > SHARE * len(train):
        found.append(
            f"{len(inside):,} of {len(train):,} training images are copies of others "
            f"({example(names, inside)}): remove copies"
        )
    if test is None:
        return found
    leaked = [(row, first) for row, first in pairs if row >= len(train) > first]
    if leaked:
        found.append(
            f"{len(leaked):,} of {len(test):,} test images are also training images "
            f"({example(names, leaked)}): accuracy will be too high, so remove them from one part"
        )
    near = nearly_equal(test.images, train.images)
    known = {row - len(train) for row, _ in leaked}
    others = [(row + len(train), other) for row, other in near.pairs if row not in known]
    if len(others) > SHARE * near.searched:
        found.append(
            f"{len(others):,} of {near.searched:,} test images look nearly the same as a training "
            f"image ({example(names, others)}): accuracy may be too high"
        )
    return found


def example(names: Sequence[str], pairs: Sequence[tuple[int, int]]) -> str:
    row, first = pairs[0]
    return f"{names[row]} and {names[first]}"


def counted(number: int, what: str) -> str:
    """1 image, 2 images, 3 classes."""
    plural = {"class": "classes"}.get(what, f"{what}s")
    return f"{number:,} {what if number == 1 else plural}"


def shown(name: str) -> str:
    """A name without line breaks, shortened if it is long."""
    name = printable(name)
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
