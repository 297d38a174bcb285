"""Names of files and classes that are no text, or no line: every command takes them."""

import csv
import json

import pandas
import pytest

import specimens
from helpers import TINY_SHARED_WORDS, as_options

pytestmark = pytest.mark.slow

CLASSES = ["a\nb", "\udcffcat", 'c,"[d]$x_$']
WORDS = ["--steps", 2, *TINY_SHARED_WORDS, *as_options({"mu": 1, "batch": 4})]


@pytest.fixture
def odd(tmp_path):
    """A folder of images with such names."""
    number = 0
    for part in ("[odd]", "[odd]/test"):
        for name in CLASSES:
            folder = tmp_path / part / name
            folder.mkdir(parents=True)
            for i in range(4):
                (folder / f"\udc80\n{i}.png").write_bytes(specimens.plain(number))
                number += 1
    (tmp_path / "[odd]/unlabeled").mkdir()
    for i in range(6):
        (tmp_path / f"[odd]/unlabeled/{i}\udcfe.png").write_bytes(specimens.plain(number + i))
    (tmp_path / "[odd]/unlabeled/\n\udcfe.png").write_bytes(b"no image")
    return "[odd]"


def test_every_command(cli, odd, tmp_path):
    run = "run\n\udcfe"

    def works(*words):
        code, out, err = cli(*words)
        assert code == 0, err
        assert "Traceback" not in err
        out.encode()
        return out

    works("train", odd, "--out", run, *WORDS)
    for name in ("p.csv", "p.json", "p.parquet"):
        works("predict", run, odd, "--out", name, "--sheet", f"{name}.png")
    with (tmp_path / "p.csv").open(errors="surrogateescape", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(json.loads((tmp_path / "p.json").read_text())) == 30
    assert {row["label"] for row in rows} <= set(CLASSES)
    assert all((tmp_path / row["path"]).exists() for row in rows)
    assert len(pandas.read_parquet(tmp_path / "p.parquet")) == 30
    works("evaluate", run, "--out", "scores")
    works("evaluate", run, "--folds", 2, "--out", "folds")
    works("report", run)
    works("compare", odd, "--methods", "supervised", "--seeds", 0, "--out", "c\n\udcfe", *WORDS)
