"""Tables from run folders: grouped by everything but the seed."""

import io
import json
import statistics

import pytest
from rich.console import Console

from comatch.commands.report import runs, tables, tuning
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
    assert runs.markdown([row]).splitlines()[2] == (
        "| digits | comatch | 40 | 100 | 94.00 ± 3.61 (n=3) | 0, 1, 2 | 10 | cpu | 0123456 |"
    )


def test_one_run_has_no_deviation(tmp_path):
    (row,) = runs.rows([folder(tmp_path / "a", 0, 0.5)])
    assert row.accuracy() == "50.00 (n=1)"


def test_a_run_that_went_on_elsewhere_names_all_versions_and_devices(tmp_path):
    run = folder(tmp_path / "a", 0, 0.5)
    sessions = [{"git": "89abcdef01", "device": "gpu"}, {"git": "0123456789", "device": "cpu"}]
    (run / "environment.json").write_text(json.dumps({"sessions": sessions}))
    (row,) = runs.rows([run])
    assert (row.revision, row.device) == ("0123456, 89abcde", "cpu, gpu")


def test_what_lies_in_a_run_is_a_part_of_it(tmp_path):
    """The folds of a run are no runs beside it."""
    run, other = folder(tmp_path / "a", 0, 0.5), folder(tmp_path / "b", 1, 0.6)
    (run / "folds").mkdir()
    fold = folder(run / "folds" / "1-of-4", 0, 0.1)
    assert runs.find(tmp_path) == [run, other]
    assert runs.find(fold) == runs.find(run / "folds") == [fold]


def test_other_settings_are_another_row(tmp_path):
    paths = [folder(tmp_path / "a", 0, 0.5), folder(tmp_path / "b", 1, 0.6, lr=0.2)]
    assert [row.seeds for row in runs.rows(paths)] == [[0], [1]]


def test_runs_of_several_versions_share_a_row(tmp_path):
    """What came later or is gone since tells no run from another, unless it changed it."""
    changes = [{}, {"warmup": 0.0}, {"weak_gradient": True}, {"weak_gradient": False}]
    changes.append({"precision": "fp32"})
    for seed, change in enumerate(changes):
        config = folder(tmp_path / str(seed), seed, 0.5) / "config.json"
        recipe = json.loads(config.read_text())["recipe"]
        config.write_text(json.dumps({"recipe": recipe | change}))
    rows = runs.rows(sorted(tmp_path.iterdir()))
    assert [row.seeds for row in rows] == [[0, 1, 2], [3], [4]]


def test_the_recipe_is_named_where_the_same_data_has_several(tmp_path):
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
    assert runs.comma_separated(rows).splitlines()[1].startswith("digits,recipe a,comatch,40")


def test_the_same_seed_twice_is_an_error(tmp_path):
    with pytest.raises(UserError, match="seed 0 occurs twice"):
        runs.rows([folder(tmp_path / "a", 0, 0.5), folder(tmp_path / "b", 0, 0.6)])


@pytest.mark.parametrize("config", ["{}", "[]", '{"recipe": {"seed": 0}}'])
def test_a_config_that_is_none(tmp_path, config):
    path = folder(tmp_path / "a", 0, 0.5)
    (path / "config.json").write_text(config)
    for read in (runs.rows, tuning.table, curves.read):
        with pytest.raises(UserError, match="not the configuration of a run"):
            read([path])


def test_a_folder_that_is_no_run(tmp_path):
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
def test_many_seeds_are_told_in_few_words(seeds, text):
    assert runs.in_order(seeds) == text


# ----------------------------------------------------------------------------------- tuning


