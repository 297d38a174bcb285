import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from comatch.data import folder as module
from comatch.data.folder import (
    PictureError,
    find_pictures,
    folder,
    read_labels,
    read_list,
    read_picture,
    square,
)
from comatch.errors import UserError
from comatch.types import UNLABELLED, Dataset, Files

pytestmark = pytest.mark.filterwarnings("ignore:.*no picture of class 'eel':UserWarning")

COLOURS = {"cat": (200, 30, 40), "dog": (20, 180, 60), "eel": (10, 60, 220)}


def picture(path: Path, colour: object = (90, 120, 150), size: tuple[int, int] = (12, 9)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)  # type: ignore[arg-type]
    return path


@pytest.fixture
def sorted_folder(tmp_path: Path) -> Path:
    """Class sub-folders, an unlabelled one and a test part."""
    root = tmp_path / "photos"
    for name, (r, g, b) in COLOURS.items():
        for i in range(3):
            picture(root / name / f"{i}.png", (r, g, b + i))
    picture(root / "cat" / "deep" / "er" / "9.JPG", (200, 30, 50))
    for i in range(4):
        picture(root / "unlabeled" / f"{i}.png", (i, i, i))
    picture(root / "test" / "dog" / "a.png", (20, 180, 99))
    picture(root / "test" / "cat" / "b.png", (200, 30, 99))
    return root


@pytest.fixture
def flat_folder(tmp_path: Path) -> Path:
    """Pictures beside and below a labels.csv that names some of them."""
    root = tmp_path / "flat"
    for i in range(6):
        picture(root / f"{i}.png", (i, 2 * i, 3 * i))
    picture(root / "sub" / "6.png", (77, 7, 7))
    (root / "labels.csv").write_text("path,label\n0.png,cat\n2.png,dog\nsub/6.png,cat\n")
    return root


def labels_of(data: Dataset) -> dict[str, str]:
    pairs = zip(data.train.names, data.train.labels.tolist(), strict=True)
    return {name: data.classes[label] for name, label in pairs if label != UNLABELLED}


def complaint(root: Path, **options: object) -> str:
    with pytest.raises(UserError) as caught:
        folder(root, 8, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -------------------------------------------------------------------------- class sub-folders


def test_sub_folders_are_classes(sorted_folder: Path) -> None:
    data = folder(sorted_folder, 8)
    assert data.name == "photos"
    assert data.classes == ["cat", "dog", "eel"]
    assert data.train.names == sorted(data.train.names)
    assert len(data.train) == 3 * 3 + 1 + 4
    assert data.train.images.dtype == torch.uint8
    assert data.train.images.shape == (14, 3, 8, 8)
    labels = labels_of(data)
    assert labels["cat/deep/er/9.JPG"] == "cat"
    assert labels["eel/2.png"] == "eel"
    assert len(labels) == 10
    assert data.train.names[-4:] == [f"unlabeled/{i}.png" for i in range(4)]
    for name, image in zip(data.train.names, data.train.images, strict=True):
        if name.endswith(".png"):  # every name has its own pixels
            with Image.open(sorted_folder / name) as original:
                assert tuple(image[:, 4, 4].tolist()) == original.getpixel((0, 0))
    assert data.skipped == []


def test_the_test_part_is_apart(sorted_folder: Path) -> None:
    data = folder(sorted_folder, 8)
    assert data.test is not None
    assert data.test.names == ["test/cat/b.png", "test/dog/a.png"]
    assert data.test.labels.tolist() == [0, 1]
    assert data.test.images[:, :, 0, 0].tolist() == [[200, 30, 99], [20, 180, 99]]
    assert not any(name.startswith("test") for name in data.train.names)


def test_without_a_test_part(sorted_folder: Path) -> None:
    (sorted_folder / "test").rename(sorted_folder.parent / "elsewhere")
    assert folder(sorted_folder, 8).test is None


@pytest.mark.parametrize("spelling", ["unlabelled", "Unlabeled", "UNLABELLED"])
def test_unlabelled_in_any_spelling(sorted_folder: Path, spelling: str) -> None:
    (sorted_folder / "unlabeled").rename(sorted_folder / spelling)
    data = folder(sorted_folder, 8)
    assert data.classes == ["cat", "dog", "eel"]
    assert int((data.train.labels == UNLABELLED).sum()) == 4


def test_loose_pictures_are_unlabelled(sorted_folder: Path) -> None:
    picture(sorted_folder / "loose.png")
    assert "loose.png" not in labels_of(folder(sorted_folder, 8))
    assert "loose.png" in folder(sorted_folder, 8).train.names


def test_classes_count_as_people_do(tmp_path: Path) -> None:
    names = ["10", "9", "1", "01", "class 2", "class 12"]
    for i, name in enumerate(names):
        picture(tmp_path / name / "x.png", (i, 0, 0))
    assert folder(tmp_path, 8).classes == ["01", "1", "9", "10", "class 2", "class 12"]


def test_test_pictures_without_a_label_are_counted(sorted_folder: Path) -> None:
    picture(sorted_folder / "test" / "loose.png")
    picture(sorted_folder / "test" / "unlabeled" / "x.png")
    data = folder(sorted_folder, 8)
    assert data.test is not None
    assert len(data.test) == 2
    assert data.skipped == ["test: 2 pictures without a label"]


def test_a_test_part_without_any_label_is_none(sorted_folder: Path) -> None:
    (sorted_folder / "test").rename(sorted_folder.parent / "elsewhere")
    picture(sorted_folder / "test" / "x.png")
    data = folder(sorted_folder, 8)
    assert data.test is None
    assert data.skipped == ["test: 1 pictures without a label"]


def test_a_test_class_that_train_lacks(sorted_folder: Path) -> None:
    picture(sorted_folder / "test" / "fox" / "x.png")
    assert "'fox'" in complaint(sorted_folder)


def test_a_class_folder_without_a_picture(sorted_folder: Path) -> None:
    (sorted_folder / "fox").mkdir()
    (sorted_folder / "fox" / "notes.txt").write_text("none yet")
    assert "class 'fox' has no picture" in complaint(sorted_folder)


def test_one_class_is_none(tmp_path: Path) -> None:
    picture(tmp_path / "cat" / "x.png")
    picture(tmp_path / "unlabeled" / "x.png")
    assert "'cat': give two classes" in complaint(tmp_path)


@pytest.mark.parametrize("where", [".", "unlabeled", "unlabelled/deep"])
def test_neither_csv_nor_classes(tmp_path: Path, where: str) -> None:
    picture(tmp_path / where / "x.png")
    message = complaint(tmp_path)
    assert "labels.csv" in message
    assert "sub-folders" in message


def test_parts_are_not_taken_for_classes(sorted_folder: Path, tmp_path: Path) -> None:
    for i, part in enumerate(("val", "validation")):
        picture(tmp_path / "all" / part / "cat" / "x.png", (i, 0, 0))
    assert "parts, not classes" in complaint(tmp_path / "all")
    (sorted_folder / "eel").rename(sorted_folder / "train")  # the one on rails
    assert folder(sorted_folder, 8).classes == ["cat", "dog", "train"]


# ------------------------------------------------------------------------- the layout of ImageNet


@pytest.fixture
def imagenet(tmp_path: Path) -> Path:
    """Class folders in `train` and `val`, file names that begin with the class."""
    root = tmp_path / "imagenet"
    for part, count in (("train", 3), ("val", 2)):
        for c, name in enumerate(("n01", "n02")):
            for i in range(count):
                picture(root / part / name / f"{name}_{i}.png", (99 * c, 50 * i, count))
    return root


def test_train_and_val(imagenet: Path) -> None:
    picture(imagenet / "unlabeled" / "deep" / "x.png")
    data = folder(imagenet, 8)
    assert data.classes == ["n01", "n02"]
    assert labels_of(data)["train/n02/n02_1.png"] == "n02"
    assert data.train.names[-1] == "unlabeled/deep/x.png"
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 1, UNLABELLED]
    assert data.test is not None
    assert data.test.names[0] == "val/n01/n01_0.png"
    assert data.test.labels.tolist() == [0, 0, 1, 1]
    assert data.skipped == []


