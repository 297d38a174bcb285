"""Images given in Python: every form becomes the same data set, and a run on them."""

import numpy as np
import pandas
import pytest
import torch
from PIL import Image

import comatch
from comatch.data import in_memory
from comatch.data.config import DataConfig, Reading, StreamConfig
from comatch.errors import UserError
from comatch.types import Files
from helpers import TINY, assert_one_line_error, read_json

LABELS = ["cat", "dog", -1, "cat", None, "dog"]
NUMBERS = [0, 1, -1, 0, -1, 1]


def reading(stream="auto", encoded=False, size=8):
    return Reading(DataConfig(image_size=size), StreamConfig(stream=stream), encoded)


def read(data, **options):
    return in_memory.read(in_memory.given(data), reading(**options))


@pytest.fixture
def array():
    return np.random.default_rng(0).integers(0, 255, (6, 8, 8, 3), dtype=np.uint8)


@pytest.fixture
def paths(array, tmp_path):
    (tmp_path / "deep").mkdir()
    found = [tmp_path / ("deep" if i % 2 else "") / f"{i}.png" for i in range(len(array))]
    for path, pixels in zip(found, array, strict=True):
        Image.fromarray(pixels).save(path)
    return found


class TorchDataset(torch.utils.data.Dataset):
    """As torchvision has them."""

    classes = ("cat", "dog")

    def __init__(self, images, labels, transform=None):
        self.images, self.labels, self.transform = images, labels, transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        image = Image.fromarray(self.images[i])
        return self.transform(image) if self.transform else image, self.labels[i]


def hugging_face(images, labels):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"picture": datasets.Image(), "kind": datasets.ClassLabel(names=["cat", "dog"])}
    )
    rows = {"picture": [Image.fromarray(image) for image in images], "kind": labels}
    return datasets.Dataset.from_dict(rows, features)


def to_tensor(image):
    return torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255


FORMS = {
    "array": lambda images: (images, LABELS),
    "array of labels": lambda images: (images, np.array(LABELS, dtype=object)),
    "images": lambda images: ([Image.fromarray(image) for image in images], LABELS),
    "arrays": lambda images: (list(images), LABELS),
    "pairs": lambda images: list(zip(images, LABELS, strict=True)),
    "dataset": lambda images: TorchDataset(images, NUMBERS),
    "dataset of tensors": lambda images: TorchDataset(images, torch.tensor(NUMBERS), to_tensor),
    "subset": lambda images: torch.utils.data.Subset(
        TorchDataset(images, ["cat", "dog", None, "cat", "", "dog"]), range(6)
    ),
    "hugging face": lambda images: hugging_face(images, NUMBERS),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_form_of_images_in_memory(array, form):
    data = read(form(array))
    assert data.classes == ["cat", "dog"]
    assert data.train.labels.tolist() == NUMBERS
    assert np.array_equal(data.train.images.numpy().transpose(0, 2, 3, 1), array)
    assert data.test is None


@pytest.mark.parametrize("stream", ["no", "yes"])
@pytest.mark.parametrize("form", ["list", "array", "table"])
def test_paths_are_read_like_the_files_of_a_folder(array, paths, form, stream):
    data = {
        "list": lambda: (paths, LABELS),
        "array": lambda: (np.array(list(map(str, paths))), LABELS),
        "table": lambda: pandas.DataFrame({"Class": LABELS, "n": 1, "file name": paths}),
    }[form]()
    found = read(data, stream=stream)
    assert isinstance(found.train, Files) == (stream == "yes")
    names = ["0.png", "2.png", "4.png", "deep/1.png", "deep/3.png", "deep/5.png"]
    assert found.train.names == names
    assert found.train.labels.tolist() == [0, -1, -1, 1, 0, 1]
    if stream == "no":
        images = found.train.images.numpy().transpose(0, 2, 3, 1)
        assert np.array_equal(images, array[[0, 2, 4, 1, 3, 5]])


def test_an_image_folder_of_torchvision(images):
    from torchvision.datasets import ImageFolder

    found = read(ImageFolder(images / "test"))
    assert found.classes == ["lying", "standing"]
    assert found.train.names[0] == "lying/0.png"
    resized = read(ImageFolder(images / "test", transform=to_tensor))
    assert torch.equal(found.train.images, resized.train.images)


def test_a_dictionary_has_a_test_part(array, paths):
    data = read({"train": (array, LABELS), "test": (array[:3], LABELS[:3])})
    assert data.test.names == ["test/0", "test/1"]
    assert data.test.labels.tolist() == [0, 1]
    data = read({"train": (paths, LABELS), "test": (paths[3:], LABELS[3:])})
    assert data.test.names == ["deep/3.png", "deep/5.png"]


def test_numbers_are_classes_in_their_order(array):
    labels = np.array([10, 9, -1, 2, 2, 9])
    assert read((array, labels)).classes == ["2", "9", "10"]
    table = pandas.DataFrame({"label": [10, 9, None, 2, 2, 9]})  # pandas makes floats of them
    assert read((array, table["label"])).train.labels.tolist() == [2, 1, -1, 0, 0, 1]


def test_a_path_that_is_listed_twice(paths):
    data = read(([*paths, *paths], [*LABELS, "dog", *LABELS[1:]]))
    assert len(data.train) == 6
    assert data.train.labels.tolist() == [-1, -1, -1, 1, 0, 1]
    assert data.conflicts == ["0.png: two labels, 'cat' and 'dog'"]


def test_an_encoder_sees_an_array_at_its_own_size(array):
    assert read((array, LABELS), encoded=True, size=224).train.images.shape == (6, 3, 8, 8)
    assert read((list(array), LABELS), encoded=True, size=24).train.images.shape == (6, 3, 24, 24)


def test_an_unreadable_image_is_left_out(paths):
    paths[0].write_bytes(b"nothing")
    data = read(list(zip(paths, LABELS, strict=True)))
    assert data.train.names == ["1", "2", "3", "4", "5"]
    assert data.skipped == ["0: not an image"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda x: x, "images without labels"),
        (lambda x: ["a.png", "b.png"], "images without labels"),
        (lambda x: (x, LABELS[1:]), "6 images and 5 labels"),
        (lambda x: (x, None), "the labels are None"),
        (lambda x: (x / 255, LABELS), "must be uint8"),
        (lambda x: (x[..., :2], LABELS), "must be uint8"),
        (lambda x: ([x[0] / 255] * 6, LABELS), "an image must be"),
        (lambda x: (["nowhere.png"] * 6, LABELS), "6 of 6 images do not exist"),
        (lambda x: (x, [0] * 6), "all labels are '0'"),
        (lambda x: (x, [-1] * 6), "no image has a label"),
        (lambda x: (x[:0], []), "no image can be used"),
        (lambda x: TorchDataset(x, [7] * 6), "the label 7 is none of the 2 classes"),
        (lambda x: [1, 2, 3], "is no pair of image and label"),
        (lambda x: iter(x), "cannot learn from"),
        (lambda x: {"test": (x, LABELS)}, "needs the key 'train'"),
        (lambda x: {"train": (x, LABELS), "test": (x, ["cow"] * 6)}, "the class 'cow'"),
        (lambda x: pandas.DataFrame({"path": ["a.png"], "kind": [1]}), "no column 'label'"),
    ],
)
def test_what_cannot_be_learned_from_is_an_error_of_one_line(array, data, message):
    with pytest.raises(UserError, match=message):
        read(data(array))


