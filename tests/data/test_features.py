"""Encoding of images by view: what is missing is computed, in stages, and nothing twice."""

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from comatch.data import features
from comatch.data.features import Encoder, Features, encode_all, groups
from comatch.types import Files

SIZE = 8


class Counting:
    """An encoder whose features are the mean colours of a view; counts what it encodes."""

    def __init__(self):
        self.views = 0
        self.encoder = Encoder("net", 3, SIZE, lambda: self)

    def __call__(self, pixels):
        self.views += len(pixels)
        return torch.from_numpy(pixels.reshape(len(pixels), 3, -1).mean(2)).float()


class Watch:
    def __init__(self, stop_after=10**9):
        self.left, self.done, self.total = stop_after, 0, 0

    def progress(self, done, total):
        self.done, self.total = done, total
        self.left -= 1

    def stopped(self):
        return self.left < 0


@pytest.fixture
def folder(tmp_path):
    random = np.random.default_rng(0)
    root = tmp_path / "photos"
    root.mkdir()
    for number in range(40):
        pixels = random.integers(0, 256, (12, 16, 3), np.uint8)
        Image.fromarray(pixels).save(root / f"{number:02d}.png")
    return root


def part(root):
    names = sorted(path.name for path in root.iterdir())
    return Files(root, torch.zeros(len(names), dtype=torch.long), names)


def test_views_are_encoded_in_groups_that_double():
    assert groups(26) == [
        [0, 1],
        [2, 3],
        list(range(4, 8)),
        list(range(8, 16)),
        list(range(16, 26)),
    ]
    assert groups(3) == [[0, 1], [2]]
    assert groups(5) == [[0, 1], [2, 3], [4]]


def test_features_are_of_their_image_and_view(folder, tmp_path):
    counting = Counting()
    known = Features(part(folder), counting.encoder, tmp_path / "cache")
    watch = Watch()
    encode_all([known], 4, watch=watch)
    assert counting.views == watch.done == watch.total == 40 * 4
    for view in range(4):
        found, there = known.read(view)
        assert there.all()
        for row in (0, 17, 39):
            pixels = features.views.read_views(
                folder / known.part.names[row], known.digests[row].tobytes(), [view], SIZE
            )
            assert np.abs(found[row] - pixels[0].reshape(3, -1).mean(1)).max() < 0.2


def test_only_what_is_missing_is_encoded(folder, tmp_path):
    counting, root = Counting(), tmp_path / "cache"
    encode_all([Features(part(folder), counting.encoder, root)], 2)
    assert counting.views == 80
    encode_all([Features(part(folder), counting.encoder, root)], 2)
    assert counting.views == 80
    shutil.copy(folder / "00.png", folder / "copy.png")
    (folder / "01.png").rename(folder / "renamed.png")
    Image.new("RGB", (9, 9), (1, 2, 3)).save(folder / "new.png")
    encode_all([Features(part(folder), counting.encoder, root)], 2)
    assert counting.views == 82  # of the new image alone
    encode_all([Features(part(folder), counting.encoder, root)], 4)
    assert counting.views == 82 + 2 * 42
    other = counting.encoder._replace(name="other")
    encode_all([Features(part(folder), other, root)], 2)
    assert counting.views == 82 + 2 * 42 + 2 * 42


def test_stopping_keeps_what_was_encoded(folder, tmp_path):
    counting, root = Counting(), tmp_path / "cache"
    known = Features(part(folder), counting.encoder, root)
    encode_all([known], 8, watch=Watch(stop_after=4))
    done = counting.views
    assert 0 < done < 40 * 8
    counts = features.count_views(known, 8)
    assert counts.sum() == done
    encode_all([Features(part(folder), counting.encoder, root)], 8)
    assert counting.views == 40 * 8


def test_a_limit_of_time(folder, tmp_path):
    known = Features(part(folder), Counting().encoder, tmp_path / "cache")
    encode_all([known], 26, seconds=1e-9)
    assert 0 < features.count_views(known, 26).sum() < 40 * 26


def test_unreadable_images_are_left_out(folder, tmp_path):
    (folder / "05.png").write_bytes(b"no image")
    (folder / "06.png").write_bytes((folder / "06.png").read_bytes()[:60])
    known = Features(part(folder), Counting().encoder, tmp_path / "cache")
    encode_all([known], 4)
    assert sorted(known.bad) == [5, 6]
    assert np.flatnonzero(~known.read(0)[1]).tolist() == [5, 6]
    assert known.missing([0, 1]) == []


def test_a_changed_image_is_encoded_again(folder, tmp_path):
    counting, root = Counting(), tmp_path / "cache"
    encode_all([Features(part(folder), counting.encoder, root)], 2)
    Image.new("RGB", (16, 12), (200, 0, 0)).save(folder / "00.png")
    known = Features(part(folder), counting.encoder, root)
    encode_all([known], 2)
    assert counting.views == 82
    assert known.read(0)[0][0].tolist() == [200, 0, 0]


def test_the_number_of_views_follows_from_the_budget():
    assert features.views_for(2_000, None, 50_000) == 25
    assert features.views_for(1_000, None, 50_000) == 26
    assert features.views_for(100_000, None, 50_000) == 4
    assert features.views_for(100_000, 9, 50_000) == 9
