import hashlib
import os
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from comatch.data import sources
from comatch.data.sources import SOURCES, load, stack
from comatch.errors import UserError
from comatch.types import UNLABELLED, Dataset

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
EACH = 4  # images in a batch of our CIFAR-10


# ---------------------------------------------------------------------------------- dispatch


@pytest.mark.parametrize("written", ["cifra10", "CIFAR-10", "cifar"])
def test_an_unknown_name_lists_the_known_and_the_nearest(written: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        load(written, tmp_path, None)
    message = str(caught.value)
    assert repr(written) in message
    assert "did you mean cifar10?" in message
    assert all(name in message for name in SOURCES)
    assert "\n" not in message


def test_a_name_unlike_all_others_gets_no_suggestion(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        load(str(tmp_path / "holiday"), tmp_path, None)
    assert "did you mean" not in str(caught.value)


def test_a_path_is_a_folder_of_images(tmp_path: Path) -> None:
    for name in ("cat/1.png", "dog/1.png"):
        (tmp_path / name).parent.mkdir()
        Image.new("RGB", (9, 9), "red" if "cat" in name else "blue").save(tmp_path / name)
    labels = tmp_path / "labels-elsewhere.csv"
    labels.write_text("cat/1.png,x\ndog/1.png,y\n")
    assert load(str(tmp_path), Path("nowhere"), 8).classes == ["cat", "dog"]
    assert load(str(tmp_path), Path("nowhere"), 8, labels_file=labels).classes == ["x", "y"]


@pytest.mark.parametrize("size", [0, -3])
def test_an_impossible_size_is_an_error(size: int, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="image size"):
        load("digits", tmp_path, size)


# ------------------------------------------------------------------------------------ digits


def test_digits_are_complete_and_every_fifth_is_in_the_test_part(tmp_path: Path) -> None:
    data = load("digits", tmp_path, None)
    assert data.test is not None
    assert data.classes == [str(i) for i in range(10)]
    assert data.test.names == [str(i) for i in range(4, 1797, 5)]
    assert sorted(data.train.names + data.test.names, key=int) == [str(i) for i in range(1797)]
    truth = load_digits()
    for part in (data.train, data.test):
        assert part.images.dtype == torch.uint8
        assert part.images.shape == (len(part), 3, 8, 8)
        rows = [int(name) for name in part.names]
        assert part.labels.tolist() == truth.target[rows].tolist()
        expected = np.round(truth.images[rows] / 16 * 255)
        for channel in range(3):
            assert np.array_equal(part.images[:, channel], expected)
    assert data.train.images.max() == 255


def test_digits_are_resized_as_by_pillow(tmp_path: Path) -> None:
    small, large = load("digits", tmp_path, None).train, load("digits", tmp_path, 32).train
    assert large.images.shape == (len(small), 3, 32, 32)
    for row in range(0, len(small), 100):
        assert _close(large.images[row], _pillow(small.images[row], 32))


# ------------------------------------------------------------------------------------- stack


@pytest.mark.parametrize("size", [7, 16, 24, 33, 64])
def test_stack_resizes_like_pillow_and_keeps_the_order(size: int) -> None:
    random = np.random.default_rng(0)
    parts = [random.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8) for n in (3, 0, 1001)]
    images = stack(parts, size)
    assert images.shape == (1004, 3, size, size)
    for row, original in ((0, parts[0][0]), (3, parts[2][0]), (1003, parts[2][1000])):
        assert _close(images[row], _pillow(torch.from_numpy(original), size))


def test_stack_leaves_images_of_the_right_size_unchanged() -> None:
    images = np.random.default_rng(0).integers(0, 256, (2001, 3, 4, 4), dtype=np.uint8)
    assert np.array_equal(stack([images[:5], images[5:]], 4), images)


def _pillow(image: torch.Tensor, size: int) -> np.ndarray:
    image = Image.fromarray(image.numpy().transpose(1, 2, 0))
    return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR)).transpose(2, 0, 1)


def _close(one: torch.Tensor, other: np.ndarray) -> bool:
    return bool(np.abs(one.numpy().astype(int) - other).max() <= 1)


