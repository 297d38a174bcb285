"""Tables of run folders: one row for runs that differ only in their seed."""

import json
import statistics

import pytest

from comatch import tables
from comatch.commands.report import runs
from comatch.commands.reproduce import curves
from comatch.errors import UserError


def folder(path, seed, top1, lr=0.1, **summary):
    path.mkdir()
    recipe = {"seed": seed, "lr": lr, "method": {"name": "comatch"}}
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
    assert runs.as_markdown([row]).splitlines()[2] == (
        "| digits | comatch | 40 | 100 | 94.00 ± 3.61 (n=3) | 0, 1, 2 | 10 | cpu | 0123456 |"
    )


def test_one_run_has_no_deviation(tmp_path):
    (row,) = runs.rows([folder(tmp_path / "a", 0, 0.5)])
    assert row.accuracy() == "50.00 (n=1)"


def test_a_run_resumed_elsewhere_names_all_commits_and_devices(tmp_path):
    run = folder(tmp_path / "a", 0, 0.5)
    sessions = [{"git": "89abcdef01", "device": "gpu"}, {"git": "0123456789", "device": "cpu"}]
    (run / "environment.json").write_text(json.dumps({"sessions": sessions}))
    (row,) = runs.rows([run])
    assert (row.revision, row.device) == ("0123456, 89abcde", "cpu, gpu")


def test_the_folds_in_a_run_folder_are_not_found_as_runs(tmp_path):
    run, other = folder(tmp_path / "a", 0, 0.5), folder(tmp_path / "b", 1, 0.6)
    (run / "folds").mkdir()
    fold = folder(run / "folds" / "1-of-4", 0, 0.1)
    assert runs.find(tmp_path) == [run, other]
    assert runs.find(fold) == runs.find(run / "folds") == [fold]


def test_other_settings_make_another_row(tmp_path):
    paths = [folder(tmp_path / "a", 0, 0.5), folder(tmp_path / "b", 1, 0.6, lr=0.2)]
    assert [row.seeds for row in runs.rows(paths)] == [[0], [1]]


def test_runs_of_several_versions_share_a_row(tmp_path):
    """A setting that a run lacks counts as its default; a removed setting makes another row."""
    changes = [{}, {"decay_norms": False}, {"precision": "fp32"}, {"weak_gradient": False}]
    changes.append({"decay_norms": True})
    for seed, change in enumerate(changes):
        config = folder(tmp_path / str(seed), seed, 0.5) / "config.json"
        recipe = json.loads(config.read_text())["recipe"]
        config.write_text(json.dumps({"recipe": recipe | change}))
    rows = runs.rows(sorted(tmp_path.iterdir()))
    assert [row.seeds for row in rows] == [[0, 1], [2], [3], [4]]


def test_the_recipe_is_shown_if_the_same_data_has_several(tmp_path):
    paths = [folder(tmp_path / name, 0, 0.5, lr) for name, lr in (("a", 0.1), ("b", 0.2))]
    head, *_ = runs.table(runs.rows(paths[:1]))
    assert "recipe" not in head
    for path in paths:
        config = path / "config.json"
        recipe = json.loads(config.read_text())["recipe"]
        config.write_text(json.dumps({"recipe": recipe | {"name": f"recipe {path.name}"}}))
    rows = runs.rows(paths)
    head, *lines = runs.table(rows)
    assert [line[head.index("recipe")] for line in lines] == ["recipe a", "recipe b"]
    assert runs.as_csv(rows).splitlines()[1].startswith("digits,recipe a,comatch,40")


def test_the_same_seed_twice_makes_two_rows(tmp_path):
    paths = [folder(tmp_path / name, seed, 0.5) for name, seed in (("a", 0), ("b", 0), ("c", 1))]
    rows = runs.rows(paths)
    assert [(row.seeds, row.differs) for row in rows] == [
        ([seed], str(path)) for path, seed in zip(paths, (0, 0, 1), strict=True)
    ]
    environment = paths[0] / "environment.json"
    environment.write_text(environment.read_text().replace("0123456789", "99999999"))
    rows = runs.rows(paths)
    assert [(row.seeds, row.differs) for row in rows] == [([0], "9999999"), ([0, 1], "0123456")]


def test_settings_in_which_rows_differ_are_named(tmp_path):
    paths = [folder(tmp_path / str(lr), 0, 0.5, lr) for lr in (0.1, 0.2)]
    assert [row.differs for row in runs.rows(paths)] == ["lr=0.1", "lr=0.2"]
    head, *_ = runs.table(runs.rows(paths))
    assert "differs in" in head
    (row,) = runs.rows(paths[:1])
    assert row.differs == ""
    assert "differs in" not in runs.table([row])[0]


@pytest.mark.parametrize("config", ["{}", "[]", '{"recipe": {"seed": 0}}'])
def test_a_config_without_settings_is_an_error(tmp_path, config):
    path = folder(tmp_path / "a", 0, 0.5)
    (path / "config.json").write_text(config)
    for read in (runs.rows, curves.read):
        with pytest.raises(UserError, match=r"not the configuration of a run|no JSON object"):
            read([path])


def test_a_folder_that_is_no_run_is_an_error(tmp_path):
    with pytest.raises(UserError, match="not a run folder"):
        runs.rows([tmp_path])


@pytest.mark.parametrize(
    ("seeds", "text"),
    [
        ([0, 1, 2], "0, 1, 2"),
        ([0, 1, 2, 3], "0 to 3"),
        ([7, 100, 101, 102, 103, 104, 110], "7, 100 to 104, 110"),
        ([], ""),
    ],
)
def test_consecutive_seeds_are_shortened(seeds, text):
    assert tables.seed_list(seeds) == text


def test_unfinished_runs_are_left_out(tmp_path, cli):
    for seed in range(3):
        folder(tmp_path / str(seed), seed, 0.5)
    (tmp_path / "2" / "summary.json").unlink()
    code, out, err = cli("report", "--markdown", tmp_path, tmp_path / "0")
    assert code == 0, err
    assert "50.00 ± 0.00 (n=2)" in out
    assert "1 of 3 runs left out, not finished" in " ".join(err.split())


def test_runs_without_a_test_part_are_left_out(tmp_path, cli):
    for seed in range(3):
        folder(tmp_path / str(seed), seed, 0.5)
    summary = tmp_path / "2" / "summary.json"
    summary.write_text(summary.read_text().replace("top1", "validation_top1"))
    code, out, err = cli("report", "--markdown", tmp_path)
    assert code == 0, err
    assert "50.00 ± 0.00 (n=2)" in out
    assert "1 of 3 runs left out, not tested" in " ".join(err.split())
    code, _, err = cli("report", tmp_path / "2")
    assert code == 2
    assert "was not tested: its data has no test part" in " ".join(err.split())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("half", "has not finished: train with --resume"),
        ("file", "is not a run folder"),
        ("empty", "is not a run folder, and has none below it"),
        ("nowhere", "there is no folder"),
    ],
)
def test_paths_that_cannot_be_reported(tmp_path, cli, name, message):
    (folder(tmp_path / "half", 0, 0.5) / "summary.json").unlink()
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    code, _, err = cli("report", tmp_path / name)
    assert code == 2
    assert message in " ".join(err.split())


def test_a_bar_in_a_markdown_cell_is_escaped():
    assert tables.to_markdown([["name", "%"], ["a|b", "1"]]).splitlines()[2] == r"| a\|b | 1 |"
