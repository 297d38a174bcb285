"""What is said about a data set before training, and what is doubtful about it."""

import dataclasses

import numpy as np
import pytest
import torch
from PIL import Image

from comatch.data import copies, splits, summary
from comatch.data.config import DataConfig
from comatch.data.image_folder import folder
from comatch.types import UNLABELLED, Dataset, Images
from helpers import make_images, photograph, write_image


def described(root, size=16, **config):
    data = folder(root, size)
    split = splits.make(data, DataConfig(data=str(root), image_size=size, **config), 0)
    return summary.summarise(data, split, size)


def data_of(counts, names=None):
    """A folder's data set with so many labelled images of each class."""
    labels = torch.tensor([c for c, n in enumerate(counts) for _ in range(n)] + [UNLABELLED])
    pixels = torch.randint(0, 256, (len(labels), 3, 16, 16), dtype=torch.uint8)
    images = Images(pixels, labels, [f"{i}.png" for i in range(len(labels))])
    classes = names or [f"class {c}" for c in range(len(counts))]
    return Dataset("photos", classes, images, original_size=(16, 16))


def warnings_of(data):
    split = splits.make(data, DataConfig(), 0)
    return summary.summarise(data, split, 16).warnings


def test_what_was_read(tmp_path):
    root = make_images(tmp_path / "photos")
    write_image(root / "damaged.png").write_bytes(b"")
    write_image(root / "standing" / "wide.png", size=(90, 50))
    found = described(root, labels=20)
    assert found.lines == [
        "photos: 63 images, 2 classes",
        "  training   20 labelled, 35 unlabelled",
        "             5 labels not used",
        "  test       8 images",
        "  classes    standing 13, lying 12",
        "  size       images of about 24 x 24 are seen at 16 pixels",
        "  left out   1 image",
    ]
    assert all(len(line) <= 80 for line in found.lines)


def test_images_that_lose_details(tmp_path):
    for i, name in enumerate(("cat", "dog")):
        for j in range(3):
            write_image(tmp_path / name / f"{j}.png", (9 * i, j, 0), size=(400, 300))
    line = next(line for line in described(tmp_path).lines if "size" in line)
    assert "400 x 300" in line
    assert "--set image_size=" in line


def test_many_classes_are_shortened():
    names = [f"species number {c}" for c in range(200)]
    data = data_of([3 + c % 5 for c in range(200)], names)
    split = splits.make(data, DataConfig(), 0)
    lines = summary.summarise(data, split, 16).lines
    assert len(lines) <= 12
    assert all(len(line) <= 80 for line in lines)


def test_a_class_name_in_two_spellings():
    (doubt,) = warnings_of(data_of([9, 9, 9], ["Koala ", "koala", "Possum"]))
    assert "'Koala ' and 'koala'" in doubt
    (doubt,) = warnings_of(data_of([9, 9], ["caf\u00e9", "cafe\u0301"]))
    assert "form of letters" in doubt
    assert not warnings_of(data_of([9, 9], ["cat", "car"]))


def test_few_labels_and_imbalance():
    (doubt,) = warnings_of(data_of([9, 2, 9]))
    assert "1 class with fewer than 3 labels ('class 1' 2)" in doubt
    (doubt,) = warnings_of(data_of([100, 10]))
    assert "'class 0' has 100 labels and class 'class 1' 10" in doubt
    assert not warnings_of(data_of([99, 10]))


def test_published_data_sets_are_not_doubted():
    data = dataclasses.replace(data_of([100, 1]), original_size=None)
    assert not warnings_of(data)


# ---------------------------------------------------------------------------------- copies


def as_images(photographs, size=32):
    pixels = np.stack([np.array(p.resize((size, size))).transpose(2, 0, 1) for p in photographs])
    return torch.from_numpy(pixels)


