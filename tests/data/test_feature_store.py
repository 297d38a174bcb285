"""The feature cache: what it has is what was computed, whatever happened to its files."""

import multiprocessing
import os
import sqlite3

import numpy as np
import pytest
import torch

from comatch.data import feature_store
from comatch.data.feature_store import FeatureStore
from comatch.errors import UserError
from comatch.types import Files, Images

WIDTH = 5


def some(n, seed=0):
    random = np.random.default_rng(seed)
    digests = random.integers(1, 2**63, (n, 2), np.int64).astype("<u8")
    return digests, random.standard_normal((n, WIDTH)).astype(np.float16)


@pytest.fixture
def store(tmp_path):
    return FeatureStore(tmp_path, "net", WIDTH)


def again(tmp_path):
    return FeatureStore(tmp_path, "net", WIDTH)


def test_features_are_found_by_digest_in_any_order(store, tmp_path):
    digests, features = some(40)
    store.append(0, digests[:25], features[:25])
    store.append(0, digests[25:], features[25:])
    order = np.random.default_rng(1).permutation(40)
    for one in (store, again(tmp_path)):
        found, there = one.read(0, digests[order])
        assert there.all()
        assert np.array_equal(found, features[order])
    unknown = some(3, seed=9)[0]
    assert not store.has(0, unknown).any()
    assert not store.has(1, digests).any()
    found, there = store.read(0, np.concatenate([unknown, digests[:1]]))
    assert there.tolist() == [False] * 3 + [True]
    assert not found[:3].any()


def test_half_of_a_digest_is_not_enough(store):
    digests, features = some(4)
    store.append(0, digests, features)
    similar = digests.copy()
    similar[:, 1] += 1
    assert not store.has(0, similar).any()


@pytest.mark.parametrize("kind", ["features", "keys"])
@pytest.mark.parametrize("cut", [1, 7])
def test_an_unfinished_append_does_not_count_and_is_overwritten(store, tmp_path, kind, cut):
    digests, features = some(10)
    store.append(0, digests[:6], features[:6])
    sizes = {name: (tmp_path / f"net/v00.{name}").stat().st_size for name in ("features", "keys")}
    store.append(0, digests[6:], features[6:])
    path = tmp_path / f"net/v00.{kind}"
    os.truncate(path, sizes[kind] + cut)
    if kind == "features":  # keys are written last: a kill leaves them short, never ahead
        os.truncate(tmp_path / "net/v00.keys", sizes["keys"])
    after = again(tmp_path)
    assert after.has(0, digests).tolist() == [True] * 6 + [False] * 4
    after.append(0, digests[6:], features[6:])
    found, there = again(tmp_path).read(0, digests)
    assert there.all()
    assert np.array_equal(found, features)


def test_a_damaged_row_is_not_used_and_computed_again(store, tmp_path):
    digests, features = some(10)
    store.append(0, digests, features)
    path = tmp_path / "net/v00.features"
    content = bytearray(path.read_bytes())
    content[3 * 2 * WIDTH] ^= 1
    path.write_bytes(content)
    after = again(tmp_path)
    found, there = after.read(0, digests)
    assert there.tolist() == [row != 3 for row in range(10)]
    assert not found[3].any()
    after.append(0, digests[3:4], features[3:4])
    found, there = again(tmp_path).read(0, digests)
    assert there.all()
    assert np.array_equal(found, features)


def append_some(root, seed):
    digests, features = some(50, seed)
    for begin in range(0, 50, 5):
        store = FeatureStore(root, "net", WIDTH)
        store.append(0, digests[begin : begin + 5], features[begin : begin + 5])


@pytest.mark.slow
def test_two_processes_write_at_once(tmp_path):
    context = multiprocessing.get_context("fork")
    both = [context.Process(target=append_some, args=(tmp_path, seed)) for seed in (1, 2)]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
        assert process.exitcode == 0
    for seed in (1, 2):
        digests, features = some(50, seed)
        found, there = again(tmp_path).read(0, digests)
        assert there.all()
        assert np.array_equal(found, features)


