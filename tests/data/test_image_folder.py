import io
from pathlib import Path

import pytest
import torch
from PIL import Image

from comatch.data import image_folder as module
from comatch.data import reader
from comatch.data.image_folder import find_images, folder
from comatch.data.labels_file import read_labels, read_list
from comatch.errors import UserError
from comatch.types import UNLABELLED, Dataset, Files
from helpers import write_image

pytestmark = pytest.mark.filterwarnings("ignore:.*no image of class 'eel':UserWarning")

COLOURS = {"cat": (200, 30, 40), "dog": (20, 180, 60), "eel": (10, 60, 220)}


@pytest.fixture
def sorted_folder(tmp_path: Path) -> Path:
    """Class folders, an unlabelled folder and a test part."""
    root = tmp_path / "photos"
    for name, (r, g, b) in COLOURS.items():
        for i in range(3):
            write_image(root / name / f"{i}.png", (r, g, b + i))
    write_image(root / "cat" / "deep" / "er" / "9.JPG", (200, 30, 50))
    for i in range(4):
        write_image(root / "unlabeled" / f"{i}.png", (i, i, i))
    write_image(root / "test" / "dog" / "a.png", (20, 180, 99))
    write_image(root / "test" / "cat" / "b.png", (200, 30, 99))
    return root


@pytest.fixture
def flat_folder(tmp_path: Path) -> Path:
    """Images beside and below a labels.csv that names some of them."""
    root = tmp_path / "flat"
    for i in range(6):
        write_image(root / f"{i}.png", (i, 2 * i, 3 * i))
    write_image(root / "sub" / "6.png", (77, 7, 7))
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


def test_the_test_part_is_not_used_for_training(sorted_folder: Path) -> None:
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


def test_loose_images_are_unlabelled(sorted_folder: Path) -> None:
    write_image(sorted_folder / "loose.png")
    assert "loose.png" not in labels_of(folder(sorted_folder, 8))
    assert "loose.png" in folder(sorted_folder, 8).train.names


def test_classes_are_sorted_numerically(tmp_path: Path) -> None:
    names = ["10", "9", "1", "01", "class 2", "class 12"]
    for i, name in enumerate(names):
        write_image(tmp_path / name / "x.png", (i, 0, 0))
    assert folder(tmp_path, 8).classes == ["01", "1", "9", "10", "class 2", "class 12"]


def test_test_images_without_a_label_are_counted(sorted_folder: Path) -> None:
    write_image(sorted_folder / "test" / "loose.png")
    write_image(sorted_folder / "test" / "unlabeled" / "x.png")
    data = folder(sorted_folder, 8)
    assert data.test is not None
    assert len(data.test) == 2
    assert data.skipped == ["test: 2 images without a label"]


def test_a_test_part_without_labels_is_ignored(sorted_folder: Path) -> None:
    (sorted_folder / "test").rename(sorted_folder.parent / "elsewhere")
    write_image(sorted_folder / "test" / "x.png")
    data = folder(sorted_folder, 8)
    assert data.test is None
    assert data.skipped == ["test: 1 images without a label"]


def test_a_test_class_without_training_images(sorted_folder: Path) -> None:
    write_image(sorted_folder / "test" / "fox" / "x.png")
    assert "'fox'" in complaint(sorted_folder)


def test_an_empty_class_folder(sorted_folder: Path) -> None:
    (sorted_folder / "fox").mkdir()
    (sorted_folder / "fox" / "notes.txt").write_text("none yet")
    assert "class 'fox' has no image" in complaint(sorted_folder)


def test_one_class_is_too_few(tmp_path: Path) -> None:
    write_image(tmp_path / "cat" / "x.png")
    write_image(tmp_path / "unlabeled" / "x.png")
    assert "'cat': give two classes" in complaint(tmp_path)


@pytest.mark.parametrize("where", [".", "unlabeled", "unlabelled/deep"])
def test_neither_csv_nor_classes(tmp_path: Path, where: str) -> None:
    write_image(tmp_path / where / "x.png")
    message = complaint(tmp_path)
    assert "labels.csv" in message
    assert "sub-folders" in message