# ---------------------------------------------------------------------------------- CIFAR-10


class Python2Pickler(pickle._Pickler):  # type: ignore[name-defined]
    """Pickles byte strings as Python 2 pickled `str`, as in the published files."""

    def save_str(self, text: bytes) -> None:
        short = len(text) < 256
        self.write(b"U" + bytes([len(text)]) if short else b"T" + struct.pack("<i", len(text)))
        self.write(text)
        self.memoize(text)

    dispatch = {**pickle._Pickler.dispatch, bytes: save_str}  # type: ignore[attr-defined]  # noqa: RUF012


def _dump(path: Path, value: object, old: bool = True) -> None:
    with path.open("wb") as file:
        (Python2Pickler(file, 2) if old else pickle.Pickler(file)).dump(value)


@pytest.fixture
def batches() -> dict[str, tuple[np.ndarray, list[int]]]:
    random = np.random.default_rng(1)
    return {
        name: (
            random.integers(0, 256, (EACH, 3072), dtype=np.uint8),
            random.integers(0, 10, EACH).tolist(),
        )
        for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    }


@pytest.fixture
def pickled(tmp_path: Path, batches: dict[str, Any]) -> Path:
    folder = tmp_path / "pickled" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name, (data, labels) in batches.items():
        content = {b"batch_label": b"one of six", b"labels": labels, b"data": data}
        if name == "data_batch_1":
            content[b"filenames"] = [b"a.png"] * EACH
        _dump(folder / name, content)
    names = [name.encode() for name in CLASSES]
    _dump(folder / "batches.meta", {b"num_cases_per_batch": EACH, b"label_names": names})
    return folder


@pytest.fixture
def binary(tmp_path: Path, batches: dict[str, Any]) -> Path:
    folder = tmp_path / "binary" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for name, (data, labels) in batches.items():
        records = b"".join(
            bytes([label]) + row.tobytes() for label, row in zip(labels, data, strict=True)
        )
        (folder / f"{name}.bin").write_bytes(records)
    (folder / "batches.meta.txt").write_text("\n".join(CLASSES) + "\n\n")
    return folder


def _same(one: Dataset, other: Dataset) -> bool:
    assert one.test is not None
    assert other.test is not None
    return one.classes == other.classes and all(
        torch.equal(a.images, b.images) and torch.equal(a.labels, b.labels) and a.names == b.names
        for a, b in ((one.train, other.train), (one.test, other.test))
    )


def test_cifar10_pixel_by_pixel(pickled: Path, batches: dict[str, Any]) -> None:
    data = load("cifar10", pickled.parent, None)
    assert data.test is not None
    assert data.classes == CLASSES
    assert data.train.names == [f"train/{i:05d}" for i in range(5 * EACH)]
    assert data.test.names == [f"test/{i:05d}" for i in range(EACH)]
    assert data.train.images.shape == (5 * EACH, 3, 32, 32)
    images, labels = batches["data_batch_3"]
    assert data.train.labels[2 * EACH : 3 * EACH].tolist() == labels
    # Green, row 5, column 7 of the second image in the third batch.
    assert data.train.images[2 * EACH + 1, 1, 5, 7] == images[1, 1024 + 5 * 32 + 7]
    assert np.array_equal(data.test.images.flatten(1), batches["test_batch"][0])
    assert data.test.labels.tolist() == batches["test_batch"][1]


def test_pickled_and_binary_files_give_the_same_images(pickled: Path, binary: Path) -> None:
    assert _same(load("cifar10", pickled.parent, None), load("cifar10", binary.parent, None))


def test_data_dir_can_be_the_folder_itself(pickled: Path, binary: Path) -> None:
    whole = load("cifar10", pickled.parent, None)
    assert _same(whole, load("cifar10", pickled, None))
    assert _same(whole, load("cifar10", binary, None))
    assert _same(whole, load("cifar10", pickled.rename(pickled.parent / "renamed"), None))