def test_identical_images_are_found_across_parts():
    images = as_images([photograph(64, 64, seed) for seed in range(4)])
    one, other = images[[0, 1, 0]], images[[2, 1, 3]]
    assert copies.identical(one) == [(2, 0)]
    assert copies.identical(one, other) == [(2, 0), (4, 1)]
    changed = one.clone()
    changed[2, 0, 31, 31] ^= 1  # one bit of one pixel
    assert copies.identical(changed) == []


def test_nearly_equal_images_are_found():
    originals = [photograph(200, 200, seed) for seed in range(6)]
    changed = [p.resize((90, 90)).point(lambda v: min(255, round(v * 1.1))) for p in originals[:3]]
    near = copies.nearly_equal(as_images(changed), as_images(originals))
    assert near == copies.Near([(0, 0), (1, 1), (2, 2)], 3)
    other = [photograph(200, 200, seed) for seed in range(6, 12)]
    assert copies.nearly_equal(as_images(other), as_images(originals)).pairs == []


def test_flat_images_resemble_nothing():
    flat = torch.full((3, 3, 32, 32), 200, dtype=torch.uint8)
    assert copies.nearly_equal(flat, flat).pairs == []


def test_small_images_are_not_compared():
    tiny = torch.zeros(3, 3, 8, 8, dtype=torch.uint8)
    assert copies.nearly_equal(tiny, tiny) == copies.Near([], 0)


def test_many_images_are_sampled(monkeypatch):
    monkeypatch.setattr(copies, "MOST_PAIRS", 20)
    images = as_images([photograph(64, 64, seed) for seed in range(10)])
    near = copies.nearly_equal(images, images)
    assert near.searched == 2
    assert near.pairs == [(0, 0), (5, 5)]


@pytest.fixture
def photos(tmp_path):
    """Six photographs of each of two classes, and two of each in the test part."""
    for c, name in enumerate(("cat", "dog")):
        for part, number in ((name, 6), (f"test/{name}", 2)):
            (tmp_path / part).mkdir(parents=True)
            for i in range(number):
                seed = 100 * c + 10 * ("test" in part) + i
                photograph(60, 60, seed).save(tmp_path / part / f"{i}.png")
    return tmp_path


def test_the_same_image_in_training_and_test(photos):
    assert described(photos, 32).warnings == []
    (photos / "test/cat/leak.png").write_bytes((photos / "cat/3.png").read_bytes())
    (doubt,) = described(photos, 32).warnings
    assert "1 of 5 test images are also training images" in doubt
    assert "test/cat/leak.png and cat/3.png" in doubt


def test_nearly_the_same_image_in_training_and_test(photos):
    photograph(60, 60, 3).save(photos / "test/cat/leak.jpg", quality=60)
    (doubt,) = described(photos, 32).warnings
    assert "1 of 5 test images look nearly the same as a training image" in doubt


def test_many_copies_in_the_training_part(photos):
    for i in range(3):
        (photos / f"copy{i}.png").write_bytes((photos / "cat/0.png").read_bytes())
    (doubt,) = described(photos, 32).warnings
    assert "3 of 15 training images are copies of others" in doubt


def test_copies_among_images_on_disk_are_found(tmp_path):
    """With a frozen encoder, images are not in memory."""
    parts = {"train/cat": range(30), "train/dog": range(30, 60), "test/cat": [3], "test/dog": [70]}
    for part, numbers in parts.items():
        (tmp_path / part).mkdir(parents=True)
        for number in numbers:
            pixels = np.random.default_rng(number).integers(0, 256, (4, 4, 3), np.uint8)
            image = Image.fromarray(pixels).resize((40, 40), Image.Resampling.BICUBIC)
            image.save(tmp_path / part / f"{number}.png")
    (tmp_path / "train/cat/0.png").write_bytes(b"no image")
    dataset = folder(tmp_path, 32, progress=False, stream="yes")
    found = summary.copy_doubts(dataset.train, dataset.test)
    assert len(found) == 1
    assert "test/cat/3.png" in found[0]
    assert "train/cat/3.png" in found[0]
