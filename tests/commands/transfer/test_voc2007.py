"""VOC 2007 as published, with five images."""

import tarfile

import pytest
import torch

from comatch.commands.transfer import voc2007 as voc
from comatch.errors import UserError
from helpers import write_image

LISTS = {
    "trainval": {"cat": {"000001": 1, "000002": -1, "000003": 0}, "dog": {}},
    "test": {"cat": {"000004": -1, "000005": 1}, "dog": {}},
}
LISTS["trainval"]["dog"] = {"000003": 1, "000001": 1, "000002": -1}
LISTS["test"]["dog"] = {"000004": 1, "000005": -1}


def write_part(home, part):
    (home / voc.LISTS).mkdir(parents=True, exist_ok=True)
    for class_name, column in LISTS[part].items():
        lines = [f"{name} {target:2d}\n" for name, target in column.items()]
        (home / voc.LISTS / f"{class_name}_{part}.txt").write_text("".join(lines))
        for name in column:
            write_image(home / "JPEGImages" / f"{name}.jpg")
    (home / voc.LISTS / f"{part}.txt").write_text("000001\n")  # not a class


def check_parts(found):
    assert found.classes == ["cat", "dog"]
    assert found.train.names == [f"JPEGImages/00000{i}.jpg" for i in (1, 2, 3)]
    assert found.train_y.tolist() == [[1, 1], [-1, -1], [0, 1]]
    assert found.test.names == [f"JPEGImages/00000{i}.jpg" for i in (4, 5)]
    assert found.test_y.tolist() == [[-1, 1], [1, -1]]
    for part in (found.train, found.test):
        assert all((part.root / name).is_file() for name in part.names)
        assert torch.equal(part.labels, torch.full((len(part),), -1))


@pytest.mark.parametrize("below", ["", "VOC2007", "VOCdevkit/VOC2007"])
def test_an_unpacked_folder_is_found(tmp_path, below):
    for part in LISTS:
        write_part(tmp_path / below, part)
    check_parts(voc.voc2007(tmp_path))


def test_both_archives_are_unpacked(tmp_path):
    """Both contain VOCdevkit/VOC2007: neither may hide the other."""
    for part, (name, _) in voc.ARCHIVES.items():
        write_part(tmp_path / part / voc.INSIDE, part)
        with tarfile.open(tmp_path / name, "w") as tar:
            tar.add(tmp_path / part / "VOCdevkit", "VOCdevkit")
    check_parts(voc.voc2007(tmp_path))
    check_parts(voc.voc2007(tmp_path))  # already unpacked
    assert all((tmp_path / name).is_file() for name, _ in voc.ARCHIVES.values())


def test_missing_data_is_downloaded(tmp_path, monkeypatch):
    asked = []

    def fetch(url, path, md5, progress):
        asked.append((url, md5))
        raise UserError("no network")

    monkeypatch.setattr(voc, "fetch", fetch)
    with pytest.raises(UserError, match="no network"):
        voc.voc2007(tmp_path)
    name, md5 = voc.ARCHIVES["trainval"]
    assert asked == [(f"{voc.HOST}/{name}", md5)]


def test_a_list_of_other_images_is_an_error(tmp_path):
    for part in LISTS:
        write_part(tmp_path, part)
    (tmp_path / voc.LISTS / "dog_test.txt").write_text("000004 1\n")
    with pytest.raises(UserError, match=r"dog_test.*lists other images"):
        voc.voc2007(tmp_path)


@pytest.mark.parametrize("text", ["000004 1 1\n", "000004 yes\n", "000004 7\n"])
def test_a_damaged_list_is_an_error(tmp_path, text):
    for part in LISTS:
        write_part(tmp_path, part)
    (tmp_path / voc.LISTS / "cat_test.txt").write_text(text)
    with pytest.raises(UserError, match=r"cat_test.txt is missing or damaged"):
        voc.voc2007(tmp_path)