@pytest.mark.parametrize("name", ["test", "valid", "Validation"])
def test_the_test_part_has_several_names(imagenet: Path, name: str) -> None:
    (imagenet / "val").rename(imagenet / name)
    data = folder(imagenet, 8)
    assert data.test is not None
    assert data.test.names[0] == f"{name}/n01/n01_0.png"
    assert len(data.train) == 6


def test_of_two_test_parts_the_one_with_labels(imagenet: Path, tmp_path: Path) -> None:
    picture(imagenet / "test" / "ILSVRC_0.png")  # as ImageNet has them, without labels
    data = folder(imagenet, 8)
    assert data.test is not None
    assert {name.split("/")[0] for name in data.test.names} == {"val"}
    assert len(data.train) == 6
    for i, name in enumerate(("n01", "n02")):
        picture(imagenet / "test" / name / "x.png", (i, 1, 1))
    with pytest.warns(UserWarning, match="val is not used: the test part is .*test"):
        data = folder(imagenet, 8)
    assert data.test is not None
    assert data.test.names == ["test/n01/x.png", "test/n02/x.png"]


def test_train_alone(imagenet: Path) -> None:
    (imagenet / "val").rename(imagenet.parent / "val")
    data = folder(imagenet, 8)
    assert data.classes == ["n01", "n02"]
    assert data.test is None


def test_a_class_that_val_lacks_is_named(imagenet: Path) -> None:
    for name in ("n03", "n04"):
        picture(imagenet / "train" / name / "x.png", (int(name[1:]), 0, 7))
    with pytest.warns(UserWarning, match=r"val has no picture of class 'n03' and 1 more: accuracy"):
        data = folder(imagenet, 8)
    assert data.test is not None
    assert data.test.labels.unique().tolist() == [0, 1]


def test_a_class_that_train_lacks(imagenet: Path) -> None:
    picture(imagenet / "val" / "n09" / "x.png")
    assert "val has the class 'n09', of which" in complaint(imagenet)
    (imagenet / "train" / "n09").mkdir()
    assert "class 'n09' has no picture" in complaint(imagenet)


@pytest.mark.parametrize("prefix", ["", "train/"])
@pytest.mark.parametrize("place", [".", "train"])
def test_a_csv_file_in_this_layout(imagenet: Path, prefix: str, place: str) -> None:
    rows = f"{prefix}n01/n01_0.png,n01\n{prefix}n02/n02_2.png,n02\n"
    (imagenet / place / "labels.csv").write_text(rows)
    data = folder(imagenet, 8)
    expected = {"train/n01/n01_0.png": "n01", "train/n02/n02_2.png": "n02"}
    assert labels_of(data) == expected
    assert len(data.train) == 6


