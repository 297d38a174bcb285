"""`comatch suggest`: the table, the sheet, and what it refuses."""

import csv

import numpy as np
import pytest
import timm
import torch
from PIL import Image

import comatch
from comatch.commands.suggest import choose
from comatch.commands.suggest.table import Mark
from helpers import assert_one_line_error, make_images

NET = "mobilenetv3_small_050"


@pytest.fixture
def weights(tmp_path):
    torch.manual_seed(0)
    torch.save(timm.create_model(NET).state_dict(), tmp_path / "weights.pth")
    return ["--encoder", NET, "--init", tmp_path / "weights.pth", "--device", "cpu"]


@pytest.fixture
def folder(tmp_path):
    return make_images(tmp_path / "images", per_class=6, unlabelled=20, test=2)


def rows(path):
    with path.open(newline="") as file:
        return [tuple(row) for row in csv.reader(file)]


@pytest.mark.slow
def test_a_table_and_a_sheet(cli, folder, weights, tmp_path):
    (folder / "damaged.jpg").write_text("no image")
    code, out, err = cli("suggest", folder, "--number", 8, *weights)
    assert code == 0, err
    head, *found = rows(folder / "labels.csv")
    assert head == ("path", "label")
    assert len({name for name, label in found if not label}) == 8
    assert all((folder / name).exists() and not name.startswith("test/") for name, _ in found)
    with Image.open(tmp_path / "suggestions.png") as sheet:
        assert min(sheet.size) > 100
    assert "groups" in out
    assert "damaged.jpg" in err

    # Some labels later: they are kept, and the rest is suggested anew.
    labelled = [(name, ("standing", "lying")[i % 2]) for i, (name, _) in enumerate(found[:6])]
    (folder / "labels.csv").write_text("".join(f"{a},{b}\n" for a, b in [head, *labelled]))
    assert_one_line_error(cli("suggest", folder, *weights), "labels.csv", "--overwrite")
    code, out, err = cli("suggest", folder, "--number", 5, "--overwrite", *weights)
    assert code == 0, err
    again = rows(folder / "labels.csv")[1:]
    assert again[:6] == labelled
    assert len({name for name, label in again if not label}) == 5
    assert not {name for name, _ in labelled} & {name for name, label in again if not label}
    assert "2 classes" in out


@pytest.mark.slow
def test_for_a_run(folder, weights, tmp_path):
    """Its labels are known, and its heads predict where its encoder is frozen."""
    _, name, _, path, *_ = weights
    run = comatch.train(
        folder,
        encoder=name,
        init=path,
        steps=2,
        out=tmp_path / "run",
        progress=False,
        settings={"views": 2, "batch": 4, "mu": 1},
    )
    found = comatch.suggest(run, number=3, out=tmp_path / "next.csv", progress=False)
    assert len(found.names) == 3
    assert not set(found.names) & set(found.labelled)
    assert set(found.labelled.values()) == {"standing", "lying"}
    assert found.classes in (1, 2)
    assert len(rows(tmp_path / "next.csv")) == 1 + len(found.labelled) + 3


def test_skipped_pictures_are_not_suggested():
    points = np.random.default_rng(0).normal(size=(30, 8)).astype(np.float16)
    names = [f"{i}.jpg" for i in range(30)]
    marks = {name: Mark("", "skipped") for name in names[:20]}
    chosen = choose.choose(names, points, marks, 100)
    assert sorted(chosen.rows) == list(range(20, 30))


def test_labels_of_all_classes_count_even_if_files_are_gone():
    points = np.random.default_rng(0).normal(size=(30, 8)).astype(np.float16)
    names = [f"{i}.jpg" for i in range(30)]
    marks = {"0.jpg": Mark("cat"), "gone.jpg": Mark("dog")}
    assert choose.choose(names, points, marks, 3).classes is None  # one class is left


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["nowhere"], "nowhere"),
        (["images", "--number", "0"], "--number"),
        (["images/unlabeled/0.jpg"], "folder"),
        (["images", "--sheet", "images/sheet.png"], "sheet.png"),
        (["images", "--labels-file", "nowhere.csv"], "nowhere.csv"),
    ],
)
def test_errors(cli, folder, words, named):
    code, _, err = cli("suggest", *words)
    assert code == 2
    assert named in err
    assert not (folder / "labels.csv").exists()


def test_label_says_what_is_not_installed(cli, folder, monkeypatch):
    monkeypatch.setattr("comatch.commands.label.NEEDED", ("starlette", "not_there"))
    assert_one_line_error(cli("label", "images"), "not_there", "pip install")


def test_label_refuses_what_is_no_folder_of_images(cli, tmp_path):
    (tmp_path / "empty").mkdir()
    assert_one_line_error(cli("label", "nowhere"), "nowhere")
    assert_one_line_error(cli("label", "empty"), "empty", "images")
