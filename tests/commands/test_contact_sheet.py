"""Which images of a class are shown, and that they are."""

import pytest
from PIL import Image

from comatch.commands import contact_sheet as sheet
from comatch.commands.contact_sheet import EACH, Found
from helpers import write_image


def found(tmp_path, label, count, start=0.5):
    """Images of a class, surer and surer."""
    paths = [write_image(tmp_path / label / f"{i}.png") for i in range(count)]
    return [Found(path, label, start + i / 100) for i, path in enumerate(paths)]


def shown(figure):
    """How many images are on a sheet, and its words."""
    (axes,) = figure.axes
    return len(axes.images), [text.get_text() for text in axes.texts]


def test_the_surest_and_the_least_sure_of_each_class_each_once(tmp_path):
    many, few = found(tmp_path, "many", 3 * EACH), found(tmp_path, "few", EACH + 1)
    first, second = sheet.lines([*few, *many])
    assert (first.label, first.images) == ("many", 3 * EACH)
    assert first.surest == many[::-1][:EACH]
    assert first.least == many[::-1][-EACH:]
    assert (second.label, second.images) == ("few", EACH + 1)
    assert second.surest + second.least == few[::-1]


def test_they_are_drawn_with_their_probability(tmp_path):
    count, words = shown(sheet.draw(found(tmp_path, "a cat", 3, 0.9)))
    assert count == 3
    assert {"surest", "least sure", "a cat\n3", "92.0%", "91.0%", "90.0%"} == set(words)


def test_many_classes_are_told_not_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(sheet, "CLASSES", 2)
    every = [one for n in range(1, 6) for one in found(tmp_path, f"class {n}", n)]
    count, words = shown(sheet.draw(every))
    assert count == 5 + 4
    assert "and 3 more classes" in words
    assert "class 5\n5" in words
    assert not any(word.startswith("class 3") for word in words)


@pytest.mark.filterwarnings("ignore:Glyph")  # which the font lacks: a box is drawn
@pytest.mark.parametrize("label", ["$5 and $10", "a_very_long_name" * 8, "x y " * 40, "日本"])
def test_any_name_can_be_drawn(tmp_path, label):
    figure = sheet.draw([Found(write_image(tmp_path / "a.png"), label, 0.5)])
    (said,) = [word for word in shown(figure)[1] if word.endswith("\n1")]
    assert label.startswith(said.splitlines()[0][:10])  # of a long one, the beginning
    assert max(map(len, said.splitlines())) <= 18
    figure.savefig(tmp_path / "sheet.png", dpi=20)
    with Image.open(tmp_path / "sheet.png") as image:
        image.load()


def test_a_image_that_is_gone_since_leaves_its_place_empty(tmp_path):
    one, other = found(tmp_path, "cat", 2)
    other.path.unlink()
    count, words = shown(sheet.draw([one, other]))
    assert count == 1
    assert "not there" in words
