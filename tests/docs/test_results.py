"""The folder results: small, complete, and its splits are those that the package draws."""

import json

import pytest
from doc_tables import ROOT

from comatch.commands.report import runs, tuning
from comatch.data import sources, splits
from comatch.data.config import DataConfig
from comatch.files import read_json

RESULTS = ROOT / "results"
RUNS = sorted(path.parent for path in RESULTS.rglob("config.json"))


def test_the_folder_stays_small():
    files = [path for path in RESULTS.rglob("*") if path.is_file()]
    assert len(files) <= 300
    assert sum(path.stat().st_size for path in files) <= 5e6


def split_of(run):
    """The file that says which images of this run were labelled."""
    summary = read_json(run / "summary.json")
    data = summary["data"].rpartition("/")[2]
    return RESULTS / "splits" / f"{data}-{summary['labels']}-seed{summary['seed']}.json"


@pytest.mark.parametrize("run", RUNS, ids=lambda run: "/".join(run.parts[-2:]))
def test_a_reported_run_is_complete(run):
    for name in ("config.json", "environment.json", "metrics.jsonl", "summary.json"):
        assert (run / name).exists(), name
    summary, split = read_json(run / "summary.json"), read_json(split_of(run))
    assert len(split["labelled"]) == summary["labels"]
    assert set(split["labelled"].values()) <= set(split["classes"])
    last = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][-1]
    assert (last["step"], last["top1"]) == (summary["steps"], summary["top1"])


def test_every_split_belongs_to_a_run():
    assert set((RESULTS / "splits").iterdir()) == {split_of(run) for run in RUNS}


@pytest.mark.parametrize("seed", range(3))
def test_splits_of_digits_are_drawn_again(seed):
    dataset = sources.load("digits", RESULTS, 16, progress=False)
    again = splits.make(dataset, DataConfig(data="digits", labels=40, image_size=16), seed)
    recorded = read_json(RESULTS / "splits" / f"digits-40-seed{seed}.json")
    assert json.loads(json.dumps(splits.to_json(again, dataset))).items() >= recorded.items()


def test_tuning_runs_have_all_columns():
    rows = tuning.read(RESULTS / "tuning.csv")
    assert rows
    for row in rows:
        assert row["validation"] or row["test"]
        for name in ("group", "run", "seed", "commit", "steps", "planned"):
            assert row[name], row


def test_reported_runs_are_found():
    assert runs.find_all([RESULTS]) == RUNS