# -------------------------------------------------------------------------------- plain lists


@pytest.mark.parametrize(
    "text",
    [
        "n01_0.png\nn02_2.png\n",
        "\ufeffn01_0.png\r\n\r\n n02_2.png \r\nn01_0.png",
        "n01/n01_0.png\nn02/n02_2.png\n",
        "train/n01/n01_0.png\n./train\\n02\\n02_2.png\n",
    ],
)
def test_a_plain_list_says_which_labels_are_known(imagenet: Path, text: str) -> None:
    file = imagenet.parent / "1percent.txt"
    file.write_bytes(text.encode())
    data = folder(imagenet, 8, labels_file=file)
    assert labels_of(data) == {"train/n01/n01_0.png": "n01", "train/n02/n02_2.png": "n02"}
    assert len(data.train) == 6
    assert len(data.test or []) == 4


def test_without_class_folders_the_file_name_has_the_class(tmp_path: Path) -> None:
    for i, name in enumerate(("n01_0.png", "n01_1.png", "n02_0.png", "n02_1.png")):
        picture(tmp_path / "flat" / name, (i, i, i))
    (tmp_path / "list.txt").write_text("n01_1.png\nn02_0.png\n")
    data = folder(tmp_path / "flat", 8, labels_file=tmp_path / "list.txt")
    assert labels_of(data) == {"n01_1.png": "n01", "n02_0.png": "n02"}


def test_a_list_of_pictures_that_are_not_there(imagenet: Path) -> None:
    file = imagenet.parent / "list.txt"
    file.write_text("n01_0.png\nn02_77.png\nn01_78.png\nn01_1.png\n")
    message = complaint(imagenet, labels_file=file)
    assert "lists 4 pictures of which 2 are not there" in message
    assert "n02_77.png for one" in message


def test_a_name_that_several_pictures_have(sorted_folder: Path) -> None:
    file = sorted_folder.parent / "list.txt"
    file.write_text("0.png\neel/1.png\n")
    message = complaint(sorted_folder, labels_file=file)
    assert "0.png, which may be cat/0.png or dog/0.png: write the folder" in message
    file.write_text("dog/0.png\ncat/1.png\n")
    data = folder(sorted_folder, 8, labels_file=file)
    assert labels_of(data) == {"dog/0.png": "dog", "cat/1.png": "cat"}


