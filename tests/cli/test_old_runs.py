"""Runs of older versions: reported, evaluated and used to predict, but not continued.

`config-0.1.0.json` is that of a run of version 0.1.0: its settings are not in groups, and one of
them was removed since.
"""

import json
import shutil
from pathlib import Path

import pytest

from comatch import files
from comatch.commands.report.runs import Run
from comatch.training.run_folder import RunFolder
from helpers import assert_one_line_error, read_json

OLD_CONFIG = Path(__file__).with_name("config-0.1.0.json")
RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture
def old_run(run):
    """A run with the settings of an old version."""
    recipe, present = read_json(OLD_CONFIG)["recipe"], files.read_json(run / "config.json")
    dataset = present["recipe"]["dataset"]
    recipe |= {key: dataset[key] for key in ("data", "labels", "image_size")}
    (run / "config.json").write_text(json.dumps({**present, "recipe": recipe}))
    environment = read_json(run / "environment.json")
    environment["sessions"][0]["packages"]["comatch"] = "0.1.0"
    (run / "environment.json").write_text(json.dumps(environment))
    return run


def test_an_old_run_is_evaluated_and_predicts(cli, old_run, images):
    code, out, err = cli("evaluate", old_run)
    assert code == 0, err
    assert f"{read_json(old_run / 'summary.json')['top1']:.2%}" in out
    code, _, err = cli("predict", old_run, images / "test")
    assert code == 0, err


def test_an_old_run_is_reported_beside_a_new_one(cli, old_run, trained):
    code, out, err = cli("report", "--markdown", old_run, trained / "run")
    assert code == 0, err
    head, _, *rows = out.splitlines()
    assert head.startswith("| data | recipe | method |")
    assert [row.split(" | ")[:3] for row in rows] == [
        ["| images", "digits", "comatch"],
        ["| images", "folder", "comatch"],
    ]


def test_an_old_run_cannot_be_continued(cli, old_run):
    (old_run / "summary.json").unlink()
    result = cli("train", "--out", old_run, "--resume")
    fragment = "made by version 0.1.0, which this version cannot continue"
    assert_one_line_error(result, fragment, "weak_gradient", "another --out")


def test_settings_of_recorded_results_are_read():
    """Written by several versions, and by this one in groups."""
    configs = [path for path in RESULTS.rglob("config.json") if '"coco":' not in path.read_text()]
    assert configs
    for path in configs:
        reading = RunFolder(path.parent).reading()
        assert Run(path.parent).recipe["data"] == reading.dataset.data


def test_groups_and_flat_settings_are_read_alike(run, tmp_path):
    flat = shutil.copytree(run, tmp_path / "flat")
    (flat / "config.json").write_text(json.dumps({"recipe": Run(run).recipe, "data_dir": "data"}))
    assert Run(flat).recipe == Run(run).recipe
    assert RunFolder(flat).recipe() == RunFolder(run).recipe()
