"""Errors of the command line: one line that says what is wrong and what to do, exit code 2."""

import socket

import pytest
import torch

from helpers import FAST, SMALL_FOLDER, assert_one_line_error


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
        (["digits", "--set", "batch=1000"], ["fewer than", "add images, or --set mu=1"]),
        (["digits", "--set", "mu=40", "--set", "batch=40"], ["fewer than", "--set mu=34"]),
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
    (path / "labels.csv").write_text("path,label\nlying/0.png,a\nlying/0.png,b\n")


def same_file_in_two_classes(path):
    (path / "standing" / "copy.png").write_bytes((path / "lying" / "0.png").read_bytes())


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
        (same_file_in_two_classes, ["the same image"]),
        (all_damaged, ["can be read"]),
    ],
)
def test_wrong_folders_of_images(cli, images, damage, fragments):
    damage(images)
    result = cli("train", images, *FAST, *SMALL_FOLDER, "--out", "run")
    assert_one_line_error(result, *fragments)
    assert not (images.parent / "run").exists()


def test_fewer_images_than_a_batch(cli, images):
    result = cli("train", images)
    assert_one_line_error(result, "30 unlabelled images are fewer than", "--set batch=10")


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
