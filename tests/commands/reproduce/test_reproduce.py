"""The paper's tables: filled from run folders, resumed, and compared with a count by hand."""

import csv
import json
import shutil
import statistics
import xml.etree.ElementTree as ElementTree

import pytest
from PIL import Image

import comatch
from comatch.commands import compare as comparison
from comatch.commands import reproduce as reproduction
from comatch.commands.compare.live_table import LiveTable
from comatch.commands.report import runs
from comatch.commands.reproduce import Experiment, paper
from comatch.commands.reproduce.ablations import PARAMETERS, ablations
from comatch.commands.reproduce.table1 import table1
from comatch.commands.reproduce.table2 import table2
from comatch.errors import UserError
from comatch.planning import Request
from helpers import (
    TINY,
    TINY_SHARED,
    TINY_SHARED_WORDS,
    TINY_WORDS,
    break_fixmatch,
    interrupt_at,
    read_json,
)

pytestmark = pytest.mark.slow

METHODS = ["fixmatch", "comatch"]
TABLE_WORDS = ["reproduce", "table1", "--recipe", "digits", "--device", "cpu", *TINY_SHARED_WORDS]


def experiment(out, seeds, others=(), train=True, **request):
    """Two steps of the smallest net."""
    asked = Request(**{"steps": 2, "device": "cpu", "progress": False} | request)
    return Experiment(asked, out, seeds, others, train)


def table(out, labels=(20, 30), seeds=(0, 1), methods=METHODS, stl10=False, **others):
    wanted = experiment(out, seeds, **{"recipe": "digits", "settings": TINY_SHARED} | others)
    return table1(wanted, labels=labels, stl10=stl10, methods=methods)


def state(folder):
    """Content and modification time of every file of the runs, without the tables."""
    files = [path for path in folder.glob("**/*-seed*/**/*") if path.is_file()]
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def texts(made):
    """The text of each cell: by method, column by column."""
    return {method: ours for method, _, ours in made.rows()}


def records(folder, name="table1.csv"):
    return list(csv.DictReader((folder / name).read_text().splitlines()))


@pytest.fixture
def no_data(monkeypatch):
    """Opening a data set fails."""
    monkeypatch.setattr("comatch.commands.compare.load_dataset", None)
    monkeypatch.setattr("comatch.commands.reproduce.load_dataset", None)


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """Two columns, two methods, two seeds, all trained. Tests must not change it."""
    return table(tmp_path_factory.mktemp("table1") / "all")


@pytest.fixture
def copied(filled, tmp_path):
    return shutil.copytree(filled.path, tmp_path / "copy")


# ---------------------------------------------------------------------------------- table 1


def test_each_column_is_a_comparison(filled):
    names = {path.name for path in filled.path.iterdir()}
    assert names == {"digits-20", "digits-30", "table1.md", "table1.csv"}
    for column in ("digits-20", "digits-30"):
        there = {path.name for path in (filled.path / column).iterdir()}
        assert {f"{m}-seed{s}" for m in METHODS for s in (0, 1)} < there
        assert "compare.csv" in there
    # The runs are those of `comatch compare`: it finds nothing left to do.
    before = state(filled.path)
    options = {
        "methods": METHODS,
        "seeds": [0, 1],
        "labels": 20,
        "steps": 2,
        "settings": TINY_SHARED,
    }
    comatch.compare(out=filled.path / "digits-20", device="cpu", progress=False, **options)
    assert state(filled.path) == before


def test_mean_and_deviation_by_hand(filled):
    written = records(filled.path)
    assert [(r["labels"], r["method"]) for r in written] == [
        (labels, method) for labels in ("20", "30") for method in METHODS
    ]
    for record in written:
        folder = filled.path / f"digits-{record['labels']}"
        a, b = (
            read_json(folder / f"{record['method']}-seed{seed}/summary.json")["top1"]
            for seed in (0, 1)
        )
        assert float(record["top1_mean"]) == pytest.approx((a + b) / 2)
        assert float(record["top1_std"]) == pytest.approx(abs(a - b) / 2**0.5)
        assert record["top1"] == f"{a} {b}"
        assert (record["n"], record["n_wanted"], record["seeds"]) == ("2", "2", "0 1")
        assert (record["recipe"], record["steps"], record["failed"]) == ("digits", "2", "")
        assert record["paper_mean"] == ""  # the paper has no digits
        mean, std = 50 * (a + b), 100 * abs(a - b) / 2**0.5
        column = ("20", "30").index(record["labels"])
        assert texts(filled)[record["method"]][column] == f"{mean:.2f} ± {std:.2f} (n=2)"