def test_parts_are_not_classes(sorted_folder: Path, tmp_path: Path) -> None:
    for i, part in enumerate(("val", "validation")):
        write_image(tmp_path / "all" / part / "cat" / "x.png", (i, 0, 0))
    assert "parts, not classes" in complaint(tmp_path / "all")
    (sorted_folder / "eel").rename(sorted_folder / "train")  # the one on rails
    assert folder(sorted_folder, 8).classes == ["cat", "dog", "train"]


# ------------------------------------------------------------------------- the layout of ImageNet


@pytest.fixture
def imagenet(tmp_path: Path) -> Path:
    """Class folders in `train` and `val`; file names begin with the class."""
    root = tmp_path / "imagenet"
    for part, count in (("train", 3), ("val", 2)):
        for c, name in enumerate(("n01", "n02")):
            for i in range(count):
                write_image(root / part / name / f"{name}_{i}.png", (99 * c, 50 * i, count))
    return root


def test_train_and_val(imagenet: Path) -> None:
    write_image(imagenet / "unlabeled" / "deep" / "x.png")
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


def test_of_two_test_parts_the_labelled_one_is_used(imagenet: Path, tmp_path: Path) -> None:
    write_image(imagenet / "test" / "ILSVRC_0.png")  # as ImageNet has them, without labels
    data = folder(imagenet, 8)
    assert data.test is not None
    assert {name.split("/")[0] for name in data.test.names} == {"val"}
    assert len(data.train) == 6
    for i, name in enumerate(("n01", "n02")):
        write_image(imagenet / "test" / name / "x.png", (i, 1, 1))
    with pytest.warns(UserWarning, match="val is not used: the test part is .*test"):
        data = folder(imagenet, 8)
    assert data.test is not None
    assert data.test.names == ["test/n01/x.png", "test/n02/x.png"]


def test_train_without_a_test_part(imagenet: Path) -> None:
    (imagenet / "val").rename(imagenet.parent / "val")
    data = folder(imagenet, 8)
    assert data.classes == ["n01", "n02"]
    assert data.test is None


def test_a_class_missing_in_val_is_a_warning(imagenet: Path) -> None:
    for name in ("n03", "n04"):
        write_image(imagenet / "train" / name / "x.png", (int(name[1:]), 0, 7))
    with pytest.warns(UserWarning, match=r"val has no image of class 'n03' and 1 more: accuracy"):
        data = folder(imagenet, 8)
    assert data.test is not None
    assert data.test.labels.unique().tolist() == [0, 1]


def test_a_class_missing_in_train_is_an_error(imagenet: Path) -> None:
    write_image(imagenet / "val" / "n09" / "x.png")
    assert "val has the class 'n09': " in complaint(imagenet)
    (imagenet / "train" / "n09").mkdir()
    assert "class 'n09' has no image" in complaint(imagenet)


@pytest.mark.parametrize("prefix", ["", "train/"])
@pytest.mark.parametrize("place", [".", "train"])
def test_a_csv_file_in_imagenets_layout(imagenet: Path, prefix: str, place: str) -> None:
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
def test_a_plain_list_selects_the_labelled_images(imagenet: Path, text: str) -> None:
    file = imagenet.parent / "1percent.txt"
    file.write_bytes(text.encode())
    data = folder(imagenet, 8, labels_file=file)
    assert labels_of(data) == {"train/n01/n01_0.png": "n01", "train/n02/n02_2.png": "n02"}
    assert len(data.train) == 6
    assert len(data.test or []) == 4


def test_without_class_folders_the_class_is_in_the_file_name(tmp_path: Path) -> None:
    for i, name in enumerate(("n01_0.png", "n01_1.png", "n02_0.png", "n02_1.png")):
        write_image(tmp_path / "flat" / name, (i, i, i))
    (tmp_path / "list.txt").write_text("n01_1.png\nn02_0.png\n")
    data = folder(tmp_path / "flat", 8, labels_file=tmp_path / "list.txt")
    assert labels_of(data) == {"n01_1.png": "n01", "n02_0.png": "n02"}


