"""Tables of tuning runs: a row a run in a CSV file, and a summary over the seeds."""

import csv
import io
import json

import pytest
from rich.console import Console

from comatch.commands.report import tables, tuning
from comatch.errors import UserError


def tuned(path, seed, validation, right=0.9, steps=100, evaluated=(), **settings):
    """A run folder with validation images; its pseudo-labels are better in the last steps."""
    path.mkdir(parents=True)
    method = {"name": "comatch", "alpha": settings.pop("alpha", 0.9)}
    recipe = {"name": "", "seed": seed, "data": "digits", "labels": 40, "steps": steps}
    recipe |= {"eval_every": seed, "method": method} | settings
    (path / "config.json").write_text(json.dumps({"recipe": recipe}))
    session = {"git": "0123456789", "device": "cpu"}
    (path / "environment.json").write_text(json.dumps({"sessions": [session]}))
    lines = [
        {"step": step, "kind": "train", "confident": 0.5, "pseudo_accuracy": value}
        for step, value in ((steps // 2, 0.1), (steps, right))
    ]
    for step, value in {**dict(evaluated), steps: validation}.items():
        line = {"step": step, "kind": "eval", "top1": 0.123, "validation_top1": value}
        lines += [line] if value is not None else []
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def read(file):
    with file.open(newline="") as text:
        return list(csv.DictReader(text))


def test_a_row_has_what_was_changed_and_measured(tmp_path, cli):
    tuned(tmp_path / "runs" / "a", 100, 0.8)
    tuned(tmp_path / "runs" / "b", 101, 0.75, lr=0.2, alpha=0.8, weak_gradient=False)
    code, out, err = cli("report", tmp_path / "runs", "--tuning", tmp_path / "t.csv", "--markdown")
    assert code == 0, err
    assert "12.3" not in out  # the test accuracy is not shown
    first, second = read(tmp_path / "t.csv")
    wanted = {"group": "runs", "run": "a", "data": "digits", "labels": "40", "change": ""}
    wanted |= {"seed": "100", "commit": "0123456", "steps": "100", "planned": "100"}
    wanted |= {"validation": "80.0", "confident": "50.0", "right": "90.0", "test": ""}
    assert {key: first[key] for key in wanted} == wanted
    assert second["change"] == "lr=0.2 alpha=0.8 weak_gradient=false"


def test_runs_are_appended_and_replaced(tmp_path, cli):
    file = tmp_path / "t.csv"
    path = tuned(tmp_path / "runs" / "a", 100, 0.8)
    cli("report", path, "--tuning", file)
    cli("report", tuned(tmp_path / "runs" / "b", 101, 0.7), "--tuning", file)
    lines = (path / "metrics.jsonl").read_text().replace("0.8", "0.6")
    (path / "metrics.jsonl").write_text(lines)
    code, _, err = cli("report", path, "--tuning", file)
    assert code == 0, err
    assert [(row["run"], row["validation"]) for row in read(file)] == [("a", "60.0"), ("b", "70.0")]


def test_an_unfinished_run_counts_up_to_its_last_evaluation(tmp_path):
    path = tuned(tmp_path / "a", 100, None, evaluated=[(40, 0.6), (50, 0.7)])
    row = tuning.record(tuning.Run(path))
    assert (row["steps"], row["planned"], row["validation"]) == ("50", "100", "70.0")
    assert row["right"] == "10.0"  # at step 50, not at 100
    assert tuning.summary([row])[1][1] == "50 of 100"


def test_a_run_that_was_not_evaluated_is_an_error(tmp_path):
    with pytest.raises(UserError, match="has not been evaluated yet"):
        tuning.record(tuning.Run(tuned(tmp_path / "a", 100, None)))


def test_one_line_for_each_configuration_over_its_seeds(tmp_path):
    paths = [
        tuned(tmp_path / "a", 100, 0.8),
        tuned(tmp_path / "b", 100, 0.7, lr=0.2),
        tuned(tmp_path / "c", 101, 0.9, 0.7),
        tuned(tmp_path / "d", 100, 0.6, steps=50),
    ]
    head, first, second, short = tuning.summary(tuning.records(paths))
    assert head == list(tuning.SUMMARY)
    assert first[1:3] == ["100", "85.00 ± 7.07"]
    assert first[3:] == ["50.00 ± 0.00", "80.00 ± 14.14", "100, 101", "0123456"]
    assert second[1:3] == ["100", "70.00"]
    assert "lr=0.2" in second[0]
    assert short[1:3] == ["50", "60.00"]


def test_what_a_group_does_not_share_is_part_of_the_line(tmp_path):
    records = tuning.records([tuned(tmp_path / "a", 100, 0.8), tuned(tmp_path / "b", 100, 0.7)])
    records[1] |= {"data": "cifar10", "recipe": "cifar10-fast"}
    _, *lines = tuning.summary(records)
    assert lines[0][0] == "data=digits recipe="
    assert lines[1][0] == "data=cifar10 recipe=cifar10-fast"


def test_groups_of_a_table_are_shown(tmp_path, cli):
    for group, value in (("one", 0.8), ("two", 0.7)):
        path = tuned(tmp_path / group / "a", 100 + (group == "two"), value)
        cli("report", path, "--tuning", tmp_path / "t.csv")
    code, out, err = cli("report", tmp_path / "t.csv", "--group", "two", "--markdown")
    assert code == 0, err
    assert out.splitlines()[2:] == ["| none | 100 | 70.00 | 50.00 | 90.00 | 101 | 0123456 |"]
    code, out, err = cli("report", tmp_path / "t.csv")
    assert code == 0, err
    assert "75.00 ± 7.07" in out  # of both groups


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["t.csv", "--group", "ome"], "unknown group 'ome': did you mean 'one'?"),
        (["one/a", "--group", "one"], "--group chooses rows of a CSV file"),
        (["other.csv"], "is not a table of tuning runs"),
        (["nowhere.csv"], "does not exist"),
        (["one/a", "--tuning", "t.txt"], "--tuning takes a CSV file"),
    ],
)
def test_what_cannot_be_shown(tmp_path, cli, words, said):
    path = tuned(tmp_path / "one" / "a", 100, 0.8)
    cli("report", path, "--tuning", tmp_path / "t.csv")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    code, _, err = cli("report", *words)
    assert code == 2
    assert said in " ".join(err.split())


def test_settings_and_figures_stay_whole_in_a_narrow_terminal():
    figures = ["20,000", "71.75 ± 13.62", "77.55 ± 10.79", "82.66 ± 14.69"]
    seeds = ", ".join(map(str, range(100, 130, 2)))
    line = ["labelled_view=strong hard_labels=false", *figures, seeds, "0123456"]
    console = Console(file=io.StringIO(), width=80)
    console.print(tables.tuning([list(tuning.SUMMARY), line]))
    shown = console.file.getvalue()
    for whole in ("labelled_view=strong", "hard_labels=false", *figures, "128"):
        assert whole in shown
