"""Tables from run folders: grouped by everything but the seed."""

import json
import statistics

import pytest

from comatch.errors import UserError
from comatch.report import runs


def folder(path, seed, top1, lr=0.1, **summary):
    path.mkdir()
    recipe = {"seed": seed, "lr": lr}
    session = {"git": "0123456789", "device": "cpu"}
    values = {"data": "digits", "method": "comatch", "labels": 40, "steps": 100, "seconds": 10.0}
    summary = {**values, "seed": seed, "top1": top1, **summary}
    (path / "config.json").write_text(json.dumps({"recipe": recipe}))
    (path / "summary.json").write_text(json.dumps(summary))
    (path / "environment.json").write_text(json.dumps({"sessions": [session]}))
    return path


def test_mean_deviation_and_number(tmp_path):
    paths = [folder(tmp_path / str(s), s, v) for s, v in ((2, 0.9), (0, 0.95), (1, 0.97))]
    (row,) = runs.rows(paths)
    assert row.seeds == [0, 1, 2]
    assert row.accuracy() == f"94.00 ± {100 * statistics.stdev([0.9, 0.95, 0.97]):.2f} (n=3)"
    assert runs.markdown([row]).splitlines()[2] == (
        "| digits | comatch | 40 | 100 | 94.00 ± 3.61 (n=3) | 0, 1, 2 | 10 | cpu | 0123456 |"
    )


def test_one_run_has_no_deviation(tmp_path):
    (row,) = runs.rows([folder(tmp_path / "a", 0, 0.5)])
    assert row.accuracy() == "50.00 (n=1)"


def test_other_settings_are_another_row(tmp_path):
    paths = [folder(tmp_path / "a", 0, 0.5), folder(tmp_path / "b", 1, 0.6, lr=0.2)]
    assert [row.seeds for row in runs.rows(paths)] == [[0], [1]]


def test_the_same_seed_twice_is_an_error(tmp_path):
    with pytest.raises(UserError, match="seed 0 occurs twice"):
        runs.rows([folder(tmp_path / "a", 0, 0.5), folder(tmp_path / "b", 0, 0.6)])


def test_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(UserError, match="not a run folder"):
        runs.rows([tmp_path])
