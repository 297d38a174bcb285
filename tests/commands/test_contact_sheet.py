"""Which images of a class the sheet shows, and how."""

import pytest
from PIL import Image

from comatch.commands import contact_sheet as sheet
from comatch.commands.contact_sheet import EACH, Found
from helpers import write_image


def found(tmp_path, label, count, start=0.5):
    """Images of a class, each with more confidence than the one before."""
    paths = [write_image(tmp_path / label / f"{i}.png") for i in range(count)]
    return [Found(path, label, start + i / 100) for i, path in enumerate(paths)]


def shown(figure):
    """The number of images on a sheet, and its texts."""
    (axes,) = figure.axes
    return len(axes.images), [text.get_text() for text in axes.texts]


def test_the_most_and_the_least_confident_of_each_class_each_once(tmp_path):
    many, few = found(tmp_path, "many", 3 * EACH), found(tmp_path, "few", EACH + 1)
    first, second = sheet.lines([*few, *many])
    assert (first.label, first.images) == ("many", 3 * EACH)
    assert first.most == many[::-1][:EACH]
    assert first.least == many[::-1][-EACH:]
    assert (second.label, second.images) == ("few", EACH + 1)
    assert second.most + second.least == few[::-1]


def test_they_are_drawn_with_their_probability(tmp_path):
    count, words = shown(sheet.draw(found(tmp_path, "a cat", 3, 0.9)))
    assert count == 3
    heads = {"most confident", "least confident"}
    assert heads | {"a cat", "3 images", "92.0%", "91.0%", "90.0%"} == set(words)


def test_of_many_classes_the_largest_are_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(sheet, "CLASSES", 2)
    every = [one for n in range(1, 6) for one in found(tmp_path, f"class {n}", n)]
    count, words = shown(sheet.draw(every))
    assert count == 5 + 4
    assert "and 3 more classes" in words
    assert words.index("5 images") == words.index("class 5") + 1
    assert "class 3" not in words


@pytest.mark.filterwarnings("ignore:Glyph")  # a box is drawn for what the font lacks
@pytest.mark.parametrize("label", ["$5 and $10", "a_very_long_name" * 8, "x y " * 40, "日本"])
def test_any_name_can_be_drawn(tmp_path, label):
    figure = sheet.draw([Found(write_image(tmp_path / "a.png"), label, 0.5)])
    words = shown(figure)[1]
    name = words[words.index("1 image") - 1]
    assert label.startswith(name.splitlines()[0][:10])  # of a long one, the beginning
    assert max(map(len, name.splitlines())) <= 18
    figure.savefig(tmp_path / "sheet.png", dpi=20)
    with Image.open(tmp_path / "sheet.png") as image:
        image.load()


def test_a_file_that_no_longer_exists_leaves_a_gap(tmp_path):
    one, other = found(tmp_path, "cat", 2)
    other.path.unlink()
    count, words = shown(sheet.draw([one, other]))
    assert count == 1
    assert "missing" in words


@pytest.mark.parametrize(
    ("given", "written", "kind"),
    [
        ("sheet.png", "sheet.png", "PNG"),
        ("sheet", "sheet.png", "PNG"),
        ("my.sheet", "my.sheet.png", "PNG"),
        ("sheet.JPG", "sheet.jpg", "JPEG"),
    ],
)
def test_the_name_decides_the_format(tmp_path, given, written, kind):
    figure = sheet.draw(found(tmp_path, "cat", 1))
    assert sheet.save(figure, tmp_path / given) == tmp_path / written
    with Image.open(tmp_path / written) as image:
        assert image.format == kind