def test_a_list_with_missing_images(imagenet: Path) -> None:
    file = imagenet.parent / "list.txt"
    file.write_text("n01_0.png\nn02_77.png\nn01_78.png\nn01_1.png\n")
    message = complaint(imagenet, labels_file=file)
    assert "lists 4 images of which 2 are not there" in message
    assert "n02_77.png for one" in message


def test_an_ambiguous_name_in_a_list(sorted_folder: Path) -> None:
    file = sorted_folder.parent / "list.txt"
    file.write_text("0.png\neel/1.png\n")
    message = complaint(sorted_folder, labels_file=file)
    assert "0.png, which may be cat/0.png or dog/0.png: write the folder" in message
    file.write_text("dog/0.png\ncat/1.png\n")
    data = folder(sorted_folder, 8, labels_file=file)
    assert labels_of(data) == {"dog/0.png": "dog", "cat/1.png": "cat"}


def test_a_list_is_not_a_csv_file(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("a.png,cat\nb.png\n")
    assert read_list(tmp_path / "l.csv") == []


# ------------------------------------------------------------------------- images that stay files


def test_images_can_stay_on_disk(imagenet: Path) -> None:
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


def test_many_images_stay_on_disk(imagenet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_labels_csv_overrides_class_folders(sorted_folder: Path) -> None:
    (sorted_folder / "labels.csv").write_text("cat/0.png,x\ndog/1.png,y\n")
    (sorted_folder / "test").rename(sorted_folder.parent / "elsewhere")
    data = folder(sorted_folder, 8)
    assert labels_of(data) == {"cat/0.png": "x", "dog/1.png": "y"}
    assert len(data.train) == 14


def test_a_labels_file_overrides_both(sorted_folder: Path, tmp_path: Path) -> None:
    (sorted_folder / "labels.csv").write_text("cat/0.png,x\ndog/1.png,y\n")
    file = tmp_path / "mine.csv"
    file.write_text(f"path,label\n{sorted_folder}/eel/0.png,cat\nunlabeled/1.png,dog\n")
    data = folder(sorted_folder, 8, labels_file=file)
    assert labels_of(data) == {"eel/0.png": "cat", "unlabeled/1.png": "dog"}
    assert data.test is not None
    assert data.test.labels.tolist() == [0, 1]


def test_a_test_part_with_its_own_csv(flat_folder: Path) -> None:
    for i in range(3):
        write_image(flat_folder / "test" / f"{i}.png", (i, 99, 99))
    (flat_folder / "test" / "labels.csv").write_text("2.png,dog\n0.png,cat\n")
    data = folder(flat_folder, 8)
    assert data.test is not None
    assert data.test.names == ["test/0.png", "test/2.png"]
    assert data.test.labels.tolist() == [0, 1]
    assert data.test.images[:, 0, 0, 0].tolist() == [0, 2]
    assert data.skipped == ["test: 1 images without a label"]
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
        "label,path\ncat,a/1.png\nbig dog,2.png\n",
        "id,image,width,class,note\n1,a/1.png,90,cat,\n2,2.png,80,big dog,dark\n",
        "file_name;split;Label\na/1.png;train;cat\n2.png;;big dog\n",
    ],
)
def test_read_labels_in_all_accepted_forms(tmp_path: Path, text: str) -> None:
    (tmp_path / "l.csv").write_bytes(text.encode())
    assert dict(read_labels(tmp_path / "l.csv")) == {"a/1.png": "cat", "2.png": "big dog"}