def test_a_full_disk_is_one_line(store, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(feature_store, "write_at", full)
    with pytest.raises(UserError, match=r"No space left on device.*COMATCH_CACHE"):
        store.append(0, *some(3))


def test_the_encoder_that_was_unused_for_longest_makes_room(store, tmp_path, monkeypatch):
    store.append(0, *some(10))
    for number, name in enumerate(("old", "older", "oldest")):
        FeatureStore(tmp_path, name, WIDTH).append(0, *some(100))
        os.utime(tmp_path / name, (1000 - number, 1000 - number))
    size = next(one.bytes for one in feature_store.stored(tmp_path) if one.name == "old")
    monkeypatch.setenv("COMATCH_CACHE_LIMIT", str(3 * size / 1e9))
    store.make_room(size)
    assert sorted(one.name for one in feature_store.stored(tmp_path)) == ["net", "old"]
    with pytest.raises(UserError, match="--set views"):
        store.make_room(4 * size)
    monkeypatch.setenv("COMATCH_CACHE_LIMIT", "much")
    with pytest.raises(UserError, match="COMATCH_CACHE_LIMIT=much"):
        store.make_room(1)


def test_what_the_cache_has_can_be_listed_and_deleted(store, tmp_path):
    store.append(0, *some(10))
    store.append(1, *some(4))
    (one,) = feature_store.stored(tmp_path)
    assert (one.name, one.images, one.views) == ("net", 10, 14)
    assert feature_store.delete(tmp_path, ["net"]) == one.bytes
    assert feature_store.stored(tmp_path) == []


# ----------------------------------------------------------------------------------- digests


def files(root, names):
    return Files(root, torch.zeros(len(names), dtype=torch.long), names)


@pytest.fixture
def pictures(tmp_path):
    root = tmp_path / "pictures"
    root.mkdir()
    for number, name in enumerate(("a", "b", "copy of a")):
        (root / name).write_bytes(b"content %d" % (number % 2))
        os.utime(root / name, (1000, 1000))
    return files(root, ["a", "b", "copy of a"])


def test_digests_are_of_the_content(pictures, tmp_path):
    first = feature_store.digests(tmp_path / "cache", pictures)
    assert first[0].tolist() == first[2].tolist() != first[1].tolist()
    moved = pictures.root / "moved"
    (pictures.root / "b").rename(moved)
    after = feature_store.digests(tmp_path / "cache", files(pictures.root, ["moved"]))
    assert after[0].tolist() == first[1].tolist()


def test_only_new_and_changed_files_are_read(pictures, tmp_path, monkeypatch):
    before = feature_store.digests(tmp_path, pictures)
    read = []
    hash_file = feature_store.hash_file
    monkeypatch.setattr(
        feature_store, "hash_file", lambda path: read.append(path) or hash_file(path)
    )
    assert np.array_equal(feature_store.digests(tmp_path, pictures), before)
    assert read == []
    (pictures.root / "b").write_bytes(b"changed!!")
    after = feature_store.digests(tmp_path, pictures)
    assert [os.path.basename(path) for path in read] == ["b"]
    assert after[1].tolist() != before[1].tolist()
    # A file of just now may change again within the clock's resolution: it is read each time.
    feature_store.digests(tmp_path, pictures)
    assert len(read) == 2


def test_unreadable_files_have_a_digest_of_zeros(pictures, tmp_path):
    os.mkfifo(pictures.root / "pipe")
    odd = files(pictures.root, ["missing", "pipe", "a"])
    digests = feature_store.digests(tmp_path, odd)
    assert not digests[:2].any()
    assert digests[2].any()


def test_a_damaged_index_is_made_anew(pictures, tmp_path):
    before = feature_store.digests(tmp_path, pictures)
    (tmp_path / "files-2.sqlite").write_bytes(b"damaged" * 1000)
    assert np.array_equal(feature_store.digests(tmp_path, pictures), before)
    with sqlite3.connect(tmp_path / "files-2.sqlite") as index:
        assert index.execute("SELECT count(*) FROM files").fetchone() == (3,)


def test_images_in_memory_have_digests_too(tmp_path):
    pixels = torch.arange(2 * 3 * 4, dtype=torch.uint8).view(2, 3, 2, 2)
    images = Images(torch.cat([pixels, pixels[:1]]), torch.zeros(3, dtype=torch.long), list("abc"))
    first, second, third = feature_store.digests(tmp_path, images).tolist()
    assert first == third != second