def test_a_list_is_no_csv_file(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("a.png,cat\nb.png\n")
    assert read_list(tmp_path / "l.csv") == []


# ------------------------------------------------------------------------- pictures that stay files


def test_pictures_may_stay_files(imagenet: Path) -> None:
    (imagenet / "train" / "n01" / "broken.png").write_bytes(b"?")  # which is seen when it is read
    data, seen = folder(imagenet, 8, stream="yes"), folder(imagenet, 8)
    assert isinstance(data.train, Files)
    assert isinstance(data.test, Files)
    assert data.classes == seen.classes
    assert set(data.train.names) - set(seen.train.names) == {"train/n01/broken.png"}
    assert labels_of(data).items() >= labels_of(seen).items()
    assert data.test.labels.tolist() == [0, 0, 1, 1]
    some = data.train.subset(torch.tensor([4, 0]))
    assert some.names == [data.train.names[4], data.train.names[0]]
    assert some.labels.tolist() == [1, 0]


def test_so_they_do_if_there_are_many(imagenet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 6 * 3 * 8 * 8)
    assert not isinstance(folder(imagenet, 8).train, Files)
    assert isinstance(folder(imagenet, 9).train, Files)
    assert not isinstance(folder(imagenet, 9, stream="no").train, Files)


# --------------------------------------------------------------------------------- labels.csv


def test_labels_csv(flat_folder: Path) -> None:
    data = folder(flat_folder, 8)
    assert data.classes == ["cat", "dog"]
    assert labels_of(data) == {"0.png": "cat", "2.png": "dog", "sub/6.png": "cat"}
    assert data.train.names == [*(f"{i}.png" for i in range(6)), "sub/6.png"]


def test_a_labels_csv_rules_over_sub_folders(sorted_folder: Path) -> None:
    (sorted_folder / "labels.csv").write_text("cat/0.png,x\ndog/1.png,y\n")
    (sorted_folder / "test").rename(sorted_folder.parent / "elsewhere")
    data = folder(sorted_folder, 8)
    assert labels_of(data) == {"cat/0.png": "x", "dog/1.png": "y"}
    assert len(data.train) == 14


def test_a_labels_file_rules_over_both(sorted_folder: Path, tmp_path: Path) -> None:
    (sorted_folder / "labels.csv").write_text("cat/0.png,x\ndog/1.png,y\n")
    file = tmp_path / "mine.csv"
    file.write_text(f"path,label\n{sorted_folder}/eel/0.png,cat\nunlabeled/1.png,dog\n")
    data = folder(sorted_folder, 8, labels_file=file)
    assert labels_of(data) == {"eel/0.png": "cat", "unlabeled/1.png": "dog"}
    assert data.test is not None
    assert data.test.labels.tolist() == [0, 1]


def test_a_test_part_with_its_own_csv(flat_folder: Path) -> None:
    for i in range(3):
        picture(flat_folder / "test" / f"{i}.png", (i, 99, 99))
    (flat_folder / "test" / "labels.csv").write_text("2.png,dog\n0.png,cat\n")
    data = folder(flat_folder, 8)
    assert data.test is not None
    assert data.test.names == ["test/0.png", "test/2.png"]
    assert data.test.labels.tolist() == [0, 1]
    assert data.test.images[:, 0, 0, 0].tolist() == [0, 2]
    assert data.skipped == ["test: 1 pictures without a label"]
    assert len(data.train) == 7


@pytest.mark.parametrize(
    "text",
    [
        "path,label\na/1.png,cat\n2.png,big dog\n",
        "a/1.png,cat\n2.png,big dog",
        "\ufeffpath,label\r\na/1.png,cat\r\n2.png,big dog\r\n",
        " path , label \n\n  a/1.png ,  cat \n 2.png, big dog  \n , \n",
        "path;label\na/1.png;cat\n2.png;big dog\n",
        "path\tlabel\na/1.png\tcat\n2.png\tbig dog\n",
        '"Path","Label"\n"a/1.png","cat"\n"2.png", "big dog"\n',
        "filename,class\ra/1.png,cat\r2.png,big dog\r",
        "a/1.png,cat\n2.png,big dog\na/1.png,cat\n",
        "a/1.png,cat\n2.png,big dog\n3.png,\n",
    ],
)
def test_read_labels_in_many_hands(tmp_path: Path, text: str) -> None:
    (tmp_path / "l.csv").write_bytes(text.encode())
    assert read_labels(tmp_path / "l.csv") == {"a/1.png": "cat", "2.png": "big dog"}


def test_a_separator_inside_a_name(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("path;label\na,b.png;cat\nc.png;dog\n")
    assert read_labels(tmp_path / "l.csv") == {"a,b.png": "cat", "c.png": "dog"}
    (tmp_path / "l.csv").write_text('"a,b.png",cat\nc.png,dog\n')
    assert read_labels(tmp_path / "l.csv") == {"a,b.png": "cat", "c.png": "dog"}


def test_a_first_row_that_is_no_header(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("1.png,path\n2.png,name\n")
    assert read_labels(tmp_path / "l.csv") == {"1.png": "path", "2.png": "name"}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "l.csv").write_bytes("é.png,blåbær\nb.png,ö\n".encode(encoding))
    assert read_labels(tmp_path / "l.csv") == {"é.png": "blåbær", "b.png": "ö"}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "no labels"),
        (b"path,label\n", "no labels"),
        (b"path,label\na.png,\n", "no labels"),
        (b"a.png\nb.png\n", "two columns"),
        (b"path,label,note\na.png,cat,x\n", "two columns"),
        (b"a.png,cat\nb.png,dog,x\n", r"mend the row 'b.png,dog,x'"),
        (b"a.png,cat\n,dog\n", "mend the row ',dog'"),
        ("a.png,cat\n".encode("utf-16"), "save it as CSV in UTF-8"),
        (b"\x89PNG\r\n\x1a\n\0\0", "save it as CSV in UTF-8"),
        (b'"' + b"a" * 200_000 + b'",cat\n', "no csv file"),
        (b"a.png,cat\na.png,dog\n", "a.png two labels, 'cat' and 'dog'"),
        (b"a.png,Unlabeled\nb.png,cat\n", "leave the label empty"),
        (b"a.png,unlabelled\nb.png,cat\n", "leave the label empty"),
    ],
)
def test_wrong_csv_files(tmp_path: Path, content: bytes, complaint: str) -> None:
    (tmp_path / "l.csv").write_bytes(content)
    with pytest.raises(UserError, match=complaint) as caught:
        read_labels(tmp_path / "l.csv")
    assert str(tmp_path / "l.csv") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_csv_file_that_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(UserError, match=r"cannot read .*: give a csv file"):
            read_labels(path)


@pytest.mark.parametrize(
    "written",
    ["sub/6.png", "./sub/6.png", "sub\\6.png", ".\\sub\\6.png", "sub//6.png", "0/../sub/6.png"],
)
def test_spellings_of_a_path(flat_folder: Path, written: str) -> None:
    (flat_folder / "labels.csv").write_text(f"{written},cat\n1.png,dog\n")
    assert labels_of(folder(flat_folder, 8)) == {"sub/6.png": "cat", "1.png": "dog"}
    (flat_folder / "labels.csv").write_text(f"{written},cat\n1.png,dog\nsub/6.png,cat\n")
    assert labels_of(folder(flat_folder, 8)) == {"sub/6.png": "cat", "1.png": "dog"}


def test_two_spellings_two_labels(flat_folder: Path) -> None:
    (flat_folder / "labels.csv").write_text("sub/6.png,cat\nsub\\6.png,dog\n")
    assert "sub/6.png two labels, 'cat' and 'dog'" in complaint(flat_folder)