def test_the_page_has_the_origin_of_the_results(filled):
    page = (filled.path / "table1.md").read_text()
    for method, _, ours in filled.rows():
        assert f"| {method} |  | {ours[0]} |  | {ours[1]} |" in page
    session = read_json(filled.path / "digits-20/comatch-seed0/environment.json")["sessions"][0]
    for words in (
        "digits, 20 labels: ours",
        "last checkpoint, never the best",
        "- recipe: digits\n",
        "- steps: fixmatch, comatch 2\n",
        "- seeds: 0, 1\n",
        f"- commits: {(session['git'] or 'unknown')[:7]}",
        f"- devices: {session['device']}",
        "- settings changed: image_size=8, pad=1",
    ):
        assert words in page


@pytest.mark.usefixtures("no_data")
def test_finished_runs_are_only_read(filled):
    before = state(filled.path)
    for train in (True, False):
        assert texts(table(filled.path, train=train)) == texts(filled)
    assert state(filled.path) == before
    less = table(filled.path, labels=[30], seeds=[1], methods=["comatch"], train=False)
    top1 = read_json(filled.path / "digits-30/comatch-seed1/summary.json")["top1"]
    assert texts(less) == {"comatch": [f"{100 * top1:.2f} (n=1)"]}
    table(filled.path)  # restores the page for other tests


def test_missing_runs_are_trained(copied):
    redone = ("digits-30/fixmatch-seed1", "digits-30/comatch-seed0", "digits-20/comatch-seed1")
    for name in redone[:2]:
        shutil.rmtree(copied / name)
    (copied / redone[2] / "summary.json").unlink()
    before = state(copied)
    some = table(copied, labels=[40, 20, 30], train=False)
    assert state(copied) == before
    assert [text.split("(")[-1] for text in texts(some)["fixmatch"]] == [
        "not run",
        "n=2)",
        "n=1 of 2)",
    ]
    rows = {(r["labels"], r["method"]): r["n"] for r in records(copied)}
    assert rows["20", "comatch"] == rows["30", "comatch"] == "1"
    assert rows["40", "comatch"] == "0"

    whole = table(copied, labels=[20, 30])
    after = state(copied)
    kept = [path for path in before if not any(name in str(path) for name in redone)]
    assert len(kept) >= 5 * 8
    assert {path: after[path] for path in kept} == {path: before[path] for path in kept}
    assert all(text.endswith("(n=2)") for ours in texts(whole).values() for text in ours)


def test_an_interrupted_table_is_resumed(cli, tmp_path, filled, monkeypatch):
    words = [*TABLE_WORDS, "--labels", "20,30", "--methods", "fixmatch,comatch", "--steps", 2]
    words += ["--seeds", "0", "--out", "t"]
    with monkeypatch.context() as patch:
        interrupt_at(patch, 5)  # the first step of the third run, the first of the second column
        code, out, err = cli(*words)
    assert (code, out) == (130, "")
    assert "stopped after step 1 of fixmatch-seed0; everything up to there is saved" in err
    assert f"Continue with: comatch {' '.join(map(str, words))}\n" in err
    assert [record["n"] for record in records(tmp_path / "t")] == ["1", "1", "0", "0"]

    done = state(tmp_path / "t/digits-20")
    code, out, err = cli(*words, "--no-train")
    assert code == 0, err
    assert [line.split()[-4:] for line in out.splitlines() if "fixmatch" in line] == [
        ["0", "of", "1", "seeds"]
    ]
    code, out, err = cli(*words)
    assert code == 0, err
    assert state(tmp_path / "t/digits-20") == done
    for name in ("metrics.jsonl", "model.safetensors"):
        one, other = (p / "digits-30/fixmatch-seed0" / name for p in (tmp_path / "t", filled.path))
        assert one.read_bytes() == other.read_bytes()
    assert out.count("(n=1)") == 4
    assert "t/table1.md" in out