def test_a_separator_inside_a_name(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("path;label\na,b.png;cat\nc.png;dog\n")
    assert dict(read_labels(tmp_path / "l.csv")) == {"a,b.png": "cat", "c.png": "dog"}
    (tmp_path / "l.csv").write_text('"a,b.png",cat\nc.png,dog\n')
    assert dict(read_labels(tmp_path / "l.csv")) == {"a,b.png": "cat", "c.png": "dog"}


def test_a_first_row_that_is_not_a_header(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("1.png,path\n2.png,name\n")
    assert dict(read_labels(tmp_path / "l.csv")) == {"1.png": "path", "2.png": "name"}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "l.csv").write_bytes("é.png,blåbær\nb.png,ö\n".encode(encoding))
    assert dict(read_labels(tmp_path / "l.csv")) == {"é.png": "blåbær", "b.png": "ö"}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "no labels"),
        (b"path,label\n", "no labels"),
        (b"path,label\na.png,\n", "no labels"),
        (b"a.png\nb.png\n", "two columns"),
        (b"a.png,cat,x\nb.png,dog,y\n", "two columns"),
        (b"path,label,label\na.png,cat,x\n", "two columns 'label'"),
        (b"a.png,cat\nb.png,dog,x\n", r"mend the row 'b.png,dog,x'"),
        (b"a.png,cat\n,dog\n", "mend the row ',dog'"),
        ("a.png,cat\n".encode("utf-16"), "save it as CSV in UTF-8"),
        (b"\x89PNG\r\n\x1a\n\0\0", "save it as CSV in UTF-8"),
        (b'"' + b"a" * 200_000 + b'",cat\n', "no csv file"),
        (b"a.png,Unlabeled\nb.png,cat\n", "leave the label empty"),
        (b"a.png,unlabelled\nb.png,cat\n", "leave the label empty"),
    ],
)
def test_invalid_csv_files(tmp_path: Path, content: bytes, complaint: str) -> None:
    (tmp_path / "l.csv").write_bytes(content)
    with pytest.raises(UserError, match=complaint) as caught:
        read_labels(tmp_path / "l.csv")
    assert str(tmp_path / "l.csv") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_csv_file(tmp_path: Path) -> None:
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


def test_two_spellings_with_two_labels(flat_folder: Path) -> None:
    (flat_folder / "labels.csv").write_text("sub/6.png,cat\nsub\\6.png,dog\n")
    message = complaint(flat_folder)
    assert "sub/6.png for one (two labels, 'cat' and 'dog')" in message
    with (flat_folder / "labels.csv").open("a") as file:
        file.write("0.png,cat\n1.png,dog\n")
    data = folder(flat_folder, 8)
    assert labels_of(data) == {"0.png": "cat", "1.png": "dog"}
    assert "sub/6.png" in data.train.names
    assert data.conflicts == ["sub/6.png: two labels, 'cat' and 'dog'"]
    assert "1 images in" in complaint(flat_folder, strict=True)