def test_absolute_paths_and_links(flat_folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(flat_folder)
    file = tmp_path / "mine.csv"
    file.write_text(f"{link}/0.png,cat\n{flat_folder}/1.png,dog\n")
    expected = {"0.png": "cat", "1.png": "dog"}
    assert labels_of(folder(flat_folder, 8, labels_file=file)) == expected
    assert labels_of(folder(link, 8, labels_file=file)) == expected


def test_an_accent_in_one_letter_or_two(flat_folder: Path) -> None:
    picture(flat_folder / "cafe\u0301.png")
    (flat_folder / "labels.csv").write_text("caf\u00e9.png,cat\n1.png,dog\n", encoding="utf-8")
    assert labels_of(folder(flat_folder, 8)) == {"1.png": "dog", "cafe\u0301.png": "cat"}


def test_labels_of_files_that_are_not_there(flat_folder: Path) -> None:
    rows = "sub/66.png,cat\n1.png,dog\nx1,cat\nx2,cat\nx3,cat\nlabels.csv,cat\n"
    (flat_folder / "labels.csv").write_text(rows)
    message = complaint(flat_folder)
    assert "5 of 6 files" in message
    assert "sub/66.png, x1, x2, ..." in message
    assert "did you mean sub/6.png?" in message


def test_one_label_for_all(flat_folder: Path) -> None:
    (flat_folder / "labels.csv").write_text("0.png,cat\n1.png,cat\n")
    assert "'cat': give two classes" in complaint(flat_folder)


def test_the_same_picture_under_two_labels(flat_folder: Path) -> None:
    (flat_folder / "copy.png").write_bytes((flat_folder / "0.png").read_bytes())
    with (flat_folder / "labels.csv").open("a") as file:
        file.write("copy.png,dog\n")
    message = complaint(flat_folder)
    assert f"{flat_folder / '0.png'} is the same picture as copy.png of class 'dog'" in message
    assert "remove one" in message


def test_a_large_collection_may_have_a_few_such_pairs(tmp_path: Path) -> None:
    content = io.BytesIO()
    Image.new("RGB", (2, 2), "red").save(content, "PNG")
    for i in range(2100):  # what follows a PNG's end is not looked at, but makes it another file
        name = tmp_path / ("cat" if i % 2 else "dog") / f"{i}.png"
        name.parent.mkdir(exist_ok=True)
        name.write_bytes(content.getvalue() + str(max(i, 1)).encode().rjust(5))
    dataset = folder(tmp_path, 2)
    assert len(dataset.train) == 2098
    assert sorted(dataset.skipped) == [
        "cat/1.png: the same picture as dog/0.png of class 'dog'",
        "dog/0.png: the same picture as cat/1.png of class 'cat'",
    ]


def test_the_same_picture_under_one_label_or_none(flat_folder: Path) -> None:
    content = (flat_folder / "0.png").read_bytes()
    (flat_folder / "copy.png").write_bytes(content)
    (flat_folder / "unlabelled copy.png").write_bytes(content)
    with (flat_folder / "labels.csv").open("a") as file:
        file.write("copy.png,cat\n")
    assert labels_of(folder(flat_folder, 8))["copy.png"] == "cat"


def test_twins_in_the_test_part(sorted_folder: Path) -> None:
    content = (sorted_folder / "test/cat/b.png").read_bytes()
    (sorted_folder / "test/dog/twin.png").write_bytes(content)
    assert "is the same picture as test/dog/twin.png" in complaint(sorted_folder)


# ------------------------------------------------------------------------- folders as they are


def test_the_folder_is_missing_or_a_file(tmp_path: Path) -> None:
    assert "does not exist" in complaint(tmp_path / "none")
    assert "is a file" in complaint(picture(tmp_path / "x.png"))


def test_no_pictures(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "notes.txt").write_text("hello")
    assert "has no pictures" in complaint(tmp_path)


def test_a_size_must_be_given(sorted_folder: Path) -> None:
    with pytest.raises(UserError, match="give an image size"):
        folder(sorted_folder, None)


def test_what_is_no_picture_is_not_looked_at(sorted_folder: Path) -> None:
    before = folder(sorted_folder, 8)
    for name in (
        ".hidden/x.png", "cat/.x.png", "cat/._0.png", "__MACOSX/cat/0.png", "cat/Thumbs.db",
        "cat/desktop.ini", "dog/list.csv", ".DS_Store", "cat/0.png.txt", "cat/png", "cat/x.svg",
    ):  # fmt: skip
        (sorted_folder / name).parent.mkdir(parents=True, exist_ok=True)
        (sorted_folder / name).write_text("no picture")
    after = folder(sorted_folder, 8)
    assert after.train.names == before.train.names
    assert after.skipped == []


def test_damaged_pictures_are_left_out_and_told(sorted_folder: Path) -> None:
    (sorted_folder / "cat" / "0.png").write_bytes(b"")
    (sorted_folder / "dog" / "x.jpeg").write_text("hello")
    (sorted_folder / "unlabeled" / "gone.png").symlink_to("nowhere.png")
    whole = (sorted_folder / "eel" / "1.png").read_bytes()
    (sorted_folder / "eel" / "1.png").write_bytes(whole[:-30])
    (sorted_folder / "test" / "cat" / "y.gif").write_bytes(b"GIF89a")
    data = folder(sorted_folder, 8)
    assert [line.split(": ")[0] for line in data.skipped] == [
        "cat/0.png", "dog/x.jpeg", "eel/1.png", "unlabeled/gone.png", "test/cat/y.gif",
    ]  # fmt: skip
    assert data.skipped[0] == "cat/0.png: an empty file"
    assert data.skipped[1] == "dog/x.jpeg: not a picture"
    assert data.skipped[3] == "unlabeled/gone.png: no such file or directory"
    assert len(data.train) == len(data.train.images) == len(data.train.labels) == 12
    # What is left moved up together: pixels, label and name.
    row = data.train.names.index("eel/2.png")
    assert data.train.images[row, :, 0, 0].tolist() == [10, 60, 222]
    assert data.train.labels[row] == 2


def test_a_class_with_only_damaged_pictures(sorted_folder: Path) -> None:
    for path in (sorted_folder / "eel").iterdir():
        path.write_bytes(b"")
    message = complaint(sorted_folder)
    assert "no labelled picture of class 'eel'" in message
    assert "eel/0.png" in message


def test_only_damaged_pictures(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        picture(tmp_path / name / "x.png").write_bytes(b"")
    assert "none of the 2 pictures" in complaint(tmp_path)


def test_links_are_followed_and_loops_end(sorted_folder: Path, tmp_path: Path) -> None:
    before = folder(sorted_folder, 8)
    picture(tmp_path / "elsewhere" / "fox.png", (1, 2, 3))
    (sorted_folder / "fox").symlink_to(tmp_path / "elsewhere")
    (sorted_folder / "cat" / "up").symlink_to(sorted_folder)
    (sorted_folder / "test" / "cat" / "up").symlink_to(sorted_folder)
    (sorted_folder / "cat" / "self").symlink_to("self")
    (sorted_folder / "dog" / "a").symlink_to(sorted_folder / "eel")  # sorts before the real one
    (sorted_folder / "eel" / "b").symlink_to(sorted_folder / "dog")
    (sorted_folder / "eel" / "test").symlink_to(sorted_folder / "test")
    after = folder(sorted_folder, 8)
    assert set(after.train.names) - set(before.train.names) == {"fox/fox.png"}
    assert set(before.train.names) <= set(after.train.names)
    assert labels_of(after)["eel/0.png"] == "eel"
    assert before.test is not None
    assert after.test is not None
    assert after.test.names == before.test.names


def test_a_linked_picture(sorted_folder: Path, tmp_path: Path) -> None:
    picture(tmp_path / "real.png", (1, 2, 3))
    (sorted_folder / "cat" / "link.png").symlink_to(tmp_path / "real.png")
    data = folder(sorted_folder, 8)
    assert data.train.images[data.train.names.index("cat/link.png"), :, 0, 0].tolist() == [1, 2, 3]


def test_nothing_is_written_into_the_folder(sorted_folder: Path, flat_folder: Path) -> None:
    def everything(root: Path) -> dict[str, tuple[bytes, int]]:
        return {
            str(path): (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns)
            for path in [root, *root.rglob("*")]
        }

    (flat_folder / "broken.png").write_bytes(b"?")
    for root in (sorted_folder, flat_folder):
        before = everything(root)
        folder(root, 8)
        find_pictures([root])
        assert everything(root) == before


def test_the_order_is_the_same_every_time(sorted_folder: Path) -> None:
    one, two = folder(sorted_folder, 8), folder(sorted_folder, 8)
    assert one.train.names == two.train.names
    assert torch.equal(one.train.images, two.train.images)


def test_the_progress_bar_is_for_long_work_and_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = picture(tmp_path / "x.bmp", size=(1, 1)).read_bytes()
    for i in range(1000):
        (tmp_path / f"{i}.bmp").write_bytes(content)
    short = tmp_path / "short"
    for i, name in enumerate(("cat", "dog")):
        picture(short / name / "x.png", (i, i, i))
    picture(tmp_path / "y.bmp", size=(2, 1))
    (tmp_path / "labels.csv").write_text("x.bmp,cat\ny.bmp,dog\n")
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes any stream for a terminal
    assert len(folder(tmp_path, 1, progress=False).train) == 1004
    folder(short, 1, progress=True)
    assert capsys.readouterr() == ("", "")
    folder(tmp_path, 1, progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "Reading" in err


# -------------------------------------------------------------------------------- one picture


def test_square_scales_the_shorter_side_and_keeps_the_middle() -> None:
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, :10, 0], wide[:, 10:20, 1], wide[:, 20:, 2] = 255, 255, 255
    for image in (Image.fromarray(wide), Image.fromarray(wide.transpose(1, 0, 2))):
        pixels = square(image, 20)
        assert pixels.shape == (3, 20, 20)
        assert pixels.dtype == np.uint8
        assert pixels.flags.writeable  # torch.from_numpy wants to
        assert pixels.flags.c_contiguous
        assert (pixels[1, 1:-1, 1:-1] == 255).all()  # the edge blends with what is beyond it
        assert (pixels[[0, 2], 1:-1, 1:-1] == 0).all()


def test_square_may_take_another_part_of_the_longer_side() -> None:
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, :10, 0], wide[:, 10:20, 1], wide[:, 20:, 2] = 255, 255, 255
    for image in (Image.fromarray(wide), Image.fromarray(wide.transpose(1, 0, 2))):
        for channel, place in enumerate((0.0, 0.5, 1.0)):
            pixels = square(image, 10, place)[:, 2:8, 2:8]
            assert pixels[channel].min() == 255
            assert pixels.sum() == pixels[channel].sum()


def test_square_averages_rather_than_drops() -> None:
    board = (np.indices((256, 256)).sum(0) % 2 * 255).astype(np.uint8)
    pixels = square(Image.fromarray(board), 8)
    assert np.abs(pixels.astype(int) - 127).max() <= 3


@pytest.mark.parametrize("shape", [(1, 1), (1, 500), (500, 1), (3, 2), (1000, 7)])
def test_any_size_becomes_square(tmp_path: Path, shape: tuple[int, int]) -> None:
    pixels = read_picture(picture(tmp_path / "x.png", (9, 99, 199), shape), 16)
    assert (pixels == np.array([9, 99, 199])[:, None, None]).all()
    assert pixels.shape == (3, 16, 16)


@pytest.mark.parametrize(
    "name", ["x.jpg", "x.JPEG", "x.png", "x.PnG", "x.webp", "x.bmp", "x.gif", "x.tif", "x.TIFF"]
)
def test_formats(tmp_path: Path, name: str) -> None:
    path = picture(tmp_path / name, (200, 100, 50), (20, 20))
    assert find_pictures([tmp_path]) == [path]
    middle = read_picture(path, 8)[:, 4, 4].astype(int)
    assert np.abs(middle - [200, 100, 50]).max() <= 4


def half_clear(mode: str) -> Image.Image:
    """Black and fully transparent on the left, a solid colour on the right."""
    image = Image.new("RGBA", (16, 16), (0, 0, 0, 0))
    image.paste((40, 40, 40, 255), (8, 0, 16, 16))
    return image.convert(mode)


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
@pytest.mark.parametrize("suffix", ["png", "tiff"])
def test_transparency_is_white(tmp_path: Path, mode: str, suffix: str) -> None:
    path = tmp_path / f"x.{suffix}"
    half_clear(mode).save(path)
    with Image.open(path) as image:
        assert image.mode == mode
    pixels = read_picture(path, 16)
    assert (pixels[:, :, :8] == 255).all()
    assert (pixels[:, :, 8:] == 40).all()


def test_half_transparency_is_half_white() -> None:
    assert np.abs(square(Image.new("RGBA", (4, 4), (0, 0, 0, 128)), 4).astype(int) - 127).max() <= 1


@pytest.mark.parametrize("suffix", ["png", "gif"])
def test_palettes_with_and_without_transparency(tmp_path: Path, suffix: str) -> None:
    image = Image.new("P", (16, 16), 0)
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.paste(1, (8, 0, 16, 16))
    image.save(tmp_path / f"solid.{suffix}")
    image.save(tmp_path / f"clear.{suffix}", transparency=0)
    solid = read_picture(tmp_path / f"solid.{suffix}", 16)
    clear = read_picture(tmp_path / f"clear.{suffix}", 16)
    assert solid[:, 3, 3].tolist() == [255, 0, 0]
    assert clear[:, 3, 3].tolist() == [255, 255, 255]
    assert solid[:, 3, 12].tolist() == clear[:, 3, 12].tolist() == [0, 0, 255]


@pytest.mark.parametrize(("mode", "colour", "seen"), [("L", 77, 77), ("1", 1, 255), ("1", 0, 0)])
def test_grey_and_black_and_white(tmp_path: Path, mode: str, colour: int, seen: int) -> None:
    Image.new(mode, (9, 9), colour).save(tmp_path / "x.png")
    assert (read_picture(tmp_path / "x.png", 8) == seen).all()


@pytest.mark.parametrize("suffix", ["jpg", "tiff"])
def test_cmyk(tmp_path: Path, suffix: str) -> None:
    Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(tmp_path / f"x.{suffix}")
    red = read_picture(tmp_path / f"x.{suffix}", 8)[:, 4, 4].astype(int)
    assert np.abs(red - [255, 0, 0]).max() <= 4


RAMP = np.linspace(0, 1, 256)[None].repeat(256, 0)  # [256, 256], dark to light


@pytest.mark.parametrize(
    ("values", "name", "mode"),
    [
        ((RAMP * 65535).astype(np.uint16), "x.png", "I;16"),
        ((RAMP * 65535).astype(np.uint16), "x.tiff", "I;16"),
        ((RAMP * 65535).astype(">u2"), "x.tiff", "I;16B"),
        ((RAMP * 65535).astype(np.int32), "x.tiff", "I"),
        ((RAMP * 2**31 - 2**30).astype(np.int32), "x.tiff", "I"),
        (RAMP.astype(np.float32), "x.tiff", "F"),
        ((RAMP * 255).astype(np.float32), "x.tiff", "F"),
        ((RAMP * 65535).astype(np.float32), "x.tiff", "F"),
        ((RAMP * 12 - 6).astype(np.float32), "x.tiff", "F"),
    ],
)
def test_deep_greys_are_scaled(tmp_path: Path, values: np.ndarray, name: str, mode: str) -> None:
    image = Image.fromarray(values)
    image.save(tmp_path / name)
    with Image.open(tmp_path / name) as stored:
        assert stored.mode == mode
    pixels = read_picture(tmp_path / name, 256).astype(int)
    assert np.abs(pixels - RAMP * 255).max() <= 1


def test_a_dark_deep_picture_stays_dark(tmp_path: Path) -> None:
    Image.fromarray((RAMP * 6553.5).astype(np.uint16)).save(tmp_path / "x.png")
    assert abs(int(read_picture(tmp_path / "x.png", 256).max()) - 26) <= 1


def test_floats_that_are_no_numbers(tmp_path: Path) -> None:
    values = np.full((8, 8), np.nan, np.float32)
    values[:, :4] = 1
    Image.fromarray(values).save(tmp_path / "x.tiff")
    assert read_picture(tmp_path / "x.tiff", 8)[0, 0].tolist() == [255] * 4 + [0] * 4


@pytest.mark.parametrize("name", ["x.jpg", "x.png", "x.webp", "x.tiff"])
def test_a_picture_is_set_upright(tmp_path: Path, name: str) -> None:
    upright = Image.new("RGB", (16, 16), "red")
    upright.paste((0, 0, 255), (0, 8, 16, 16))  # blue below
    exif = Image.Exif()
    exif[0x0112] = 6  # "turn me to the right"
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / name, exif=exif)
    pixels = read_picture(tmp_path / name, 16).astype(int)
    assert pixels[0, 2, 2] > 200 > 50 > pixels[2, 2, 2]
    assert pixels[2, 13, 13] > 200 > 50 > pixels[0, 13, 13]
    assert pixels[0, 2, 13] > 200 > 50 > pixels[0, 13, 2]