def test_python_3_pickles_with_text_keys(pickled: Path, batches: dict[str, Any]) -> None:
    whole = load("cifar10", pickled, None)
    for name, (data, labels) in batches.items():
        _dump(pickled / name, {"labels": labels, "data": data}, old=False)
    _dump(pickled / "batches.meta", {"label_names": CLASSES}, old=False)
    assert _same(whole, load("cifar10", pickled, None))
    for name, (data, labels) in batches.items():
        content = pickle.dumps({"labels": labels, "data": data}, protocol=2)
        # As any numpy before 2 wrote it.
        (pickled / name).write_bytes(content.replace(b"numpy._core.", b"numpy.core."))
    assert _same(whole, load("cifar10", pickled, None))


def test_cifar10_is_resized(pickled: Path) -> None:
    whole, half = load("cifar10", pickled, None), load("cifar10", pickled, 16)
    assert half.train.images.shape == (5 * EACH, 3, 16, 16)
    assert half.test is not None
    assert half.test.images.shape == (EACH, 3, 16, 16)
    assert _close(half.train.images[7], _pillow(whole.train.images[7], 16))


class Malice:
    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("file", ["data_batch_2", "batches.meta"])
def test_a_malicious_pickle_is_not_executed(pickled: Path, tmp_path: Path, file: str) -> None:
    mark = tmp_path / "executed"
    _dump(pickled / file, {b"data": Malice(mark), b"label_names": []}, old=False)
    with pytest.raises(UserError, match=r"damaged \(it asks for posix.mkdir"):
        load("cifar10", pickled, None)
    assert not mark.exists()
    pickle.loads((pickled / file).read_bytes())  # it was a live one
    assert mark.exists()


@pytest.mark.parametrize(
    "name", ["builtins eval", "numpy load", "numpy.core.multiarray fromfile", "numpy f2py.compile"]
)
def test_a_pickle_cannot_name_other_functions(pickled: Path, name: str) -> None:
    module, function = name.split()
    (pickled / "data_batch_1").write_bytes(f"c{module}\n{function}\n(tR.".encode())
    with pytest.raises(UserError, match="it asks for"):
        load("cifar10", pickled, None)


@pytest.mark.parametrize("damage", ["truncated", "empty", "garbage", "missing", "other"])
@pytest.mark.parametrize("file", ["data_batch_4", "test_batch", "batches.meta"])
def test_damaged_pickles(pickled: Path, damage: str, file: str) -> None:
    path = pickled / file
    whole = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        other = pickle.dumps({"x": 1})
        content = {"truncated": whole[:-20], "empty": b"", "garbage": b"\xff" * 99, "other": other}
        path.write_bytes(content[damage])
    with pytest.raises(UserError) as caught:
        load("cifar10", pickled.parent, None)
    assert str(path) in str(caught.value)
    assert ("is missing" if damage == "missing" else "is damaged") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        {"labels": [0] * EACH, "data": np.zeros((EACH, 3072), np.float32)},
        {"labels": [0] * EACH, "data": np.zeros((EACH, 3071), np.uint8)},
        {"labels": [0] * (EACH - 1), "data": np.zeros((EACH, 3072), np.uint8)},
        {"labels": [0] * (EACH - 1), "data": np.zeros((EACH - 1, 3072), np.uint8)},
        {"labels": [], "data": np.zeros((0, 3072), np.uint8)},
        {"labels": [10] * EACH, "data": np.zeros((EACH, 3072), np.uint8)},
        {"labels": [-1] * EACH, "data": np.zeros((EACH, 3072), np.uint8)},
        {"labels": None, "data": [1, 2, 3]},
        [1, 2, 3],
    ],
)
def test_a_pickle_with_other_content(pickled: Path, content: object) -> None:
    _dump(pickled / "data_batch_2", content, old=False)
    with pytest.raises(UserError, match=r"data_batch_2 is damaged"):
        load("cifar10", pickled, None)


@pytest.mark.parametrize("damage", ["half a record", "a record", "all", "label", "file", "names"])
def test_damaged_binaries(binary: Path, damage: str) -> None:
    path = binary / ("batches.meta.txt" if damage == "names" else "data_batch_5.bin")
    whole = path.read_bytes()
    if damage in ("file", "names"):
        path.unlink()
    else:
        content = {
            "half a record": whole[:-1000],
            "a record": whole[:-3073],
            "all": b"",
            "label": b"\x0a" + whole[1:],
        }
        path.write_bytes(content[damage])
    with pytest.raises(UserError) as caught:
        load("cifar10", binary.parent, None)
    assert str(path) in str(caught.value)