# ------------------------------------------------------------------------------------- runs


@pytest.fixture
def striped():
    """Arrays of standing and lying stripes; every second one is unlabelled."""
    random = np.random.default_rng(0)
    labels = np.arange(60) % 2
    images = np.zeros((60, 8, 8, 3), np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[..., ::2, :] = random.integers(100, 255)
        image[:] = image if label else image.transpose(1, 0, 2)
    return images, np.where(np.arange(60) % 4 < 2, labels, -1)


@pytest.mark.slow
def test_a_run_on_an_array_is_recorded_resumed_and_evaluated(striped, cli, tmp_path):
    out, options = tmp_path / "run", {"settings": TINY, "progress": False, "steps": 2}
    run = comatch.train({"train": striped, "test": striped}, recipe="folder", out=out, **options)
    assert read_json(out / "config.json")["recipe"]["dataset"]["data"] == "python:array"
    assert run.summary["unlabelled"] == 30
    assert comatch.evaluate(run, striped).top1 == run.accuracy
    assert comatch.evaluate(run, {"train": striped, "test": striped}).top1 == run.accuracy
    (out / "summary.json").unlink()  # as if it had been stopped
    again = comatch.train({"train": striped, "test": striped}, out=out, resume=True, **options)
    assert again.accuracy == run.accuracy
    assert comatch.cross_validate(run, {"train": striped}, folds=2, progress=False).top1 >= 0

    (out / "summary.json").unlink()
    with pytest.raises(UserError, match="the data changed"):
        comatch.train((striped[0][::-1], striped[1]), out=out, resume=True, **options)
    for words in (["evaluate", out], ["train", "--resume", "--out", out]):
        assert_one_line_error(cli(*words), "images given in Python (array)", "comatch.train(data")


@pytest.mark.slow
def test_the_run_folder_is_named_after_the_form_of_the_data(striped, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = comatch.train(striped, settings=TINY, progress=False, steps=1, method="comatch")
    assert run.path.name == "array-comatch-all-seed0"