@pytest.mark.parametrize("name", ["x.gif", "x.tiff", "x.webp", "x.png"])
def test_the_first_of_many_frames(tmp_path: Path, name: str) -> None:
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("red", "lime", "blue")]
    frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:])
    with Image.open(tmp_path / name) as image:
        assert image.n_frames == 3  # type: ignore[attr-defined]
    pixels = read_picture(tmp_path / name, 8)[:, 4, 4].astype(int)
    assert np.abs(pixels - [255, 0, 0]).max() <= 4


def test_big_jpegs_are_decoded_at_a_fraction_and_look_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = np.meshgrid(np.linspace(0, 6, 1600), np.linspace(0, 4, 1200))
    big = np.stack([127 + 120 * np.sin(x), 127 + 120 * np.cos(y), 127 + 120 * np.sin(x + y)], 2)
    Image.fromarray(big.astype(np.uint8)).save(tmp_path / "x.jpg", quality=95)
    decoded = []
    monkeypatch.setattr(
        module, "square", lambda image, *how: (decoded.append(image.size), square(image, *how))[1]
    )
    pixels = read_picture(tmp_path / "x.jpg", 32)
    assert max(decoded[0]) <= 400
    assert np.abs(pixels - square(Image.fromarray(big.astype(np.uint8)), 32).astype(int)).max() <= 6