# ----------------------------------------------------------------------------------- archives


def _pack(folder: Path, archive: Path) -> str:
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, arcname=folder.name)
    return hashlib.md5(archive.read_bytes()).hexdigest()


@pytest.mark.parametrize("form", ["python", "binary"])
def test_an_archive_in_the_data_folder_is_unpacked(
    form: str, pickled: Path, binary: Path, tmp_path: Path
) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    folder = pickled if form == "python" else binary
    _pack(folder, data_dir / f"cifar-10-{form}.tar.gz")
    first = load("cifar10", data_dir, None)
    assert _same(first, load("cifar10", folder, None))
    (data_dir / f"cifar-10-{form}.tar.gz").unlink()
    assert _same(first, load("cifar10", data_dir, None))  # from what was unpacked


def test_a_missing_archive_is_downloaded_once(
    pickled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pooch")
    archive = tmp_path / "cifar-10-python.tar.gz"
    official = sources.CIFAR10_PICKLED
    here = official._replace(url=archive.as_uri(), md5=_pack(pickled, archive))
    monkeypatch.setattr(sources, "CIFAR10_PICKLED", here)
    data_dir = tmp_path / "not" / "yet"
    whole = load("cifar10", pickled, None)
    assert _same(whole, load("cifar10", data_dir, None))
    assert [entry.name for entry in data_dir.iterdir()] == ["cifar-10-batches-py"]
    archive.unlink()
    assert _same(whole, load("cifar10", data_dir, None))


@pytest.mark.parametrize(
    ("name", "constant", "archive"),
    [
        ("cifar10", "CIFAR10_PICKLED", "cifar-10-python.tar.gz"),
        ("stl10", "STL10", "stl10_binary.tar.gz"),
    ],
)
def test_without_a_network_the_error_says_which_file_to_put_where(
    name: str, constant: str, archive: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = getattr(sources, constant)._replace(url=f"http://127.0.0.1:9/{archive}")
    monkeypatch.setattr(sources, constant, dead)
    with pytest.raises(UserError) as caught:
        load(name, tmp_path, None)
    assert f"put it at {tmp_path / archive}" in str(caught.value)
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------------------------ STL-10


@pytest.fixture
def stl(tmp_path: Path) -> Path:
    folder = tmp_path / "stl10_binary"
    folder.mkdir()
    random = np.random.default_rng(2)
    for part, count in (("train", 6), ("test", 4), ("unlabeled", 5)):
        images = random.integers(0, 256, (count, 3, 96, 96), dtype=np.uint8)
        (folder / f"{part}_X.bin").write_bytes(images.tobytes())
    (folder / "train_y.bin").write_bytes(bytes([1, 2, 10, 4, 5, 6]))
    (folder / "test_y.bin").write_bytes(bytes([10, 1, 3, 2]))
    (folder / "class_names.txt").write_text("\n".join(CLASSES))
    (folder / "fold_indices.txt").write_text("\n".join(["0 2 4 ", "5 1 3 "] * 5) + "\n")
    return folder


def test_stl10(stl: Path) -> None:
    data = load("stl10", stl.parent, None)
    assert data.test is not None
    assert data.classes == CLASSES
    assert data.train.labels.tolist() == [0, 1, 9, 3, 4, 5] + [UNLABELLED] * 5
    assert data.test.labels.tolist() == [9, 0, 2, 1]
    assert data.train.names[0] == "train/00000"
    assert data.train.names[6:] == [f"unlabeled/{i:05d}" for i in range(5)]
    assert data.test.names == [f"test/{i:05d}" for i in range(4)]
    assert data.folds == [[0, 2, 4], [5, 1, 3]] * 5
    # In the file the column comes before the row: blue, row 11, column 70 of unlabelled image 3.
    raw = (stl / "unlabeled_X.bin").read_bytes()
    assert data.train.images[6 + 3, 2, 11, 70] == raw[((3 * 3 + 2) * 96 + 70) * 96 + 11]
    raw = (stl / "test_X.bin").read_bytes()
    assert data.test.images[1, 0, 95, 2] == raw[((1 * 3 + 0) * 96 + 2) * 96 + 95]


def test_stl10_is_resized_and_found_in_its_own_folder(stl: Path) -> None:
    whole, small = load("stl10", stl, None), load("stl10", stl, 32)
    assert small.train.images.shape == (11, 3, 32, 32)
    assert _close(small.train.images[8], _pillow(whole.train.images[8], 32))


@pytest.mark.parametrize(
    "name",
    ["train_X", "train_y", "test_X", "test_y", "unlabeled_X", "fold_indices", "class_names"],
)
def test_stl10_without_a_file(stl: Path, name: str) -> None:
    path = next(stl.glob(f"{name}.*"))
    path.unlink()
    with pytest.raises(UserError, match=f"{path.name} is missing"):
        load("stl10", stl.parent, None)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("unlabeled_X.bin", b"\0" * 27_647),
        ("train_X.bin", b"\0" * 27_648),
        ("train_y.bin", bytes([1, 2, 0, 4, 5, 6])),
        ("train_y.bin", bytes([1, 2, 11, 4, 5, 6])),
        ("test_y.bin", bytes([1, 2, 3])),
        ("test_y.bin", b""),
        ("fold_indices.txt", b"0 1 2\n3 4 6\n"),
        ("fold_indices.txt", b"0 1 two\n"),
        ("class_names.txt", b"airplane\n"),
    ],
)
def test_stl10_damaged(stl: Path, name: str, content: bytes) -> None:
    (stl / name).write_bytes(content)
    with pytest.raises(UserError, match="is damaged") as caught:
        load("stl10", stl, None)
    assert "\n" not in str(caught.value)


