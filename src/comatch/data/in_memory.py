"""Images given in Python: paths, an array, a table, or a data set of another library.

Each of them becomes pairs of an image and its label. Nothing is imported for that: a data set of
PyTorch, torchvision or Hugging Face is recognised by what it can do.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from comatch.data import image_folder
from comatch.data.config import Reading
from comatch.data.image_folder import Conflict, Labels, Listing, natural_order, two_labels
from comatch.data.images import ImageError, read_image, square
from comatch.data.labels_file import LABEL_HEADS, PATH_HEADS
from comatch.data.streaming import middle
from comatch.errors import UserError, shortened
from comatch.types import UNLABELLED, Dataset, Images, Part

PREFIX = "python:"  # of the setting `data` of a run that learned from images given in Python
TEST_KEYS = ("test", "validation")  # of a dictionary: the first that it has is the test part
IMAGE_HEADS = ("image", "img", *PATH_HEADS)
ARRAYS = "uint8 [N, H, W, 3] or [N, H, W]"

Pair = tuple[Any, Any]  # an image of any form and its label


class Items(NamedTuple):
    """Images of one part, with their labels where they are known."""

    kind: str
    pairs: Callable[[], Iterable[Pair]]
    size: int
    classes: Sequence[str] | None = None  # the name of each number that is a label
    files: bool = False  # each image is a path


@dataclass(frozen=True, eq=False, repr=False)
class Given:
    """Images given in Python, before they are read at the size of a run."""

    train: Items
    test: Items | None = None

    @property
    def name(self) -> str:
        """The setting `data` of a run: `python:array`."""
        return PREFIX + self.train.kind

    def __repr__(self) -> str:
        return f"{self.name} of {self.train.size} images"


def given(data: Any) -> Given:
    """Recognise images and labels, or a dictionary with those of the parts `train` and `test`."""
    if not isinstance(data, Mapping):
        return Given(items_of(data))
    if "train" not in data:
        raise UserError("a dictionary of data needs the key 'train'; its test part is 'test'")
    test = next((data[key] for key in TEST_KEYS if key in data), None)
    return Given(items_of(data["train"]), None if test is None else items_of(test))


def must_be_given(data: str) -> UserError:
    """The error for a run whose images only a Python program has."""
    kind = data.removeprefix(PREFIX)
    return UserError(
        f"this run learned from images given in Python ({kind}), which its folder does not hold: "
        "give them again in Python, as in comatch.train(data, out=RUN, resume=True), "
        "comatch.evaluate(RUN, data) or comatch.cross_validate(RUN, data)"
    )


# -------------------------------------------------------------------------------- recognition


def items_of(data: Any) -> Items:
    """The images of one part."""
    if isinstance(data, tuple) and len(data) == 2 and not isinstance(data[0], str | Path):
        return labelled(*data)
    if hasattr(data, "columns") and hasattr(data, "itertuples"):
        return table(data)
    if hasattr(data, "features") and hasattr(data, "column_names") and hasattr(data, "__len__"):
        return hugging_face(data)
    if is_image(data) or (isinstance(data, Sequence) and len(data) and is_image(data[0])):
        raise UserError(
            "images without labels: give a pair (images, labels), in which an unlabelled image "
            "has the label -1"
        )
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return dataset(data)
    raise UserError(
        f"cannot learn from {type(data).__name__}: give a folder, a pair (images, labels), a table "
        "with the columns path and label, or a data set with a length"
    )


def is_image(value: Any) -> bool:
    return isinstance(value, str | Path | Image.Image | np.ndarray | Tensor)


def labelled(images: Any, labels: Any) -> Items:
    """Paths, an array, or images of any size, and a label for each."""
    if not isinstance(labels, Iterable) or isinstance(labels, str):
        raise UserError(f"the labels are {labels!r}: give one for each image, -1 if it is unknown")
    labels = list(labels)
    if isinstance(images, np.ndarray) and images.dtype.kind in "OU":  # an array of paths
        images = images.tolist()
    if isinstance(images, np.ndarray):
        check_array(images)
        kind = "array"
    else:
        images = list(images)
        kind = "paths" if all(isinstance(image, str | Path) for image in images) else "images"
    if len(images) != len(labels):
        raise UserError(f"{len(images)} images and {len(labels)} labels: give one label an image")
    return Items(kind, lambda: zip(images, labels, strict=True), len(images), files=kind == "paths")


def check_array(images: np.ndarray) -> None:
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or images.shape[3:] not in ((), (3,)):
        shape = list(images.shape)
        raise UserError(f"an array of images must be {ARRAYS}; this one is {images.dtype} {shape}")


def table(frame: Any) -> Items:
    """A table with a column of paths and one of labels, named as in labels.csv."""
    columns = list(frame.columns)
    images, labels = (frame[column(columns, heads)] for heads in (PATH_HEADS, LABEL_HEADS))
    return labelled(list(images), list(labels))._replace(kind="table")


def column(columns: Sequence[Any], heads: Sequence[str]) -> Any:
    """The first of these names that a table has."""
    plain = {str(name).lower().replace("_", "").replace(" ", ""): name for name in columns}
    found = next((plain[head] for head in heads if head in plain), None)
    if found is None:
        raise UserError(
            f"the data have no column '{heads[0]}': name one of {shortened(columns)} so"
        )
    return found


def hugging_face(data: Any) -> Items:
    """A data set with named columns, of which one has images and one labels."""
    kinds = {name: type(feature).__name__ for name, feature in data.features.items()}
    image = next((name for name, kind in kinds.items() if kind == "Image"), None)
    label = next((name for name, kind in kinds.items() if kind == "ClassLabel"), None)
    image = image or column(data.column_names, IMAGE_HEADS)
    label = label or column(data.column_names, LABEL_HEADS)
    names = getattr(data.features[label], "names", None)

    def pairs() -> Iterator[Pair]:
        return ((row[image], row[label]) for row in data)

    return Items("huggingface", pairs, len(data), names)


def dataset(data: Any) -> Items:
    """A map-style data set of PyTorch: item i is a pair of an image and its label.

    The files of torchvision's ImageFolder are read as those of a folder, unless it transforms them.
    """
    classes = getattr(data, "classes", None)
    files = getattr(data, "samples", None)
    if files and data.transform is None and data.target_transform is None:
        return Items("dataset", lambda: files, len(files), classes, files=True)

    def pairs() -> Iterator[Pair]:
        for i in range(len(data)):
            try:
                image, label = data[i]
            except (TypeError, ValueError) as error:
                raise UserError(
                    f"item {i} of the data set is no pair of image and label ({error})"
                ) from None
            yield image, label

    return Items("dataset", pairs, len(data), classes)


# ------------------------------------------------------------------------------------ reading


class Item(NamedTuple):
    """An image that was read."""

    name: str
    pixels: np.ndarray  # [3, H, W] uint8
    label: str | None  # its class


def read(data: Given, reading: Reading, progress: bool = True, strict: bool = False) -> Dataset:
    """The data set. Paths are read like the files of a folder; other images are in memory."""
    size, stream = reading.dataset.image_size, reading.streaming.stream
    if data.train.files and (data.test is None or data.test.files):
        stream = "yes" if reading.encoded else stream
        files = image_folder.read_files(list_files(data), size, progress, stream, strict)
        return replace(files, name=data.train.kind)
    if stream == "yes":
        raise UserError(f"{data.name} is in memory: leave stream=yes out, or give paths")
    skipped: list[str] = []
    train = read_items(data.train, size, reading.encoded, "", skipped)
    classes = classes_of([item.label for item in train], data.train.classes)
    test: list[Item] = []
    if data.test:
        test = read_items(data.test, size, reading.encoded, "test/", skipped)
        test = [item for item in test if item.label is not None]
        check_known([item.label for item in test], classes)
    images = as_images(test, classes) if test else None
    return Dataset(data.train.kind, classes, as_images(train, classes), images, skipped=skipped)


def read_labelled(data: Any, classes: Sequence[str], side: int, image_size: int) -> Part:
    """The labelled ones of these images, to evaluate a classifier of these classes on.

    It sees the central `image_size` pixels of a square of `side` pixels.
    """
    parts = given(data)
    part = parts.test if isinstance(data, Mapping) else parts.train
    if part is None:
        raise UserError("the data have no part 'test': add one, or give images and labels")
    if part.files:
        root, (found,) = find_files([part])
        labels = labels_of(found)
        check_known(labels.classes, classes)
        files: Part = image_folder.labelled_part(root, labels, classes)
    else:
        items = read_items(part, side, False, "", [])
        check_known([item.label for item in items], classes)
        items = [item for item in items if item.label is not None]
        files = as_images(
            [item._replace(pixels=middle(item.pixels, image_size)) for item in items], classes
        )
    if not len(files):
        raise UserError("none of the images has a label: give their classes")
    return files


# ------------------------------------------------------------------------------------ files

Found = dict[str, set[str]]  # the labels of each file, by its name below the root


def list_files(data: Given) -> Listing:
    """The files of both parts with their labels."""
    root, found = find_files([part for part in (data.train, data.test) if part])
    train, test = labels_of(found[0]), labels_of(found[1] if data.test else {})
    classes = classes_of(train.classes, data.train.classes)
    check_known(test.classes, classes)
    return Listing(root, sorted(found[0]), train, test, classes)


def find_files(parts: Sequence[Items]) -> tuple[Path, list[Found]]:
    """The folder that all files share, and those of each part."""
    listed = [
        [
            (Path(path).expanduser().absolute(), class_of(label, part.classes))
            for path, label in part.pairs()
        ]
        for part in parts
    ]
    paths = [path for pairs in listed for path, _ in pairs]
    if not paths:
        raise UserError("no image was given")
    if missing := [path for path in paths if not path.exists()]:
        raise UserError(f"{len(missing)} of {len(paths)} images do not exist, as {missing[0]}")
    root = Path(os.path.commonpath([path.parent for path in paths]))
    found: list[Found] = [{} for _ in parts]
    for names, pairs in zip(found, listed, strict=True):
        for path, label in pairs:
            labels = names.setdefault(path.relative_to(root).as_posix(), set())
            if label is not None:
                labels.add(label)
    return root, found


def labels_of(found: Found) -> Labels:
    """The labels of files. One that is listed with two labels counts as unlabelled."""
    several = {name: sorted(labels) for name, labels in found.items() if len(labels) > 1}
    return Labels(
        {name: label for name, labels in found.items() if len(labels) == 1 for label in labels},
        {name: Conflict(labels, two_labels(labels)) for name, labels in several.items()},
        set().union(*found.values()),
    )


# ------------------------------------------------------------------------------------ images


def read_items(
    part: Items, image_size: int, encoded: bool, prefix: str, skipped: list[str]
) -> list[Item]:
    """The images of a part in memory; those that cannot be read are added to `skipped`.

    An encoder sees more of an image than a square of its size, if all images are of one shape.
    """
    items = []
    for i, (image, label) in enumerate(part.pairs()):
        name = f"{prefix}{i}"
        try:
            if part.kind == "array" and encoded:
                pixels = np.array(picture(image)).transpose(2, 0, 1)
            elif isinstance(image, str | Path):
                pixels = read_image(Path(image), image_size)
            else:
                pixels = square(picture(image), image_size)
            items.append(Item(name, pixels, class_of(label, part.classes)))
        except ImageError as error:
            skipped.append(f"{name}: {error}")
    if not items:
        raise UserError(f"no image can be used ({shortened(skipped) or 'none was given'})")
    return items


def picture(image: Any) -> Image.Image:
    """A Pillow image of one, of an array [H, W, 3] or [H, W], or of a tensor [3, H, W]."""
    if isinstance(image, Image.Image):
        return image
    if isinstance(image, Tensor):
        image = image.permute(1, 2, 0).numpy() if image.ndim == 3 else image.numpy()
        if image.dtype.kind == "f" and image.min() >= 0 and image.max() <= 1:  # of ToTensor
            image = np.round(image * 255).astype(np.uint8)
    pixels = np.asarray(image)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or pixels.shape[2:] not in ((), (3,)):
        raise UserError(
            "an image must be a path, a Pillow image, an array uint8 [H, W, 3] or a tensor "
            f"[3, H, W] of 0 to 1; one is {type(image).__name__} {pixels.dtype} "
            f"{list(pixels.shape)}"
        )
    return Image.fromarray(pixels).convert("RGB")


def as_images(items: Sequence[Item], classes: Sequence[str]) -> Images:
    numbers = {name: number for number, name in enumerate(classes)}
    labels = [UNLABELLED if item.label is None else numbers[item.label] for item in items]
    pixels = np.stack([item.pixels for item in items]) if items else np.empty((0, 3, 1, 1), "u1")
    return Images(torch.from_numpy(pixels), torch.tensor(labels), [item.name for item in items])


# ------------------------------------------------------------------------------------ labels


def class_of(label: Any, names: Sequence[str] | None) -> str | None:
    """The class of a label: a number or a name. None: the image is unlabelled."""
    if hasattr(label, "item"):  # a number of NumPy or PyTorch
        label = label.item()
    if label is None or label != label or label in (UNLABELLED, str(UNLABELLED), ""):
        return None
    if isinstance(label, float) and label.is_integer():  # a column of pandas with gaps
        label = int(label)
    if names is None or not isinstance(label, int):
        return str(label)
    if not 0 <= label < len(names):
        raise UserError(f"the label {label} is none of the {len(names)} classes of the data set")
    return str(names[label])


def classes_of(labels: Iterable[str | None], names: Sequence[str] | None) -> list[str]:
    """The classes that occur, in the order of their numbers or names."""
    found = {label for label in labels if label is not None}
    ordered = [str(name) for name in names or () if str(name) in found]
    ordered += sorted(found - set(ordered), key=natural_order)
    if len(ordered) < 2:
        what = f"all labels are '{ordered[0]}'" if ordered else "no image has a label"
        raise UserError(f"{what}: give labels of two classes or more, and -1 for unlabelled")
    return ordered


def check_known(labels: Iterable[str | None], classes: Sequence[str]) -> None:
    """Raise an error if test images have a class without training images."""
    if unknown := {label for label in labels if label is not None} - set(classes):
        first = min(unknown, key=natural_order)
        raise UserError(f"the class '{first}' is none of those trained ({shortened(classes)})")
