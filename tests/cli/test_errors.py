"""Errors of the command line: one line that says what is wrong and what to do, exit code 2."""

import shutil
import socket

import pytest
import torch

from helpers import FAST, SMALL_FOLDER, assert_one_line_error, read_json


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        (["nowhere"], ["neither a folder nor a known source", "digits"]),
        (["digts"], ["did you mean digits"]),
        (["digits", "--method", "comach"], ["unknown method", "did you mean 'comatch'"]),
        (["digits", "--method", "mine.py"], ["mine.py"]),
        (["digits", "--recipe", "cifar"], ["unknown recipe", "did you mean 'cifar10'"]),
        (["digits", "--set", "alhpa=1"], ["unknown setting", "did you mean 'alpha'"]),
        (["digits", "--set", "alpha"], ["key=value"]),
        (["digits", "--set", "net=resnet81"], ["unknown net", "resnet"]),
        (["digits", "--labels", "41"], ["41 labels", "use --labels 40 or 50"]),
        (["digits", "--labels", "5"], ["use --labels 10"]),
        (["digits", "--labels", "5000"], ["labelled images, not 500"]),
        (["digits", "--labels", "0"], ["labels=0"]),
        (["digits", "--labels", "100%"], ["labels=1.0", "a share as in 1%"]),
        (["digits", "--labels", "few"], ["--labels few", "a share as in 1%"]),
        (["digits", "--labels", "99%"], ["labelled images, not 142"]),
        (["digits", "--set", "stream=yes"], ["digits is read whole"]),
        (["digits", "--steps", "0"], ["steps=0"]),
        (["digits", "--device", "tpu"], ["unknown device"]),
        (["--recipe", "folder"], ["needs data"]),
        (["digits", "--labels-file", "missing.csv"], ["missing.csv"]),
    ],
)
def test_wrong_names_and_values(cli, tmp_path, words, fragments):
    assert_one_line_error(cli("train", *words), *fragments)
    assert not (tmp_path / "runs").exists(), "nothing is written before everything is checked"


def test_a_download_without_network(cli, tmp_path, monkeypatch):
    def unreachable(*_, **__):
        raise OSError(101, "Network is unreachable")

    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, unreachable)
    result = cli("train", "cifar10", "--data-dir", "empty")
    assert_one_line_error(result, "cifar-10-python.tar.gz")
    assert not (tmp_path / "runs").exists()


def test_no_gpu(cli, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert_one_line_error(cli("train", "digits", "--device", "cuda"), "--device cpu")


def no_images(path):
    for file in path.rglob("*.*"):
        file.unlink()


def one_class(path):
    for file in [*(path / "lying").iterdir()]:
        file.unlink()
    (path / "lying").rmdir()


def class_without_images(path):
    (path / "sitting").mkdir()


def label_of_a_missing_image(path):
    (path / "labels.csv").write_text("path,label\nlying/0.png,lying\nstanding/9999.png,standing\n")


def two_labels(path):
    shutil.rmtree(path / "test")
    (path / "labels.csv").write_text("path,label\nlying/0.png,a\nlying/0.png,b\n")


def all_damaged(path):
    for file in path.rglob("*.*"):
        file.write_bytes(f"not an image: {file}".encode())


@pytest.mark.parametrize(
    ("damage", "fragments"),
    [
        (no_images, ["has no images"]),
        (one_class, ["two classes or more"]),
        (class_without_images, ["class 'sitting' has no image"]),
        (label_of_a_missing_image, ["standing/9999.png"]),
        (two_labels, ["two labels", "'a' and 'b'"]),
        (all_damaged, ["can be read"]),
    ],
)
def test_wrong_folders_of_images(cli, images, damage, fragments):
    damage(images)
    result = cli("train", images, *FAST, *SMALL_FOLDER, "--out", "run")
    assert_one_line_error(result, *fragments)
    assert not (images.parent / "run").exists()


def test_images_with_two_labels(cli, images):
    (images / "standing" / "copy.png").write_bytes((images / "lying" / "0.png").read_bytes())
    words = ["train", images, *FAST, *SMALL_FOLDER, "--out", "run"]
    assert_one_line_error(cli(*words, "--strict"), "2 images in", "two labels", "copy.png")
    assert not (images.parent / "run").exists()
    code, _, err = cli(*words)
    assert code == 0, err
    assert "2 images have two labels and are used without" in err
    split = read_json(images.parent / "run/split.json")
    assert {line.split(":")[0] for line in split["two_labels"]} == {
        "standing/copy.png",
        "lying/0.png",
    }
    assert len(split["labelled"]) == 23


def test_fewer_images_than_a_batch(cli, images):
    code, _, err = cli("train", images, *FAST, "--set", "mu=9", "--out", "run")
    assert code == 0, err
    assert "a step takes 90 unlabelled images (batch 10 x mu 9) and there are 30" in err


def test_an_out_folder_that_cannot_be_made(cli, tmp_path):
    (tmp_path / "file").write_text("")
    words = ["train", "digits", *FAST, "--labels", 20]
    for folder in ("file/run", "file"):
        assert_one_line_error(cli(*words, "--out", folder), folder)


def test_a_folder_with_other_files_is_left_alone(cli, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    result = cli("train", "digits", *FAST, "--out", "mine")
    assert_one_line_error(result, "not empty", "another --out")
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.txt"]
