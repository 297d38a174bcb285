"""`comatch compare`: the table, continuing, adding to it, failures, the live table."""

import csv
import json
import shutil
import statistics

import pytest

import comatch
from comatch.commands.compare.live_table import LiveTable
from comatch.commands.report.runs import Row
from comatch.errors import UserError
from helpers import (
    TINY,
    TINY_SHARED,
    TINY_SHARED_WORDS,
    break_fixmatch,
    interrupt_at,
    make_images,
    read_json,
)

pytestmark = pytest.mark.slow

WORDS = ["compare", "digits", "--labels", 20, "--steps", 2, "--device", "cpu", *TINY_SHARED_WORDS]
METHODS = ["comatch", "fixmatch", "supervised"]
FILES = (".lock", "compare.txt", "compare.csv", "compare.md")


def compare(out, methods=METHODS, seeds=(0,), **others):
    options = {
        "labels": 20,
        "steps": 2,
        "device": "cpu",
        "settings": TINY_SHARED,
        "progress": False,
    }
    return comatch.compare("digits", methods=methods, seeds=seeds, out=out, **options | others)


def summaries(folder, method):
    return [read_json(path) for path in sorted(folder.glob(f"{method}-seed*/summary.json"))]


def state(folder):
    """Every file of the runs, with its bytes and when it was written."""
    files = [path for path in folder.glob("*/**/*") if path.is_file()]
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