def bomb(path: Path) -> None:
    """A PNG whose header promises 40,000 x 40,000 pixels."""
    header = b"IHDR" + struct.pack(">IIBBBBB", 40_000, 40_000, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk + struct.pack(">I", 9) + b"IDAT" + b"\0" * 13)


def test_one_exception_for_all_that_gives_no_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    reasons = {}
    for suffix in ("jpg", "png", "webp", "bmp", "gif", "tiff"):
        path = tmp_path / f"truncated.{suffix}"
        Image.fromarray(noise).save(path)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "text.png").write_text("I am no picture")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "loop.png").symlink_to("loop.png")
    os.mkfifo(tmp_path / "pipe.png")
    bomb(tmp_path / "bomb.png")
    for path in [*tmp_path.iterdir(), tmp_path / "missing.png"]:
        with pytest.raises(PictureError) as caught:
            read_picture(path, 8)
        reasons[path.name] = str(caught.value)
    assert reasons["empty.png"] == "an empty file"
    assert reasons["text.png"] == "not a picture"
    assert reasons["folder.png"] == reasons["pipe.png"] == "not a file"
    assert reasons["missing.png"] == "no such file or directory"
    assert "truncated" in reasons["truncated.jpg"]
    assert "decompression bomb" in reasons["bomb.png"]
    assert all(reason and "\n" not in reason for reason in reasons.values())

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Image, "open", refuse)  # root may read everything, so chmod proves nothing
    with pytest.raises(PictureError, match="permission denied"):
        read_picture(picture(tmp_path / "secret.bmp"), 8)


