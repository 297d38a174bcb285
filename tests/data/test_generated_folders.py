"""Whatever is in a folder, reading it ends in a data set or in an error of one line.

Nothing is written, nothing hangs, and memory stays below 2 GB.
"""

import json
import os
import signal
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import generated
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from PIL import Image

import specimens
from comatch.data import image_folder, sources, splits, views
from comatch.data.config import DataConfig
from comatch.data.images import ImageError, original_size, read_image, read_whole
from comatch.data.labels_file import LARGEST, read_labels, read_list
from comatch.data.summary import summarise
from comatch.errors import UserError, printable
from helpers import LONG

SECONDS = 60  # an example takes a few hundredths of a second
MEMORY = 1_500_000  # KiB beside what the process has already: below 2 GB together

generate = settings(
    max_examples=2000 if LONG else 120,
    derandomize=not LONG,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@contextmanager
def bounded(seconds=SECONDS):
    """Fail if the block hangs, or needs much memory."""

    def hang(*_):
        raise AssertionError(f"still busy after {seconds} seconds")

    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(seconds)
    began = memory("VmRSS")
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert memory("VmHWM") - began < MEMORY


def memory(kind):
    """KiB of this process, where the system says so."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{kind}:"):
                return int(line.split()[1])
    return 0


def snapshot(root):
    """Every entry below a folder with its size and the time of its last change."""
    found = {}
    for here, folders, files in os.walk(os.fsencode(root)):
        for name in (*folders, *files):
            path = os.path.join(here, name)
            status = os.lstat(path)
            found[path] = status.st_mode, status.st_size, status.st_mtime_ns, status.st_ino
    return found


@contextmanager
def untouched(root):
    before = snapshot(root)
    yield
    assert snapshot(root) == before


def read(images, options):
    """All that a run reads of a folder, and what it says about it."""
    table = images.parent / "labels.csv"
    dataset = sources.load(
        str(images),
        images,
        options["image_size"],
        progress=False,
        labels_file=table if table.exists() else None,
        stream=options["stream"],
        strict=options["strict"],
    )
    config = DataConfig(labels=options["labels"], validation=options["validation"])
    split = splits.make(dataset, config, seed=0)
    written = json.loads(json.dumps(splits.to_json(split, dataset)))
    again = splits.restore(dataset, config, written)
    assert again.labelled.tolist() == split.labelled.tolist()
    found = summarise(dataset, split, options["image_size"])
    for line in (*found.lines, *found.warnings):
        assert_one_line(line)
    assert len(set(dataset.train.names)) == len(dataset.train)
    assert dataset.train.labels.max() < len(dataset.classes)
    return dataset


def assert_one_line(message):
    assert message == printable(message)
    message.encode()


def read_file(path):
    """An image file in every way."""
    ways = [
        lambda: read_image(path, 8).shape == (3, 8, 8),
        lambda: (whole := read_whole(path, 8, 10**6)) is None or whole.shape[2] == 3,
        lambda: views.read_views(path, digest(path), range(6), 8).shape == (6, 3, 8, 8),
        lambda: (size := original_size(path)) is None or min(size) > 0,
    ]
    for way in ways:
        with suppress(ImageError):
            assert way()


def digest(path):
    return views.digest_of(path.read_bytes()) if path.is_file() else b""


@generate
@given(generated.folders())
def test_folders(folder):
    with tempfile.TemporaryDirectory() as root, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        images = folder.write(Path(root))
        with untouched(root), bounded():
            classes = ["cat", "dog"]
            try:
                classes = read(images, folder.options).classes
                event("a data set")
            except UserError as error:
                assert_one_line(str(error))
                event("an error of one line")
            for work in (
                lambda: image_folder.labelled_files(images, classes),
                lambda: image_folder.find_images([images]),
            ):
                try:
                    work()
                except UserError as error:
                    assert_one_line(str(error))
            if folder.options["stream"] == "yes":
                for path in images.rglob("*"):
                    if not path.is_dir():
                        read_file(path)


@generate
@given(st.data())
def test_tables(data):
    table = data.draw(
        generated.tables(["a.png", "cat/b.jpg", "c,d.png", "\u00e9.png"], ["cat", "dog"])
    )
    with tempfile.TemporaryDirectory() as root:
        path = Path(root) / "labels.csv"
        path.write_bytes(table)
        with untouched(root), bounded():
            for work in (read_labels, read_list):
                try:
                    assert all(work(path))
                except UserError as error:
                    assert_one_line(str(error))


@generate
@given(st.data())
def test_damaged_images(data):
    content = data.draw(generated.any_images)
    with tempfile.TemporaryDirectory() as root, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(root) / f"a{data.draw(generated.suffixes)}"
        path.write_bytes(content)
        with untouched(root), bounded():
            read_file(path)


@pytest.mark.skipif(not LONG, reason="make faults")
@pytest.mark.parametrize("mode", ["RGBA", "I;16", "P", "1"])
def test_many_threads_read_large_images(tmp_path, mode):
    """Together they need no more memory than a few."""
    for side in (4000, 9900):  # below and above the size from which images are read in strips
        Image.new(mode, (side, side)).save(tmp_path / "a.png", compress_level=1)
        with bounded(), ThreadPoolExecutor(8) as pool:
            shapes = pool.map(lambda _: read_image(tmp_path / "a.png", 8).shape, range(8))
            assert set(shapes) == {(3, 8, 8)}


@pytest.mark.skipif(not LONG, reason="make faults")
@pytest.mark.parametrize("row", ["a,b\n", "{}.png,class\n", ",,,,,,,,\n"])
def test_large_tables(tmp_path, row):
    path = tmp_path / "labels.csv"
    rows = LARGEST // len(row.format(10**6)) - 1
    path.write_text("".join(row.format(10**6 + number) for number in range(rows)))
    with bounded(seconds=200), suppress(UserError):
        read_labels(path)


@pytest.mark.parametrize("name", specimens.unusual())
def test_images_of_every_kind_are_read(tmp_path, name):
    (tmp_path / "a.png").write_bytes(specimens.unusual()[name])
    assert read_image(tmp_path / "a.png", 8).shape == (3, 8, 8)


@pytest.mark.parametrize("name", specimens.hostile())
def test_bombs_and_other_files_are_refused(tmp_path, name):
    (tmp_path / "a.png").write_bytes(specimens.hostile()[name])
    with bounded(), pytest.raises(ImageError) as refused:
        read_image(tmp_path / "a.png", 8)
    assert_one_line(str(refused.value))