# --------------------------------------------------------------------------------- results


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A comparison of three methods and two seeds. No test changes it."""
    folder = tmp_path_factory.mktemp("compared") / "all"
    return compare(folder, seeds=(0, 1))


def test_a_run_folder_for_each_method_and_seed(finished):
    names = {path.name for path in finished.path.iterdir()}
    assert names == {f"{m}-seed{s}" for m in METHODS for s in (0, 1)} | set(FILES)


def test_runs_with_the_same_seed_have_the_same_split(finished):
    def split(method, seed):
        return (finished.path / f"{method}-seed{seed}" / "split.json").read_bytes()

    for seed in (0, 1):
        assert len({split(method, seed) for method in METHODS}) == 1
    assert split("comatch", 0) != split("comatch", 1)


def test_a_run_is_the_same_as_that_of_train(finished, tmp_path):
    """The last run of the comparison: the runs before it leave no state in the process."""
    run = comatch.train(
        "digits", labels=20, steps=2, method="supervised", seed=1, device="cpu", progress=False,
        out=tmp_path / "alone", settings=TINY_SHARED,
    )  # fmt: skip
    for name in ("config.json", "split.json", "metrics.jsonl", "model.safetensors"):
        beside = finished.path / "supervised-seed1" / name
        assert (run.path / name).read_bytes() == beside.read_bytes(), name


def test_mean_and_deviation_are_computed_from_the_summaries(finished):
    assert {row.method for row in finished.rows} == set(METHODS)
    for row in finished.rows:
        top1 = [summary["top1"] for summary in summaries(finished.path, row.method)]
        assert row.top1 == top1
        assert row.mean == sum(top1) / 2
        assert row.std == pytest.approx(abs(top1[0] - top1[1]) / 2**0.5)
        assert row.seconds == statistics.mean(
            summary["seconds"] for summary in summaries(finished.path, row.method)
        )
        assert (row.steps, row.labels, row.seeds) == (2, 20, [0, 1])


def test_the_best_is_first(finished, tmp_path):
    folder = shutil.copytree(finished.path, tmp_path / "copy")
    for method, accuracies in (
        ("comatch", (0.5, 0.7)),
        ("fixmatch", (0.0, 0.0)),
        ("supervised", (0.95, 0.85)),
    ):
        for seed, top1 in enumerate(accuracies):
            path = folder / f"{method}-seed{seed}" / "summary.json"
            path.write_text(json.dumps(read_json(path) | {"top1": top1}))
    rows = compare(folder, seeds=(0, 1)).rows
    assert [(row.method, row.accuracy()) for row in rows] == [
        ("supervised", "90.00 ± 7.07 (n=2)"),
        ("comatch", "60.00 ± 14.14 (n=2)"),
        ("fixmatch", "0.00 ± 0.00 (n=2)"),
    ]


def test_the_table_is_written_as_text_csv_and_markdown(finished):
    text, table, page = ((finished.path / name).read_text() for name in FILES[1:])
    records = list(csv.DictReader(table.splitlines()))
    lines = [line for line in page.splitlines() if line.startswith("| digits")]
    assert [record["method"] for record in records] == [row.method for row in finished.rows]
    for row, record, line in zip(finished.rows, records, lines, strict=True):
        assert float(record["top1_mean"]) == row.mean
        assert float(record["top1_std"]) == row.std
        assert [float(share) for share in record["top1"].split()] == row.top1
        assert (record["n"], record["seeds"], record["failed"]) == ("2", "0 1", "")
        assert f"| {row.method} | 20 | 2 | {row.accuracy()} |" in line
        assert row.accuracy() in text
    session = read_json(finished.path / "comatch-seed0" / "environment.json")["sessions"][0]
    last = page.splitlines()[-1]
    commit = (session["git"] or "no commit")[:7]
    for word in (session["command"], commit, session["device"], "torch 2.", "Python 3"):
        assert word in last


def test_one_seed_has_no_deviation(tmp_path):
    (row,) = compare(tmp_path / "c", ["supervised"]).rows
    assert row.std is None
    assert row.accuracy() == f"{100 * row.top1[0]:.2f} (n=1)"
    assert "±" not in (tmp_path / "c" / "compare.txt").read_text()


# --------------------------------------------------------------------------------- continuing


def test_a_finished_comparison_is_not_touched(finished, monkeypatch):
    before = state(finished.path)
    monkeypatch.setattr("comatch.commands.compare.load_dataset", None)  # nor is the data read
    again = compare(finished.path, seeds=(0, 1))
    assert again == finished
    assert state(finished.path) == before


def test_seeds_and_methods_are_added(tmp_path):
    folder = tmp_path / "c"
    compare(folder, ["supervised"])
    before = state(folder)
    rows = compare(folder, ["supervised", "fixmatch"], seeds=(0, 1)).rows
    assert {row.method: row.seeds for row in rows} == {"supervised": [0, 1], "fixmatch": [0, 1]}
    after = state(folder)
    assert {path: after[path] for path in before} == before
    # Fewer methods and seeds show fewer rows, and every run is kept.
    assert [row.seeds for row in compare(folder, ["supervised"], seeds=(1,)).rows] == [[1]]
    assert state(folder) == after


def test_a_comparison_stopped_by_ctrl_c_is_continued(cli, tmp_path, monkeypatch):
    words = [*WORDS, "--methods", "supervised,fixmatch", "--seeds", "0"]
    words[words.index("--steps") + 1] = 6
    with monkeypatch.context() as patch:
        interrupt_at(patch, 9)  # the third step of the second run
        code, out, err = cli(*words)
    folder = tmp_path / "runs/compare-digits-20"
    assert code == 130
    assert out == ""
    assert "stopped after step 3 of fixmatch-seed0; everything up to there is saved" in err
    assert f"Continue with: comatch {' '.join(map(str, words))}\n" in err
    assert (folder / "supervised-seed0/summary.json").exists()
    assert not (folder / "fixmatch-seed0/summary.json").exists()
    assert len(list(csv.DictReader((folder / "compare.csv").open()))) == 1

    done = state(folder / "supervised-seed0")
    code, out, err = cli(*words)
    assert code == 0, err
    assert state(folder / "supervised-seed0") == done
    assert "supervised seed 0" not in err
    whole = tmp_path / "whole"
    assert cli(*words, "--out", whole)[0] == 0
    for name in ("metrics.jsonl", "model.safetensors"):
        broken = folder / "fixmatch-seed0" / name
        assert (whole / "fixmatch-seed0" / name).read_bytes() == broken.read_bytes(), name
    assert len(read_json(folder / "fixmatch-seed0/environment.json")["sessions"]) == 2


def test_ctrl_c_between_two_runs(cli, monkeypatch):
    def press(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("comatch.commands.compare.free_memory", press)
    code, _, err = cli(*WORDS, "--methods", "supervised", "--seeds", "0,1")
    assert code == 130
    assert "stopped; finished runs and checkpoints are kept." in err
    assert "Continue with: comatch compare digits" in err


def test_other_settings_need_another_folder(finished):
    before = state(finished.path)
    for changes, message in (
        ({"steps": 3}, "steps is 2, not 3"),
        ({"labels": 30}, "labels is 20, not 30"),
        ({"settings": {**TINY_SHARED, "lr": 0.5}}, "lr is 0.1, not 0.5"),
        ({"settings": {**TINY_SHARED, "alpha": 0.5}}, "alpha is 0.9, not 0.5"),
        ({"settings": {k: v for k, v in TINY_SHARED.items() if k != "mu"}}, "mu is 2, not 4"),
        (
            {"recipe": "cifar10", "settings": {**TINY_SHARED, "data": "digits"}},
            "recipe is digits, not",
        ),
    ):
        with pytest.raises(UserError, match=message):
            compare(finished.path, ["uda", *METHODS], seeds=(0, 5), **changes)
    with pytest.raises(UserError, match="is a run, not a comparison"):
        compare(finished.path / "comatch-seed0")
    assert state(finished.path) == before
    assert len(list(finished.path.iterdir())) == 10


def test_changed_data_needs_another_folder(tmp_path):
    images = make_images(tmp_path / "p")
    options = {"seeds": [0], "steps": 2, "device": "cpu", "progress": False, "out": tmp_path / "c"}
    settings = {**TINY_SHARED, "mu": 1}
    comatch.compare(images, methods=["supervised"], settings=settings, **options)
    (images / "unlabeled" / "0.jpg").unlink()
    with pytest.raises(UserError, match=r"supervised-seed0 was trained on another split"):
        comatch.compare(images, methods=["supervised", "comatch"], settings=settings, **options)
    assert not (tmp_path / "c" / "comatch-seed0").exists()


# ----------------------------------------------------------------------------------- failures


def test_a_run_that_fails_does_not_stop_the_others(cli, tmp_path, monkeypatch):
    words = [*WORDS, "--methods", "fixmatch,supervised", "--seeds", "0,1", "--out", "c"]
    with monkeypatch.context() as patch:
        break_fixmatch(patch)
        code, out, err = cli(*words)
    assert code == 1
    assert len(summaries(tmp_path / "c", "supervised")) == 2
    (line,) = [line.split() for line in out.splitlines() if "fixmatch" in line]
    assert line == ["fixmatch", "failed", "2"]
    assert out.index("supervised") < out.index("fixmatch")
    for seed in (0, 1):
        message = f"error: fixmatch seed {seed} failed: the loss or its gradient was not finite"
        assert message in err
        assert f"fixmatch seed {seed} failed" in (tmp_path / "c/compare.md").read_text()
    failed = list(csv.DictReader((tmp_path / "c/compare.csv").open()))[1]
    assert (failed["n"], failed["top1_mean"], failed["top1_std"]) == ("0", "", "")
    assert "seed 0 failed: the loss" in failed["failed"]

    code, _, err = cli(*words)  # the failed runs are tried again
    assert code == 0, err
    assert "failed" not in (tmp_path / "c/compare.txt").read_text()


def test_one_seed_of_two_fails(tmp_path, monkeypatch):
    break_fixmatch(monkeypatch, seed=1)
    (row,) = compare(tmp_path / "c", ["fixmatch"], seeds=(0, 1)).rows
    assert (row.seeds, list(row.failed)) == ([0], [1])
    assert row.accuracy() == f"{100 * row.top1[0]:.2f} (n=1, 1 failed)"


# ---------------------------------------------------------- errors before the first run


@pytest.mark.parametrize(
    ("words", "fragment"),
    [
        (["--methods", "supervised,fixmach"], "unknown method 'fixmach': did you mean 'fixmatch'"),
        (["--methods", ","], "nothing to compare"),
        (["--seeds", "0,one"], "--seeds 0,one: write whole numbers, as in 0,1,2"),
        (["--seeds=-1"], "seed=-1"),
        (["--set", "thershold=1"], "unknown setting 'thershold': did you mean 'threshold'"),
        (["--methods", "supervised", "--set", "alpha=0.5"], "unknown setting 'alpha'"),
        (["--set", "seed=3"], "use --seeds"),
        (["--set", "alpha=much"], "alpha takes a number"),
        (["--set", "alpha=2"], "alpha=2"),
        (["--set", "net=resnet81"], "unknown net"),
        (["--labels", "41"], "41 labels"),
        (["--device", "tpu"], "unknown device"),
        (["--out", "file"], "file"),
    ],
)
def test_errors_are_found_before_the_first_run(cli, tmp_path, words, fragment):
    (tmp_path / "file").write_text("")
    methods = [] if "--methods" in words else ["--methods", "supervised,comatch,fixmatch"]
    code, out, err = cli(*WORDS, *methods, *words)
    assert code == 2, err
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith("error: ")
    assert fragment in err
    assert {path.name for path in tmp_path.iterdir()} == {"file"}


def test_data_without_a_test_part(tmp_path):
    images = make_images(tmp_path / "p", test=0)
    (images / "test").rename(tmp_path / "gone")
    with pytest.raises(UserError, match="has no test part"):
        comatch.compare(images, methods=["supervised"], out=tmp_path / "c", progress=False)
    assert not (tmp_path / "c").exists()


def test_a_setting_changes_the_methods_that_have_it(tmp_path):
    compare(tmp_path / "c", settings={**TINY, "alpha": 0.5, "lr": 0.01})
    recipes = {m: read_json(tmp_path / "c" / f"{m}-seed0/config.json")["recipe"] for m in METHODS}
    assert [recipes[m]["optim"]["lr"] for m in METHODS] == [0.01] * 3
    assert [recipes[m]["method"].get("alpha") for m in METHODS] == [0.5, None, None]
    assert [recipes[m]["method"].get("bank_size") for m in METHODS] == [60, None, None]


# ------------------------------------------------------------------------------- the terminal


def test_plain_lines_where_there_is_no_terminal(cli):
    code, out, err = cli(*WORDS, "--methods", "supervised,fixmatch", "--seeds", "0")
    assert code == 0, err
    lines = err.splitlines()
    assert lines[0] == "digits: 1,797 images, 10 classes"
    head = "digits, 20 labels, seeds 0 in runs/compare-digits-20: 0 of 2 runs done"
    step, done = lines[lines.index(head) + 1 :][:2]
    assert step.startswith("supervised seed 0 2/2 loss ")
    assert done.startswith("supervised seed 0 done: ")
    assert done.endswith(" (1 of 2 runs)")
    assert "\x1b" not in out + err
    assert "runs/compare-digits-20" in out


def drawn(table):
    table.console.width = 100
    with table.console.capture() as capture:
        table.console.print(table.draw())
    return {line.split()[0]: line for line in capture.get().splitlines() if line.strip()}


def row(method, top1, failed=None):
    seeds = list(range(len(top1)))
    seconds = 60.0 if top1 else None
    return Row("digits", method, 40, 800, seeds, top1, seconds, "", "", failed or {})


def test_the_live_table():
    rows = [row("a", [0.9, 0.8]), row("b", [], {0: "not finite", 1: "not finite"}), row("c", [0.5])]
    table = LiveTable("title", ["a", "b", "c", "d"], 2, rows, show=True)
    table.live = object()  # as on a terminal
    lines = drawn(table)
    assert lines["a"].split() == ["a", "2/2", "85.00", "±", "7.07", "done", "60"]
    assert lines["b"].split() == ["b", "0/2", "failed:", "not", "finite"]
    assert lines["c"].split() == ["c", "1/2", "50.00", "waiting", "60"]
    assert lines["d"].split() == ["d", "0/2", "waiting"]
    assert lines["5"].startswith("5 of 8 runs, 0:00:00, about 0:03:00 left")

    with table.begin("c", 1)("title", 800, 100) as bar:
        assert "seed 1 100/800" in drawn(table)["c"]
        bar.advance(412)
        bar.show(400, {"loss": 0.3123})
        bar.say("a remark")
    assert "seed 1 412/800 loss 0.312" in drawn(table)["c"]
    table.end("c", 1, [*rows[:2], row("c", [0.5, 0.6])])
    assert "done" in drawn(table)["c"]