# --------------------------------------------------------------------------------- labels file


def test_a_labels_file_gives_the_only_labels(stl: Path, tmp_path: Path) -> None:
    file = tmp_path / "some.csv"
    file.write_text("name,label\ntrain/00001,ship\n4,frog\nunlabeled/00000,cat\n")
    data = load("stl10", stl, None, labels_file=file)
    expected = torch.full((11,), UNLABELLED)
    expected[1], expected[4], expected[6] = 8, 6, 3
    assert torch.equal(data.train.labels, expected)
    assert data.classes == CLASSES
    assert data.folds == []
    assert data.test is not None
    assert data.test.labels.tolist() == [9, 0, 2, 1]


def test_a_plain_list_keeps_the_labels_of_its_images(stl: Path, tmp_path: Path) -> None:
    file = tmp_path / "some.txt"
    file.write_text("train/00001\n4\ntrain/00001\n")
    data = load("stl10", stl, None, labels_file=file)
    expected = torch.full((11,), UNLABELLED)
    expected[1], expected[4] = 1, 4
    assert torch.equal(data.train.labels, expected)


def test_digits_are_named_by_number(tmp_path: Path) -> None:
    file = tmp_path / "some.csv"
    file.write_text("5,3\n0,1\n")
    train = load("digits", tmp_path, None, labels_file=file).train
    known = {train.names[i]: int(train.labels[i]) for i in train.labels.ne(UNLABELLED).nonzero()}
    assert known == {"5": 3, "0": 1}


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("train/99999,cat", "train/99999"),
        ("test/00000,cat", "test/00000"),
        ("0,lion", "lion"),
        ("train/00001\ntrain/99999", "train/99999"),
        ("unlabeled/00000", "has the label 'none'"),
    ],
)
def test_a_wrong_labels_file(stl: Path, tmp_path: Path, row: str, complaint: str) -> None:
    file = tmp_path / "some.csv"
    file.write_text(row + "\n")
    with pytest.raises(UserError, match=complaint):
        load("stl10", stl, None, labels_file=file)


def test_a_named_source_cannot_be_streamed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="digits is read whole"):
        load("digits", tmp_path, None, stream="yes")