def test_the_table_is_written_after_every_run(cli, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("comatch.commands.compare.free_memory", interrupt)
    words = [*TABLE_WORDS, "--labels", 20, "--methods", "fixmatch", "--steps", 2, "--seeds", "0,1"]
    code, _, err = cli(*words)
    assert code == 130
    assert "Continue with: comatch reproduce table1" in err
    assert [record["n"] for record in records(tmp_path / "runs/table1")] == ["1"]


def test_a_run_that_fails(cli, tmp_path, monkeypatch):
    break_fixmatch(monkeypatch, seed=1)
    words = [*TABLE_WORDS, "--labels", 20, "--methods", "fixmatch", "--steps", 2, "--seeds", "0,1"]
    code, out, err = cli(*words)
    assert code == 1
    assert "(n=1 of 2, 1 failed)" in out
    assert "error: digits-20: fixmatch seed 1 failed: the loss or its gradient was not" in err
    assert "fixmatch seed 1 failed" in (tmp_path / "runs/table1/table1.md").read_text()
    assert "seed 1: the loss" in records(tmp_path / "runs/table1")[0]["failed"]


# --------------------------------------------------------------------------- runs in other folders


def test_the_live_table_counts_them_as_done():
    assert LiveTable("title", ["a", "b"], 2, [], False, {"a": 1}).count() == "1 of 4 runs"


def test_runs_in_other_folders_count_and_are_not_trained_again(filled, tmp_path, monkeypatch):
    shutil.copytree(filled.path / "digits-20", tmp_path / "else/a")
    shutil.copytree(filled.path / "digits-30/comatch-seed1", tmp_path / "else/b/mine")
    shutil.rmtree(tmp_path / "else/a/fixmatch-seed0")
    trained = []
    fit = comparison.fit

    def watched(folder, *words):
        trained.append(f"{folder.path.parent.name}/{folder.path.name}")
        return fit(folder, *words)

    monkeypatch.setattr(comparison, "fit", watched)
    made = table(tmp_path / "t", others=[tmp_path / "else/a", tmp_path / "else/b/mine"])
    assert texts(made) == texts(filled)
    assert made.remarks == []
    assert trained == [
        "digits-20/fixmatch-seed0",
        "digits-30/fixmatch-seed0",
        "digits-30/comatch-seed0",
        "digits-30/fixmatch-seed1",
    ]
    # Without those folders, only the runs trained here count.
    alone = table(tmp_path / "t", train=False)
    assert [text.count("of 2") for text in texts(alone)["fixmatch"]] == [1, 0]
    assert texts(alone)["comatch"][0] == "not run"


@pytest.mark.usefixtures("no_data")
def test_only_runs_of_the_same_settings_count(filled, tmp_path):
    other = filled.path
    made = table(tmp_path / "t", steps=3, others=[other], train=False)
    assert {text for ours in texts(made).values() for text in ours} == {"not run"}
    assert made.remarks == [
        f"{other}/digits-20/comatch-seed0 and 7 more not counted: steps is 2, not 3"
    ]
    assert made.remarks[0] in (tmp_path / "t/table1.md").read_text()
    made = table(tmp_path / "t", seeds=[1, 2], others=[other, other], train=False)
    assert "n=1 of 2" in texts(made)["comatch"][0]
    assert made.remarks == [
        f"{other}/digits-20/comatch-seed0 and 7 more not counted: seed 0 is not among the seeds"
    ]
    made = table(tmp_path / "t", labels=[50], others=[other], train=False)
    assert made.remarks == [
        f"{other} not counted: no finished run of these data, labels and methods is there"
    ]
    # Settings that do not change the result may differ.
    settings = {**TINY_SHARED, "log_every": 1, "precision": "bf16", "engine": "eager"}
    made = table(tmp_path / "t", settings=settings, others=[other], train=False)
    assert texts(made) == texts(filled)


@pytest.mark.usefixtures("no_data")
def test_a_second_run_of_a_seed_is_left_out(copied, tmp_path):
    twice = shutil.copytree(copied / "digits-20/comatch-seed0", tmp_path / "twice")
    made = table(copied, others=[twice], train=False)
    assert made.remarks == [f"{twice} not counted: comatch with seed 0 is counted already"]


@pytest.mark.usefixtures("no_data")
def test_runs_of_other_settings_in_the_folder_are_listed(filled, tmp_path):
    before = state(filled.path)
    with pytest.raises(UserError, match=r"steps is 2, not 3.*choose another --out"):
        table(filled.path, steps=3)
    made = table(filled.path, steps=3, train=False)
    assert len(made.remarks) == 1
    assert "not counted: steps is 2, not 3" in made.remarks[0]
    assert state(filled.path) == before
    table(filled.path, train=False)


@pytest.mark.usefixtures("no_data")
def test_the_results_of_this_repository_count(cli, tmp_path):
    results = runs.Path(__file__).parents[3] / "results"
    words = ["--no-train", "--from", results / "cifar10-250", "--steps", 5000, "--seeds", 0]
    code, out, err = cli("reproduce", "table1", *words, "--labels", "40,250")
    assert code == 0, err
    lines = [line.split("  ") for line in out.splitlines()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert ["comatch", "paper", "93.09 ± 1.39", "95.09 ± 0.33"] in cells
    top1 = read_json(results / "cifar10-250/comatch-seed0/summary.json")["top1"]
    assert ["ours", "not run", f"{100 * top1:.2f} (n=1)"] in cells
    (record,) = [
        r
        for r in records(tmp_path / "runs/table1")
        if (r["method"], r["labels"]) == ("fixmatch", "250")
    ]
    assert (record["paper_mean"], record["paper_std"]) == ("0.949", "0.0067")
    page = (tmp_path / "runs/table1/table1.md").read_text()
    assert "CIFAR-10, 40 labels: paper" in page
    assert "| comatch | 93.09 ± 1.39 | not run | 95.09 ± 0.33 |" in page


@pytest.mark.usefixtures("no_data")
def test_the_whole_table(cli, tmp_path):
    code, out, _ = cli("reproduce", "table1", "--no-train", "--stl10")
    assert code == 0
    assert out.count("not run") == 20
    assert "79.80 ± 0.38" in out
    assert [(r["data"], r["labels"]) for r in records(tmp_path / "runs/table1")][::4] == [
        ("cifar10", "20"),
        ("cifar10", "40"),
        ("cifar10", "80"),
        ("cifar10", "250"),
        ("stl10", "1000"),
    ]
    page = (tmp_path / "runs/table1/table1.md").read_text()
    assert "- recipe: cifar10, stl10\n" in page
    assert "- steps: mixmatch, fixmatch, fixmatch_da 1,048,576; comatch 524,288\n" in page
    assert "- commits: none" in page


@pytest.mark.parametrize(
    ("words", "fragment"),
    [
        (["--labels", "20,forty"], "--labels 20,forty: write whole numbers"),
        (["--labels", ","], "the table has no column"),
        (["--labels", "20,41"], "41 labels"),
        (["--methods", "comatsch"], "did you mean 'comatch'"),
        (["--methods", ","], "name a method and a seed"),
        (["--seeds", ""], "name a method and a seed"),
        (["--recipe", "cifar11"], "did you mean 'cifar10'"),
        (["--set", "seed=1"], "use --seeds"),
        (["--from", "nowhere"], "there is no folder nowhere"),
        (["--out", "file"], "file"),
    ],
)
def test_mistakes_are_reported_before_the_first_run(cli, tmp_path, words, fragment):
    (tmp_path / "file").write_text("")
    methods = [] if "--methods" in words else ["--methods", "fixmatch"]
    code, out, err = cli(*TABLE_WORDS, "--steps", 2, *methods, *words)
    assert (code, out) == (2, ""), err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert fragment in err
    assert {path.name for path in tmp_path.iterdir()} == {"file"}


def test_missing_data_is_reported_before_the_first_run(tmp_path, monkeypatch):
    opened, load = [], reproduction.load_dataset

    def without_stl10(reading, *words):
        opened.append(reading.dataset.data)
        if reading.dataset.data == "stl10":
            raise UserError("no STL-10 here")
        return load(reading, *words)

    monkeypatch.setattr(reproduction, "load_dataset", without_stl10)
    with pytest.raises(UserError, match="no STL-10 here"):
        table(tmp_path / "t", stl10=True)
    assert opened == ["digits", "stl10"]
    assert not (tmp_path / "t").exists()


# ---------------------------------------------------------------------------------- table 2


def imagenet(out, methods=("supervised", "comatch_momentum"), shares=(1, 10), inits=None, **others):
    """Table 2 on digits."""
    settings = {**TINY_SHARED, "net": "wrn-10-1", "stem": "auto", "labels": 20}
    wanted = experiment(out, (0,), data="digits", settings=settings, **others)
    return table2(wanted, shares=shares, methods=methods, inits=inits)


def test_table_2_is_trained_and_extended(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "MANY_CLASSES", 10)  # so that top-5 is shown for digits
    before = state(imagenet(tmp_path, shares=[1]).path)
    table = imagenet(tmp_path)
    after = state(tmp_path)
    assert before
    assert {path: after[path] for path in before} == before
    tops = ["1 %, top-1", "1 %, top-5", "10 %, top-1", "10 %, top-5"]
    assert table.titles() == ["epochs", "parameters", *tops]
    for method, _, ours in table.rows():
        for k, share in enumerate(("1pct", "10pct"), start=1):
            summary = read_json(tmp_path / share / f"{method}-seed0" / "summary.json")
            assert ours[2 * k] == f"{100 * summary['top1']:.2f} (n=1)"
            assert ours[2 * k + 1] == f"{100 * summary['top5']:.2f}"
    theirs = ["400", "30.0 / 25.6", "66.0", "86.4", "73.6", "91.6"]
    assert table.rows()[1][:2] == ("comatch_momentum", theirs)
    summaries = [read_json(path) for path in tmp_path.glob("*/*/summary.json")]
    assert {s["checkpoint"] for s in summaries} == {"last, the network's own weights"}
    record = records(tmp_path, "table2.csv")[1]
    assert (record["method"], record["share"]) == ("comatch_momentum", "1")
    assert (record["paper_top1"], record["paper_top5"]) == ("0.66", "0.864")
    recipes = {read_json(path)["recipe"]["name"] for path in tmp_path.glob("*/*/config.json")}
    assert recipes == {"imagenet-1pct", "imagenet-10pct"}
    page = (tmp_path / "table2.md").read_text()
    assert page.count("| supervised | 20 | 0.0 | 25.6 / 25.6 | ") == 1
    assert "- recipe: imagenet-1pct, imagenet-10pct\n" in page


def test_table_2_from_pretrained_weights(tmp_path):
    first = imagenet(tmp_path / "a", methods=["supervised"], shares=[1])
    run = first.path / "1pct" / "supervised-seed0"
    inits = {"mocov2": str(run), "my own": str(run)}
    table = imagenet(tmp_path / "b", methods=["supervised"], shares=[1], inits=inits)
    rows = [(name, theirs) for name, theirs, _ in table.rows()]
    assert rows == [
        ("supervised", ["20", "25.6 / 25.6", "25.4", "48.4"]),
        ("MoCo v2, then supervised", ["800", "30.0 / 25.6", "49.8", "77.2"]),
        ("my own, then supervised", ["", "", "", ""]),
    ]
    page = (table.path / "table2.md").read_text()
    for folder, name in (("1pct-moco-v2", "MoCo v2"), ("1pct-my-own", "my own")):
        config = read_json(table.path / folder / "supervised-seed0/config.json")["recipe"]
        assert config["model"]["init"] == str(run)
        assert (config["optim"]["lr"], config["optim"]["head_lr"]) == (0.02, 5.0)  # SwAV's
        assert f"- {name}: {run}\n" in page


@pytest.mark.usefixtures("no_data")
def test_table_2_from_the_command_line(cli):
    words = ("reproduce", "table2", "digits", "--no-train")
    code, out, _ = cli(*words, "--methods", "vat,pseudo_label,mixmatch")
    assert code == 0
    assert out.count("not run") == 6
    assert "68.8" in out  # VAT, 10 % of the labels
    assert "51.6" in out  # Pseudo-Label has only a top-5
    for more, fragment in (
        (("--shares", "5"), "unknown share of the labels '5'"),
        (("--shares", ","), "the table has no column"),
        (("--init", "SwAV=nowhere"), "nowhere does not exist"),
        (("--init", "nowhere"), "--init nowhere: name the pre-training, as in --init 'MoCo v2=now"),
        (("--init", "=nowhere"), "name the pre-training"),
        (("--init", "swav=a", "--init", "SwAV=b"), "SwAV is named twice"),
        (("--set", "init=nowhere"), "--set init: this table has --init"),
    ):
        code, _, err = cli(*words, *more)
        assert (code, err.count("\n")) == (2, 1), err
        assert fragment in err


@pytest.mark.usefixtures("no_data")
def test_table_2_shows_every_row_of_the_paper(tmp_path):
    """Those that are not trained say so; from a pre-training, the paper's methods are trained."""
    (tmp_path / "file.pth").touch()
    wanted = Experiment(Request(data="digits", device="cpu"), tmp_path / "t", (0,), train=False)
    for inits, more in (({}, set()), ({"MoCo v2": tmp_path / "file.pth"}, {"MoCo v2"})):
        table = table2(wanted, inits=inits)
        rows = {name: ours for name, _, ours in table.rows()}
        names = [f"{start}, then {m}" if start else m for start, m in paper.TABLE2_EPOCHS]
        assert sorted(rows) == sorted(names)
        assert all(ours[2::2] == ["not run", "not run"] for ours in rows.values())
        planned = {(c.start, m) for c in table.columns for m in c.group.methods}
        own = {(start, m) for start, m in paper.TABLE2_EPOCHS if start in more}
        assert planned == {("", "fixmatch_da"), ("", "comatch_momentum")} | own
        assert "| SimCLR v2, then distill | 1,200 |" in (table.path / "table2.md").read_text()


@pytest.mark.parametrize("share", [1, 10])
def test_rows_of_table_2_have_steps_of_their_own(share, tmp_path):
    """From random weights the paper's epochs, from others SimCLR's fine-tuning for supervised."""
    (tmp_path / "file.pth").touch()
    methods = [method for start, method in paper.TABLE2_EPOCHS if not start]
    wanted = Experiment(Request(data="digits", device="cpu"), tmp_path / "t", (0,), train=False)
    table = table2(wanted, shares=[share], methods=methods, inits={"SwAV": tmp_path / "file.pth"})
    labels = {1: 13_000, 10: 128_000}[share]
    rows = {name: dict(zip(table.titles(), ours, strict=True)) for name, _, ours in table.rows()}
    for method in methods:
        published = paper.TABLE2_EPOCHS["", method] or {"vat": 200, "uda": 400}[method]
        assert rows[method]["epochs"] == str(published)
        assert rows[method]["parameters"] == paper_parameters(method)
        assert rows[method][f"{share} %, top-1"] == "not run"
    steps = {c.method: c.recipe.optim.steps for c in table.groups[1].cells}
    assert steps["supervised"] == {1: 60, 10: 30}[share] * labels // 160
    assert steps["comatch_momentum"] == 400 * ((1_281_167 - labels) // 640)


def paper_parameters(method):
    train, test = paper.TABLE2_PARAMETERS["", method]
    return f"{train:.1f} / {test:.1f}"


# -------------------------------------------------------------------------------- ablations


def vary(out, parameters=("alpha", "K"), seeds=(0, 1), **others):
    wanted = experiment(out, seeds, data="digits", labels=20, settings=TINY, **others)
    return ablations(wanted, parameters=parameters)


@pytest.fixture(scope="module")
def varied(tmp_path_factory):
    return vary(tmp_path_factory.mktemp("ablations") / "all")


def test_each_variant_changes_one_setting_and_the_default_is_shared(varied):
    folders = {path.name for path in varied.path.iterdir() if path.is_dir()}
    alphas = {f"alpha-{value}" for value in (0.8, 0.85, 0.95, 1.0)}
    sizes = {f"bank_size-{value}" for value in (12, 30, 120)}
    assert folders == {"default"} | alphas | sizes
    plain = read_json(varied.path / "default/comatch-seed1/config.json")["recipe"]
    assert (plain["method"]["alpha"], plain["method"]["bank_size"]) == (0.9, 60)
    for name in folders - {"default"}:
        setting, value = name.rsplit("-", 1)
        recipe = read_json(varied.path / name / "comatch-seed1/config.json")["recipe"]
        changed = {k for k, v in recipe["method"].items() if v != plain["method"][k]}
        assert changed == {setting}
        assert str(recipe["method"][setting]) == value
        assert {**recipe, "method": 0} == {**plain, "method": 0}
    points = [(p.parameter.setting, p.value) for p in varied.points if p.default]
    assert points == [("alpha", 0.9), ("bank_size", 60)]
    assert len({id(point.cell) for point in varied.points if point.default}) == 1


def test_ablations_by_hand(varied):
    written = records(varied.path, "ablations.csv")
    assert [(r["parameter"], r["value"]) for r in written] == [
        *(("alpha", str(value)) for value in (0.8, 0.85, 0.9, 0.95, 1.0)),
        *(("bank_size", str(value)) for value in (12, 30, 60, 120)),
    ]

    def top1(name):
        paths = (varied.path / name / f"comatch-seed{seed}/summary.json" for seed in (0, 1))
        return [read_json(path)["top1"] for path in paths]

    default = top1("default")
    page = (varied.path / "ablations.md").read_text()
    for record in written:
        own = record["default"] == "True"
        mine = default if own else top1(f"{record['parameter']}-{record['value']}")
        assert float(record["top1_mean"]) == pytest.approx(statistics.mean(mine))
        assert float(record["top1_std"]) == pytest.approx(statistics.stdev(mine))
        change = statistics.mean(mine) - statistics.mean(default)
        if own:
            assert record["change"] == ""
        else:
            assert float(record["change"]) == pytest.approx(change)
        figures = f"{100 * statistics.mean(mine):.2f} ± {100 * statistics.stdev(mine):.2f} (n=2)"
        points = "" if own else f"{100 * float(record['change']):+.2f}"
        theirs = "-2.1" if (record["parameter"], record["value"]) == ("alpha", "1.0") else ""
        value = record["value"] + (" (recipe's)" if own else "")
        name = {"alpha": "alpha", "bank_size": "bank_size (K)"}[record["parameter"]]
        assert f"| {name} | {value} | {figures} | {points} | {theirs} |" in page
    for words in (
        "57.1 %",
        "](ablations.svg)",
        "multiples of the recipe's",
        "- steps: comatch 2\n",
    ):
        assert words in page


def test_the_figure(varied):
    with Image.open(varied.path / "ablations.png") as image:
        image.load()
        assert image.format == "PNG"
    root = ElementTree.parse(varied.path / "ablations.svg").getroot()
    panels = [e for e in root.iter() if e.get("id", "").startswith("axes_")]
    assert len(panels) == 2


def test_ablations_are_resumed(varied, tmp_path, monkeypatch):
    folder = shutil.copytree(varied.path, tmp_path / "copy")
    shutil.rmtree(folder / "alpha-0.95/comatch-seed1")
    before = state(folder)
    some = vary(folder, ["alpha"], train=False)
    assert [row[2].rpartition("(")[2] for row in some.rows()] == [
        *["n=2)"] * 3,
        "n=1 of 2)",
        "n=2)",
    ]
    assert state(folder) == before
    with monkeypatch.context() as patch:
        patch.setattr(comparison, "load_dataset", None)
        patch.setattr(reproduction, "load_dataset", None)
        elsewhere = vary(folder, ["alpha"], others=[varied.path])
        assert elsewhere.rows() == [row for row in varied.rows() if row[0] == "alpha"]
    assert vary(folder).rows() == varied.rows()
    after = state(folder)
    kept = [path for path in before if "alpha-0.95" not in str(path)]
    assert {path: after[path] for path in kept} == {path: before[path] for path in kept}


@pytest.mark.usefixtures("no_data")
def test_ablations_before_any_run(cli, tmp_path):
    code, out, err = cli("reproduce", "ablations", "--no-train")
    assert code == 0, err
    assert out.count("not run") == 19
    assert "no run to draw yet" in out
    assert {path.name for path in (tmp_path / "runs/ablations").iterdir()} == {
        "ablations.md",
        "ablations.csv",
    }
    written = records(tmp_path / "runs/ablations", "ablations.csv")
    tried = {name: [r["value"] for r in written if r["parameter"] == name] for name in PARAMETERS}
    assert tried == {
        "edge_threshold": ["0.2", "0.4", "0.6", "0.8", "1.0"],
        "lambda_ctr": ["0.2", "0.5", "1.0", "2.0", "5.0"],
        "alpha": ["0.8", "0.85", "0.9", "0.95", "1.0"],
        "bank_size": ["512", "1280", "2560", "5120"],
    }
    # On ImageNet, the recipe's T is among the values, and lambda_ctr has those of the paper.
    words = ["images", "--recipe", "imagenet-1pct", "--parameters", "T,lambda_ctr"]
    (tmp_path / "images").mkdir()
    code, out, err = cli("reproduce", "ablations", *words, "--no-train")
    assert code == 0, err
    written = records(tmp_path / "runs/ablations", "ablations.csv")
    assert {r["method"] for r in written} == {"comatch_momentum"}
    assert [r["value"] for r in written if r["default"] == "True"] == ["0.3", "10.0"]
    assert {"2.0", "10.0"} <= {r["value"] for r in written}


def test_ablations_from_the_command_line(cli, tmp_path):
    words = ["digits", "--labels", 20, "--steps", 2, "--device", "cpu", *TINY_WORDS]
    words += ["--parameters", "T", "--seeds", "0", "--set", "edge_threshold=1.0", "--out", "a"]
    code, out, err = cli("reproduce", "ablations", *words)
    assert code == 0, err
    assert "1.0 (recipe's)" in out
    assert out.count("(n=1)") == 5
    assert {path.name for path in (tmp_path / "a").iterdir()} > {"ablations.png", "default"}
    assert "a/ablations.md, .csv, .png, .svg" in out
    for mistake, fragment in (
        (["--parameters", "beta"], "unknown parameter 'beta'"),
        (["--parameters", ","], "name a parameter at least"),
        (["--labels", 41, "--out", "b"], "41 labels"),
    ):
        code, _, err = cli("reproduce", "ablations", *words, *mistake)
        assert code == 2
        assert fragment in err
    assert not (tmp_path / "b").exists()


@pytest.mark.usefixtures("no_data")
def test_ablations_of_given_values(cli, tmp_path):
    words = ["reproduce", "ablations", "--no-train"]
    code, _, err = cli(*words, "--values", "K=2560,10_000,10000", "--values", "lambda_ctr=0")
    assert code == 0, err
    written = records(tmp_path / "runs/ablations", "ablations.csv")
    assert [(r["parameter"], r["value"], r["default"]) for r in written] == [
        ("bank_size", "2560", "True"),
        ("bank_size", "10000", "False"),
        ("lambda_ctr", "0.0", "False"),
        ("lambda_ctr", "1.0", "True"),
    ]
    code, _, _ = cli(*words, "--parameters", "alpha,K", "--values", "alpha=0.5")
    assert code == 0
    written = records(tmp_path / "runs/ablations", "ablations.csv")
    values = {name: [r["value"] for r in written if r["parameter"] == name] for name in PARAMETERS}
    assert values["alpha"] == ["0.5", "0.9"]
    assert values["bank_size"] == ["512", "1280", "2560", "5120"]
    for value, fragment in (
        ("K=0", "--values K=0: bank_size=0: must be at least 1"),
        ("K=many", "--values K=many: bank_size takes a whole number"),
        ("K=2.5", "bank_size takes a whole number"),
        ("T=1.5", "--values T=1.5: edge_threshold=1.5: must be in [0, 1]"),
        ("alpha=nan", "takes a finite number"),
        ("lambda_ctr=inf", "takes a finite number"),
        ("K", "--values K: write it as in K=2560,10000"),
        ("K=,", "write it as in K=2560,10000"),
        ("beta=1", "unknown parameter 'beta'"),
    ):
        code, _, err = cli(*words, "--values", value, "--out", "new")
        assert (code, err.count("\n")) == (2, 1), err
        assert fragment in err
    code, _, err = cli(*words, "--parameters", "T", "--values", "K=1", "--out", "new")
    assert code == 2
    assert "--values K: not among the parameters" in err
    assert not (tmp_path / "new").exists()


def test_given_values_are_trained_and_drawn(tmp_path):
    wanted = experiment(tmp_path, (0,), data="digits", labels=20, settings=TINY)
    table = ablations(wanted, values={"lambda_ctr": ["0", "3"]})
    folders = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert folders == {"default", "lambda_ctr-0.0", "lambda_ctr-3.0"}
    assert [point.value for point in table.points] == [0, 1, 3]
    assert (tmp_path / "ablations.png").exists()  # zero has no place on a logarithmic axis
    assert (
        "Values given on the command line: lambda_ctr." in (tmp_path / "ablations.md").read_text()
    )


def test_an_interrupted_call_draws_what_exists(cli, tmp_path, monkeypatch):
    interrupt_at(monkeypatch, 3)  # the first step of the second run
    words = ["digits", "--labels", 20, "--steps", 2, "--device", "cpu", *TINY_WORDS]
    code, out, err = cli("reproduce", "ablations", *words, "--parameters", "K", "--seeds", "0")
    assert (code, out) == (130, "")
    assert "Continue with: comatch reproduce ablations digits" in err
    assert (tmp_path / "runs/ablations/ablations.png").exists()
    written = records(tmp_path / "runs/ablations", "ablations.csv")
    assert [record["n"] for record in written] == ["0", "0", "1", "0"]


# ------------------------------------------------------------------------------------- help


@pytest.mark.parametrize(
    ("command", "fragments"),
    [
        ((), ["table1", "ablations", "curves"]),
        (("table1",), ["--labels", "--no-train", "--from", "--stl10", "table1.csv", "Ctrl-C"]),
        (("table2",), ["--init", "NAME=FILE", "--shares"]),
        (("ablations",), ["--parameters", "--values", "ablations.png", "multiples"]),
        (("checkpoint",), ["FILE", "--recipe", "without training"]),
        (("curves",), ["RUN...", "--out", "confident", "deviation", "seed"]),
    ],
)
def test_help(cli, command, fragments):
    code, out, _ = cli("reproduce", *command, "--help")
    assert code == 0
    for fragment in fragments:
        assert fragment in out


def test_settings_as_words_or_as_a_dictionary():
    def settings(before):
        return reproduction.with_setting(Request(settings=before), "b", 2).settings

    assert settings(["a=1"]) == ["a=1", "b=2"]
    assert settings({"a": 1, "b": 1}) == {"a": 1, "b": 2}
    assert json.loads(json.dumps(reproduction.share(86.98))) == 0.8698
