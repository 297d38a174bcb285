"""Whatever happens to the files of the feature cache, no wrong feature is used."""

import multiprocessing
import os
import random
import signal

import numpy as np
import pytest
import torch

import comatch.data.feature_store as module
from comatch.data import views
from comatch.data.feature_store import FeatureStore, digests
from comatch.data.images import ImageError
from comatch.errors import UserError
from comatch.types import Files
from helpers import LONG, write_image

WIDTH, ROWS = 5, 30
PLACES = 2000 if LONG else 60


def features_of(digests):
    """What an encoder would compute: the digest decides."""
    return (digests[:, :1] % 1000 + np.arange(WIDTH)).astype(np.float16)


def some_digests(n, seed=0):
    return np.random.default_rng(seed).integers(1, 2**63, (n, 2), np.int64).astype("<u8")


def fill(root, rows=ROWS, first=0):
    store = FeatureStore(root, "net", WIDTH)
    for begin in range(first, rows, 10):
        some = some_digests(ROWS)[begin : begin + 10]
        store.append(0, some, features_of(some))


def check(root):
    """What is there is right, and what is not can be added; return how much was there."""
    wanted = some_digests(ROWS)
    store = FeatureStore(root, "net", WIDTH)
    found, there = store.read(0, wanted)
    assert np.array_equal(found[there], features_of(wanted)[there])
    assert np.array_equal(store.has(0, wanted), there), "a damaged row is encoded again"
    lacking = wanted[~there]
    store.append(0, lacking, features_of(lacking))
    for one in (store, FeatureStore(root, "net", WIDTH)):
        found, there_now = one.read(0, wanted)
        assert there_now.all()
        assert np.array_equal(found, features_of(wanted))
    return int(there.sum())


def change(content, moments):
    """The content with some bytes flipped, zeroed or cut off."""
    start = moments.randrange(len(content))
    length = moments.choice([1, 4, 50, 1000])
    some = content[start : start + length]
    new = moments.choice(
        [bytes(byte ^ moments.randrange(1, 256) for byte in some), bytes(len(some))]
    )
    return moments.choice([content[:start] + new + content[start + length :], content[:start]])


@pytest.mark.parametrize("kind", ["features", "keys"])
def test_damaged_rows_and_keys(tmp_path, kind):
    fill(tmp_path)
    names = {name: (tmp_path / f"net/v00.{name}").read_bytes() for name in ("features", "keys")}
    moments = random.Random(kind)
    for _ in range(PLACES):
        for name, content in names.items():
            new = change(content, moments) if name == kind else content
            (tmp_path / f"net/v00.{name}").write_bytes(new)
        check(tmp_path)


@pytest.mark.slow
def test_a_killed_writer(tmp_path):
    """Killed before each of its writes, and in the middle of each."""
    context = multiprocessing.get_context("fork")

    def killed(root, left, half):
        write = module.write_at

        def dying(path, position, content):
            nonlocal left
            left -= 1
            if left < 0:
                if half:
                    path.touch()
                    with path.open("r+b") as file:
                        file.seek(position)
                        file.write(content[: len(content) // 2 + 1])
                os.kill(os.getpid(), signal.SIGKILL)
            write(path, position, content)

        module.write_at = dying
        fill(root)

    for half in (False, True):
        for number in range(7):
            root = tmp_path / f"{half}-{number}"
            process = context.Process(target=killed, args=(root, number, half))
            process.start()
            process.join(60)
            assert process.exitcode == (0 if number == 6 else -9)
            assert check(root) >= 10 * (number // 2)


def images(root):
    names = [f"{i}.png" for i in range(20)]
    for i, name in enumerate(names):
        os.utime(write_image(root / name, colour=(i, 9, 9)), (1000, 1000))
    return Files(root, torch.zeros(len(names), dtype=torch.long), names)


def test_a_damaged_index(tmp_path):
    part = images(tmp_path / "images")
    expected = digests(tmp_path / "cache", part)
    index = tmp_path / "cache" / "files-2.sqlite"
    content = index.read_bytes()
    moments = random.Random(0)
    for _ in range(PLACES):
        index.write_bytes(change(content, moments))
        assert np.array_equal(digests(tmp_path / "cache", part), expected)
    for new in (b"", b"\0" * 100, b"SQLite format 3\0" + b"\xff" * 5000):
        index.write_bytes(new)
        assert np.array_equal(digests(tmp_path / "cache", part), expected)


def test_an_index_that_cannot_be_used_is_one_line(tmp_path):
    (tmp_path / "cache" / "files-2.sqlite").mkdir(parents=True)
    with pytest.raises(UserError, match="COMATCH_CACHE"):
        digests(tmp_path / "cache", images(tmp_path / "images"))


def test_a_file_that_keeps_its_size_and_time_is_read_again(tmp_path):
    part = images(tmp_path / "images")
    before = digests(tmp_path / "cache", part)
    first, second = (part.root / name for name in part.names[:2])
    second.write_bytes(first.read_bytes())
    os.utime(second, (1000, 1000))
    after = digests(tmp_path / "cache", part)
    assert after[1].tolist() == before[0].tolist()


def test_views_of_a_file_that_changed_meanwhile_are_not_kept(tmp_path):
    path = write_image(tmp_path / "a.png")
    digest = views.digest_of(path.read_bytes())
    assert views.read_views(path, digest, [0], 8).shape == (1, 3, 8, 8)
    write_image(path, colour=(1, 2, 3))
    with pytest.raises(ImageError, match="changed"):
        views.read_views(path, digest, [0], 8)