def tried(path, seed, validation, right=0.9, steps=100, **settings):
    """A run folder that held images back; its pseudo-labels are better in the last steps."""
    folder(path, seed, 0.123, validation_top1=validation, steps=steps)
    method = {"name": "comatch", "alpha": settings.pop("alpha", 0.9)}
    recipe = {"seed": seed, "lr": 0.1, "steps": steps, "eval_every": seed, "method": method}
    (path / "config.json").write_text(json.dumps({"recipe": recipe | settings}))
    lines = [
        {"step": step, "kind": "train", "confident": 0.5, "pseudo_accuracy": value}
        for step, value in ((steps // 2, 0.1), (steps, right))
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_settings_that_were_tried(tmp_path):
    paths = [
        tried(tmp_path / "a", 100, 0.8),
        tried(tmp_path / "b", 100, 0.7, lr=0.2, alpha=0.8, weak_gradient=False),
        tried(tmp_path / "c", 101, 0.9, 0.7, weak_gradient=True, muon_lr=0.02),  # changes nothing
        tried(tmp_path / "d", 100, 0.6, steps=50),
    ]
    head, first, second, short = tuning.table(paths)
    assert head == list(tuning.HEAD)
    assert first[:3] == ["the first", "100", "85.00 ± 7.07"]
    assert first[3:] == ["50.00 ± 0.00", "80.00 ± 14.14", "100, 101", "0123456"]
    assert second[:3] == ["lr=0.2, alpha=0.8, weak_gradient=False", "100", "70.00"]
    assert short[:3] == ["the first", "50", "60.00"]


def test_what_was_tried_shows_no_test_accuracy(tmp_path, cli):
    path = tried(tmp_path / "a", 100, 0.8)
    for words in ([], ["--markdown"]):
        code, out, err = cli("report", "--tuning", path, *words)
        assert code == 0, err
        assert "80.00" in out
        assert "12.3" not in out


def test_settings_and_figures_stay_whole_in_a_narrow_terminal():
    figures = ["20,000", "71.75 ± 13.62", "77.55 ± 10.79", "82.66 ± 14.69"]
    seeds = ", ".join(map(str, range(100, 130, 2)))
    line = ["labelled_view=strong, hard_labels=False", *figures, seeds, "0123456"]
    console = Console(file=io.StringIO(), width=80)
    console.print(tables.tuning([list(tuning.HEAD), line]))
    shown = console.file.getvalue()
    for whole in ("labelled_view=strong", "hard_labels=False", *figures, "128"):
        assert whole in shown


def test_tuning_asks_for_validation_images(tmp_path):
    path = tried(tmp_path / "a", 100, 0.8)
    folder(tmp_path / "b", 0, 0.9)
    (path / "summary.json").write_text((tmp_path / "b" / "summary.json").read_text())
    with pytest.raises(UserError, match="--set validation=NUMBER"):
        tuning.table([path])


def test_settings_are_compared_as_they_were_at_a_step(tmp_path, cli):
    """Finished or not, and whatever length they were made for."""
    validation = {"a": {50: 0.6, 100: 0.8}, "b": {50: 0.7}, "c": {40: 0.9}}
    for name, evaluations in validation.items():
        path = tried(tmp_path / name, 100, 0.8, steps=200 if name == "b" else 100)
        with (path / "metrics.jsonl").open("a") as file:
            for step, value in evaluations.items():
                line = {"step": step, "kind": "eval", "top1": 0.123, "validation_top1": value}
                file.write(json.dumps(line) + "\n")
    (tmp_path / "b" / "summary.json").unlink()
    (tried(tmp_path / "d", 100, 0.8) / "metrics.jsonl").unlink()  # it has only begun
    code, out, err = cli("report", "--tuning", "--at", 50, "--markdown", tmp_path)
    assert code == 0, err
    _, _, first, longer = out.splitlines()
    assert first == "| the first | 50 | 60.00 | 50.00 | 10.00 | 100 | 0123456 |"
    assert longer == "| steps=200 | 50 | 70.00 |  |  | 100 | 0123456 |"
    assert "2 of 4 runs left out, no validation at 50" in err

    code, out, err = cli("report", "--tuning", "--at", 50, tmp_path)
    assert code == 0, err
    assert "steps=200" in out

    code, _, err = cli("report", "--tuning", "--at", 60, tmp_path / "a")
    assert code == 2
    assert "no validation at step 60; it was at 50, 100" in err
    code, _, err = cli("report", "--tuning", "--at", 60, tmp_path / "d")
    assert code == 2
    assert "no validation at step 60; none so far" in err
    code, _, err = cli("report", "--at", 60, tmp_path / "a")
    assert code == 2
    assert "add --tuning" in err


def test_a_folder_of_runs_is_reported_without_those_that_still_train(tmp_path, cli):
    for seed in range(3):
        folder(tmp_path / str(seed), seed, 0.5)
    (tmp_path / "2" / "summary.json").unlink()
    code, out, err = cli("report", "--markdown", tmp_path, tmp_path / "0")
    assert code == 0, err
    assert "50.00 ± 0.00 (n=2)" in out
    assert "1 of 3 runs left out, not finished" in " ".join(err.split())


def test_a_run_without_a_test_part_is_left_out(tmp_path, cli):
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
    ("name", "said"),
    [
        ("half", "has not finished: train with --resume"),
        ("file", "is not a run folder"),
        ("empty", "is not a run folder, and there is none below it"),
        ("nowhere", "there is no folder"),
    ],
)
def test_what_cannot_be_reported(tmp_path, cli, name, said):
    (folder(tmp_path / "half", 0, 0.5) / "summary.json").unlink()
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    code, _, err = cli("report", tmp_path / name)
    assert code == 2
    assert said in " ".join(err.split())


def test_a_bar_in_a_name_does_not_end_a_cell_of_markdown():
    assert runs.ruled([["name", "%"], ["a|b", "1"]]).splitlines()[2] == r"| a\|b | 1 |"