def test_absolute_paths_and_links(flat_folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(flat_folder)
    file = tmp_path / "mine.csv"
    file.write_text(f"{link}/0.png,cat\n{flat_folder}/1.png,dog\n")
    expected = {"0.png": "cat", "1.png": "dog"}
    assert labels_of(folder(flat_folder, 8, labels_file=file)) == expected
    assert labels_of(folder(link, 8, labels_file=file)) == expected


def test_an_accent_in_one_character_or_two(flat_folder: Path) -> None:
    write_image(flat_folder / "cafe\u0301.png")
    (flat_folder / "labels.csv").write_text("caf\u00e9.png,cat\n1.png,dog\n", encoding="utf-8")
    assert labels_of(folder(flat_folder, 8)) == {"1.png": "dog", "cafe\u0301.png": "cat"}


def test_labels_of_missing_files(flat_folder: Path) -> None:
    rows = "sub/66.png,cat\n1.png,dog\nx1,cat\nx2,cat\nx3,cat\nlabels.csv,cat\n"
    (flat_folder / "labels.csv").write_text(rows)
    message = complaint(flat_folder)
    assert "5 of 6 files" in message
    assert "sub/66.png, x1, x2, ..." in message
    assert "did you mean sub/6.png?" in message


def test_one_label_for_all(flat_folder: Path) -> None:
    (flat_folder / "labels.csv").write_text("0.png,cat\n1.png,cat\n")
    assert "'cat': give two classes" in complaint(flat_folder)


def test_the_same_image_under_two_labels(flat_folder: Path) -> None:
    (flat_folder / "copy.png").write_bytes((flat_folder / "0.png").read_bytes())
    with (flat_folder / "labels.csv").open("a") as file:
        file.write("copy.png,dog\n")
    assert "no labelled image of class" not in complaint(flat_folder, strict=True)
    data = folder(flat_folder, 8)
    assert labels_of(data) == {"2.png": "dog", "sub/6.png": "cat"}
    assert data.conflicts == [
        "copy.png: the same image as 0.png of class 'cat'",
        "0.png: the same image as copy.png of class 'dog'",
    ]


def test_conflicts_in_a_large_collection(tmp_path: Path) -> None:
    content = io.BytesIO()
    Image.new("RGB", (2, 2), "red").save(content, "PNG")
    for i in range(2100):  # what follows a PNG's end is not looked at, but makes it another file
        name = tmp_path / ("cat" if i % 2 else "dog") / f"{i}.png"
        name.parent.mkdir(exist_ok=True)
        name.write_bytes(content.getvalue() + str(max(i, 1)).encode().rjust(5))
    dataset = folder(tmp_path, 2)
    assert len(labels_of(dataset)) == 2098
    assert sorted(dataset.conflicts) == [
        "cat/1.png: the same image as dog/0.png of class 'dog'",
        "dog/0.png: the same image as cat/1.png of class 'cat'",
    ]


def test_the_same_image_under_one_label_or_none(flat_folder: Path) -> None:
    content = (flat_folder / "0.png").read_bytes()
    (flat_folder / "copy.png").write_bytes(content)
    (flat_folder / "unlabelled copy.png").write_bytes(content)
    with (flat_folder / "labels.csv").open("a") as file:
        file.write("copy.png,cat\n")
    assert labels_of(folder(flat_folder, 8))["copy.png"] == "cat"


def test_identical_images_in_the_test_part(sorted_folder: Path) -> None:
    content = (sorted_folder / "test/cat/b.png").read_bytes()
    (sorted_folder / "test/dog/copy.png").write_bytes(content)
    write_image(sorted_folder / "test" / "dog" / "c.png", (1, 2, 3))
    data = folder(sorted_folder, 8)
    assert data.test is not None
    assert data.test.names == ["test/dog/a.png", "test/dog/c.png"]
    conflicts = [line.split(":")[0] for line in data.conflicts]
    assert conflicts == ["test/dog/copy.png", "test/cat/b.png"]
    assert "2 images in" in complaint(sorted_folder, strict=True)


# ----------------------------------------------------------------------------- files


def test_workers_decode_the_same_images(
    sorted_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sorted_folder / "cat" / "damaged.jpg").write_bytes(b"no image")
    few = folder(sorted_folder, 8)
    monkeypatch.setattr(module, "FEW", 1)
    monkeypatch.setattr(reader, "CHUNK", 4)
    many = folder(sorted_folder, 8)
    assert many.skipped == few.skipped != []
    assert many.train.names == few.train.names
    assert torch.equal(many.train.images, few.train.images)


def test_the_folder_is_missing_or_a_file(tmp_path: Path) -> None:
    assert "does not exist" in complaint(tmp_path / "none")
    assert "is a file" in complaint(write_image(tmp_path / "x.png"))


def test_no_images(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "notes.txt").write_text("hello")
    assert "has no images" in complaint(tmp_path)


def test_a_size_must_be_given(sorted_folder: Path) -> None:
    with pytest.raises(UserError, match="give an image size"):
        folder(sorted_folder, None)


def test_other_files_are_ignored(sorted_folder: Path) -> None:
    before = folder(sorted_folder, 8)
    for name in (
        ".hidden/x.png", "cat/.x.png", "cat/._0.png", "__MACOSX/cat/0.png", "cat/Thumbs.db",
        "cat/desktop.ini", "dog/list.csv", ".DS_Store", "cat/0.png.txt", "cat/png", "cat/x.svg",
    ):  # fmt: skip
        (sorted_folder / name).parent.mkdir(parents=True, exist_ok=True)
        (sorted_folder / name).write_text("no image")
    after = folder(sorted_folder, 8)
    assert after.train.names == before.train.names
    assert after.skipped == []


def test_damaged_images_are_left_out_and_reported(sorted_folder: Path) -> None:
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
    assert data.skipped[1] == "dog/x.jpeg: not an image"
    assert data.skipped[3] == "unlabeled/gone.png: no such file or directory"
    assert len(data.train) == len(data.train.images) == len(data.train.labels) == 12
    # What is left moved up together: pixels, label and name.
    row = data.train.names.index("eel/2.png")
    assert data.train.images[row, :, 0, 0].tolist() == [10, 60, 222]
    assert data.train.labels[row] == 2


def test_a_class_with_only_damaged_images(sorted_folder: Path) -> None:
    for path in (sorted_folder / "eel").iterdir():
        path.write_bytes(b"")
    message = complaint(sorted_folder)
    assert "no labelled image of class 'eel'" in message
    assert "eel/0.png" in message


def test_only_damaged_images(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        write_image(tmp_path / name / "x.png").write_bytes(b"")
    assert "none of the 2 images" in complaint(tmp_path)


def test_links_are_followed_and_loops_end(sorted_folder: Path, tmp_path: Path) -> None:
    before = folder(sorted_folder, 8)
    write_image(tmp_path / "elsewhere" / "fox.png", (1, 2, 3))
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


def test_a_linked_image(sorted_folder: Path, tmp_path: Path) -> None:
    write_image(tmp_path / "real.png", (1, 2, 3))
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
        find_images([root])
        assert everything(root) == before


def test_the_order_is_deterministic(sorted_folder: Path) -> None:
    one, two = folder(sorted_folder, 8), folder(sorted_folder, 8)
    assert one.train.names == two.train.names
    assert torch.equal(one.train.images, two.train.images)


def test_the_progress_bar_is_shown_on_stderr_for_long_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = write_image(tmp_path / "x.bmp", size=(1, 1)).read_bytes()
    for i in range(1000):
        (tmp_path / f"{i}.bmp").write_bytes(content)
    short = tmp_path / "short"
    for i, name in enumerate(("cat", "dog")):
        write_image(short / name / "x.png", (i, i, i))
    write_image(tmp_path / "y.bmp", size=(2, 1))
    (tmp_path / "labels.csv").write_text("x.bmp,cat\ny.bmp,dog\n")
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes any stream for a terminal
    assert len(folder(tmp_path, 1, progress=False).train) == 1004
    folder(short, 1, progress=True)
    assert capsys.readouterr() == ("", "")
    folder(tmp_path, 1, progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "reading 1,004 images" in err


# ------------------------------------------------------------------------------ find_images


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_find_images(in_folder: Path) -> None:
    for name in ("b/2.png", "b/test/1.JPG", "a.png", "c.png", "b/.hidden.png", ".cache/x.png"):
        write_image(in_folder / name)
    (in_folder / "b" / "labels.csv").write_text("2.png,cat\n")
    (in_folder / "b" / "loop").symlink_to(in_folder / "b")
    given = [Path("c.png"), Path("b"), Path("a.png"), Path("b/2.png")]
    assert find_images(given) == [Path(p) for p in ("a.png", "b/2.png", "b/test/1.JPG", "c.png")]
    assert find_images([Path(".cache")]) == [Path(".cache/x.png")]


def test_a_given_file_is_used(in_folder: Path) -> None:
    (in_folder / "photo.heic").write_text("?")
    assert find_images([Path("photo.heic")]) == [Path("photo.heic")]


def test_find_images_reports_missing_paths(in_folder: Path) -> None:
    with pytest.raises(UserError, match="nowhere does not exist"):
        find_images([Path("nowhere")])
    (in_folder / "empty").mkdir()
    with pytest.raises(UserError, match=r"no images .* in empty"):
        find_images([Path("empty")])