def test_formats_that_were_not_asked_for_stay_shut(tmp_path: Path) -> None:
    Image.new("RGB", (9, 9)).save(tmp_path / "x.ppm")
    (tmp_path / "x.ppm").rename(tmp_path / "x.png")
    with pytest.raises(PictureError, match="not a picture"):
        read_picture(tmp_path / "x.png", 8)


# ------------------------------------------------------------------------------ find_pictures


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_find_pictures(in_folder: Path) -> None:
    for name in ("b/2.png", "b/test/1.JPG", "a.png", "c.png", "b/.hidden.png", ".cache/x.png"):
        picture(in_folder / name)
    (in_folder / "b" / "labels.csv").write_text("2.png,cat\n")
    (in_folder / "b" / "loop").symlink_to(in_folder / "b")
    given = [Path("c.png"), Path("b"), Path("a.png"), Path("b/2.png")]
    assert find_pictures(given) == [Path(p) for p in ("a.png", "b/2.png", "b/test/1.JPG", "c.png")]
    assert find_pictures([Path(".cache")]) == [Path(".cache/x.png")]


def test_a_file_that_is_named_is_taken(in_folder: Path) -> None:
    (in_folder / "photo.heic").write_text("?")
    assert find_pictures([Path("photo.heic")]) == [Path("photo.heic")]


def test_find_pictures_complains(in_folder: Path) -> None:
    with pytest.raises(UserError, match="nowhere does not exist"):
        find_pictures([Path("nowhere")])
    (in_folder / "empty").mkdir()
    with pytest.raises(UserError, match=r"no pictures .* in empty"):
        find_pictures([Path("empty")])
