"""docs/paper.md names files and functions that exist, and values that the recipes have."""

import ast
import dataclasses
import json
import re
import statistics
from functools import partial
from pathlib import Path

import pytest
import torch

import comatch
from comatch import methods, recipes
from comatch.commands.report import runs, tuning
from comatch.config import settings_of
from comatch.nets import WideResNet
from comatch.recipes import published as rivals
from comatch.types import Batch, Task

PACKAGE = Path(comatch.__file__).parent
DOCS = Path(__file__).parents[1] / "docs"
RESULTS = DOCS.parent / "results"
ROWS = [
    [cell.strip() for cell in line.strip("| \n").split(" | ")]
    for line in (DOCS / "paper.md").read_text().splitlines()
    if line.startswith("| ") and "---" not in line
]


def defined_names(path):
    """Functions, classes, methods and attributes of a file, methods as Class.method."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        for inner in ast.walk(node) if isinstance(node, ast.ClassDef) else ():
            if isinstance(inner, ast.FunctionDef):
                yield f"{node.name}.{inner.name}"
            elif isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
                yield f"{node.name}.{inner.attr}"


def test_files_and_names_exist():
    known = {name for path in PACKAGE.rglob("*.py") for name in defined_names(path)}
    settings = set(settings_of(recipes.get("cifar10", "comatch")))
    checked = 0
    for row in ROWS:
        for code in re.findall(r"`([^`]+)`", row[-1]):
            if code.endswith(".py"):
                assert (PACKAGE / code).exists(), code
            elif "=" not in code and code not in settings:
                assert code in known, code
            checked += 1
    assert checked > 40


@pytest.mark.parametrize(
    ("name", "column"),
    [("cifar10", 2), ("stl10", 3), ("imagenet-1pct", 4), ("imagenet-10pct", 5)],
)
def test_hyper_parameters_are_those_of_the_recipe(name, column):
    recipe = recipes.get(name)
    values = {k: getattr(p, k) for p in (recipe, recipe.method) for k in settings_of(p)}
    table = [row for row in ROWS if len(row) == 6 and row[1].startswith("`")]
    assert len(table) == 15
    for row in table:
        assert row[column] == str(values[row[1].strip("`")]), row


def test_figures_of_performance_are_those_that_were_measured():
    """What is written in words or in a table of one's own, beside the generated tables."""
    benchmarks = DOCS.parent / "benchmarks"
    step = json.loads((benchmarks / "cifar10-h200.json").read_text())["results"]
    assert f"step takes {step['ms']:.2f} ms" in (DOCS.parent / "README.md").read_text()
    page = (DOCS / "performance.md").read_text()
    arithmetic = step["gflop"] / 1e3 / step["ceilings"]["tflop_per_s"] * 1e3
    traffic = step["least_traffic_gb"] / 1e3 / step["ceilings"]["tb_per_s"] * 1e3
    assert f"would take {arithmetic:.1f} ms" in page
    assert f"least traffic {traffic:.1f} ms" in page
    names = {
        "forward": "forward",
        "gradient of the input": "input gradient",
        "gradient of the weight": "weight gradient",
    }
    measured = json.loads((benchmarks / "kernels-h200.json").read_text())["microseconds"]
    for row in measured:
        for words, name in names.items():
            ours, cudnn = row[f"fused: {name}"], row[f"cudnn: {name}"]
            assert f"| {words} | {ours} | {cudnn} |" in page
    for row in json.loads((benchmarks / "queue-h200.json").read_text())["rows"]:
        ways = (row[way] for way in ("chunked", "whole"))
        cells = (f"{way['ms']:.2f} ms | {way['peak_memory_mb']:,} MiB" for way in ways)
        assert f"| {row['queue']:,} | {' | '.join(cells)} |" in page


def test_figures_of_streaming_are_those_that_were_measured():
    benchmarks = DOCS.parent / "benchmarks"
    record = json.loads((benchmarks / "images-h200.json").read_text())
    step = json.loads((benchmarks / "resnet50-stream-h200.json").read_text())["results"]
    rate = record["images"]["images_per_s"]["read, decode, one view"]
    told = " ".join((DOCS.parent / "README.md").read_text().split())
    assert f"{rate:,.0f} images of 500 x 375 a second" in told
    assert f"{record['images']['ratio']:.2f} times what a plain DataLoader does" in told
    assert f"a step of ResNet-50 waits {step['waited_ms']:.1f} ms for them" in told


def logged(name, first, last, kind="train", folder="cifar10-fast-tuning"):
    """What a recorded run wrote after one step and up to another."""
    file = RESULTS / folder / name / "metrics.jsonl"
    every = (json.loads(line) for line in file.read_text().splitlines())
    return [one for one in every if one["kind"] == kind and first < one["step"] <= last]


def right(name, first, last, digits=0, **more):
    """Per cent of the pseudo-labels that were learned meanwhile, as the docs write it."""
    learned = [(o["confident"], o["pseudo_accuracy"]) for o in logged(name, first, last, **more)]
    return f"{100 * sum(n * p for n, p in learned) / sum(n for n, _ in learned):.{digits}f}"


def validation(name, step, **more):
    """Per cent of the validation images that were right then, as the docs write it."""
    (line,) = logged(name, step - 1, step, "eval", **more)
    return f"{100 * line['validation_top1']:.2f}"


@pytest.fixture
def told():
    """docs/fast.md in one line."""
    return " ".join((DOCS / "fast.md").read_text().split())


LONG = "cifar10-fast-tuning-32k"
long_logged, long_right, long_validation = (
    partial(of, folder=LONG) for of in (logged, right, validation)
)
BEST = [f"adaptive-trapezoid-hard-seed{seed}" for seed in (100, 101)]  # of the long ones
EARLY = "cifar10-fast-early"
early_logged, early_right, early_validation = (
    partial(of, folder=EARLY) for of in (logged, right, validation)
)
TO_4000 = (3000, 4000)
WARM = (100, 103, 104, 106)  # seeds in a schedule of 50,000 steps


def test_figures_of_tuning_are_those_that_were_measured(told):
    """What pseudo-labels and losses were on the way, for Muon and for SGD."""

    def early(name):
        (line,) = logged(f"{name}-seed100", 950, 1000)
        return [f"{100 * line[key]:.0f}" for key in ("confident", "pseudo_accuracy")]

    muon = [early(name) for name in ("muon", "muon-decay", "muon-hot")]
    (low, high), (worse, better) = ((min(part), max(part)) for part in zip(*muon, strict=True))
    assert f"{low} to {high} % of its pseudo-labels were confident" in told
    assert f"{worse} to {better} % of those right" in told
    assert "where SGD had {} % and {} %".format(*early("sgd")) in told
    once, twice, plain = (
        validation(f"muon-{name}-seed100", 10_000) for name in ("both", "twice", "hot")
    )
    assert f"end at {once} %, and {twice} % together, where the recipe has {plain} %" in told


def test_figures_of_the_recipe_s_long_runs_are_those_that_were_measured(told):
    """32,000 steps with the fixed threshold."""
    long, short = "fixed-seed101", "muon-hot-seed101"
    assert f"{long_right(long, 0, 2000)} % were right in the first 2,000 steps" in told
    assert f"steps and {long_right(long, 2000, 4000)} % in the next 2,000" in told
    assert f"it was {right(short, 0, 2000)} % and {right(short, 2000, 4000)} %" in told
    loss = long_logged(long, 1950, 2000)[0]["loss_x"]
    assert f"their loss is {loss:.3f} after 2,000 steps" in told
    end = "fixed-seed100"
    assert f"{long_right(end, 8000, 20_000)} % of them are right from step 8,000 to 20,000" in told
    before, after = (float(long_validation(end, step)) for step in (24_000, 32_000))
    assert f"the last 8,000 of 32,000 steps gain {after - before:.2f} points" in told
    windows = [(23_000, 24_000), (31_000, 32_000)]
    shares = [[line["confident"] for line in long_logged(end, *window)] for window in windows]
    learned = [f"{100 * sum(values) / len(values):.0f}" for values in shares]
    assert "are learned ({} %, then {} %)".format(*learned) in told
    correct = [long_right(end, *window, digits=1) for window in windows]
    assert "right ({} %, then {} %)".format(*correct) in told


def test_figures_of_the_best_long_runs_are_those_that_were_measured(told):
    """Hard labels, adaptive selection and what goes with it, 32,000 steps each."""
    hard, adaptive, fixed, soft = (
        " and ".join(long_validation(f"{name}-seed{seed}", 32_000) for seed in (100, 101))
        for name in ("adaptive-trapezoid-hard", "adaptive", "fixed", "soft")
    )
    folder = RESULTS / LONG
    chosen = [*sorted(folder.glob("fixed-*")), *sorted(folder.glob("adaptive-trapezoid-hard-*"))]
    _, recipe, best = (line[tuning.HEAD.index("validation %")] for line in tuning.table(chosen))
    assert f"have {best} % of the validation images right" in told
    assert f"where the recipe has {recipe}:" in told
    assert f"a learning rate that stays high: {hard} % (seeds 100 and 101)" in told
    with_hard, without = (f"adaptive-trapezoid{name}-seed101" for name in ("-hard", ""))
    assert f"all else the same, seed 101 ends at {long_validation(without, 32_000)} %" in told
    early, late = (
        (long_validation(with_hard, step), long_validation(without, step)) for step in (4000, 8000)
    )
    assert "at step 4,000 ({} %, and {} % without)".format(*early) in told
    assert "ahead at 8,000 ({} and {} %)".format(*late) in told
    first, later = (
        " and ".join(long_right(name, *window, digits=1) for name in BEST)
        for window in ((6000, 8000), (20_000, 22_000))
    )
    assert f"{first} % of them are right from step 6,000 to 8,000, and {later} % from" in told
    cosine = long_validation("adaptive-seed101", 32_000)
    assert (
        f"{long_validation(without, 32_000)} % with seed 101, where the cosine has {cosine}."
        in told
    )
    assert (
        f"it has {adaptive} % (seeds 100 and 101) where the fixed threshold has {fixed} %" in told
    )
    assert f"and soft selection {soft} %" in told
    windows = [(6000, 8000), (14_000, 16_000)]
    less, more = "adaptive-seed100", "adaptive-decay5-seed100"
    before, after = (long_right(less, *window, digits=1) for window in windows)
    assert f"{before} % of those that it learns are right from step 6,000 to 8,000 and" in told
    assert f"and {after} % from 14,000 to 16,000" in told
    strict = " and ".join(long_right("fixed-seed100", *window, digits=1) for window in windows)
    assert f"where the fixed threshold has {strict} %" in told
    assert f"seed 101 stays at {long_right('adaptive-seed101', 14_000, 20_000)} %" in told
    assert f"with adaptive selection: {long_validation(more, 32_000)} % with seed 100" in told
    late, early = (long_validation(name, 20_000) for name in (more, less))
    assert f"{late} % at step 20,000, where the lesser decay has {early} %" in told
    assert (
        f"{long_right(more, 18_000, 20_000)} % of them are right from step 18,000 to 20,000" in told
    )
    assert f"{long_right(more, 26_000, 28_000)} % from 26,000 to 28,000" in told


def test_figures_of_the_first_steps_are_those_that_were_measured(told):
    """Of runs that were stopped early, and what the learning rate does there."""
    names = [path.name for path in (RESULTS / EARLY).iterdir()]
    ends = [early_logged(name, 0, 50_000)[-1]["step"] for name in names]
    assert f"the first at step {min(ends):,}; the longest went on until {max(ends):,}." in told
    mixed_up = [
        early_right(f"{name}-seed105", 5000, 10_000) for name in ("hard", "late", "fixed", "slow")
    ]
    assert (
        "come to {}, {} and {} % of right pseudo-labels from step 5,000 on, where soft labels and "
        "the smaller learning rate come to {} %".format(*mixed_up)
        in told
    )
    slow, plain = (early_right(f"{name}-seed102", *TO_4000) for name in ("slow-soft", "late"))
    assert f"{slow} % of the pseudo-labels are right with that learning rate, and {plain} %" in told

    smaller = ["slow-soft-seed102", "slow-soft-seed103", "slow-soft-seed104", "slow-seed105"]
    figures = [early_validation(name, 4000) for name in smaller]
    assert "have {}, {}, {} and {} % of the validation images at step".format(*figures) in told
    figures = [early_validation(f"late-seed{seed}", 4000) for seed in (102, 103, 104, 105)]
    assert "where 0.05 has {}, {}, {} and {}.".format(*figures) in told
    then, end = (long_validation("slow-hard-seed105", step) for step in (20_000, 32_000))
    larger, larger_end = (
        " and ".join(long_validation(name, step) for name in BEST) for step in (20_000, 32_000)
    )
    assert f"{then} % at step 20,000, no less than the runs with 0.05 ({larger} %; seeds" in told
    assert f"ends at {end} % after 32,000, where they end at {larger_end} %" in told
    stuck, share = "slow-hard-seed101", partial(early_right, digits=1)
    assert share(stuck, 22_000, 24_000) == share(stuck, 18_000, 20_000)
    last = early_logged(stuck, 0, 50_000)[-1]["step"]
    assert f"stopped at step {last:,}, when {share(stuck, 22_000, 24_000)} % of its" in told
    half = early_validation("slower-late-seed105", 4000)
    assert f"slower and not better: {half} % at step 4,000" in told


def test_figures_of_a_learning_rate_that_rises_are_those_that_were_measured(told):
    """To the end, with thresholds by class, and on seven seeds."""
    long = "warm-seed102"
    warm, *best = (long_right(name, 13_000, 14_000, digits=1) for name in (long, *BEST))
    assert (
        f"With seed 102, {warm} % of the pseudo-labels are right from step 13,000 to 14,000, where "
        "the best runs of 32,000 steps have {} and {} %".format(*best)
        in told
    )
    end, *ends = (long_validation(name, 32_000) for name in (long, *BEST))
    assert f"it ends at {end} %, and they end at " + " and ".join(ends) in told
    before, after = (early_right("warm-seed101", n, n + 500) for n in (4000, 5000))
    assert f"({before} % right from step 4,000 to 4,500) and came apart on the way up" in told
    assert f"on the way up: {after} % from step 5,000 on" in told
    assert f"With seed 105, {early_right('warm-50k-seed105', *TO_4000)} % are right from" in told
    both = [f"warm-classwise-seed{seed}" for seed in (101, 105)]
    later = (early_right(name, 20_000, 21_000, digits=1) for name in both)
    assert "seeds 101 and 105 have {} and {} % from step 20,000 to 21,000".format(*later) in told
    four = (early_right(f"warm-classwise-50k-seed{n}", 10_000, 11_000) for n in WARM)
    assert "{}, {}, {} and {} % are right from step 10,000 to 11,000".format(*four) in told
    level = early_right("late-seed104", 5000, 6000)
    assert f"with seed 104, {level} % are right from step 5,000 to 6,000 if" in told

    apart = (early_right("warm-classwise-50k-seed103", n, n + 1000) for n in (5000, 8000))
    assert (
        "{} % of the pseudo-labels are right from step 5,000 to 6,000 and {} % from 8,000 to 9,000"
    ).format(*apart) in told
    soft, hard = (early_right("late-seed105", *steps) for steps in (TO_4000, (5000, 6200)))
    assert soft == hard
    assert f"at step 4,000, has {soft} % before and after" in told
    last, next_one = (
        early_right("warm-classwise-50k-seed104", n, n + 1000) for n in (9000, 10_000)
    )
    assert f"{last} % in the last thousand soft steps and {next_one} in the next" in told

    mine, adaptive = both[0], "warm-seed101"
    now, usual = (early_right(name, *TO_4000) for name in (mine, adaptive))
    assert f"{now} % of the pseudo-labels are right from step 3,000 to 4,000, where `adap" in told
    assert f"where `adaptive` has {usual}, and {early_right(mine, 5000, 5300)} % from 5,000" in told
    assert f"to 5,300, where it has {early_right(adaptive, 5000, 5300)}." in told
    half, whole = early_validation("warm-half-seed101", 8000), early_validation(mine, 4000)
    assert f"{half} % of the validation images at step 8,000 of 64,000, where there" in told
    assert f"of 64,000, where there are {whole} % at step 4,000 of 32,000" in told
    strong, weak = (early_right(name, 2000, 3000) for name in ("warm-strong-seed101", mine))
    assert f"they harm: {strong} % from step 2,000 to 3,000, where weak views have {weak}" in told


def test_confidence_tells_what_is_mixed_up_where_the_docs_say_so(told):
    """Over seeds: the more confident in the mean, the more pseudo-labels are right."""

    def shares(which, window):
        """How sure each run was, and how right."""
        found = [logged(run, *window, folder=folder) for folder, run in which]
        return [
            [statistics.mean(line[key] for line in lines) for lines in found]
            for key in ("usual_confidence", "pseudo_accuracy")
        ]

    slow = [(EARLY, f"slow-soft-seed{n}") for n in range(100, 105)] + [(EARLY, "slow-seed105")]
    assert f"is {statistics.correlation(*shares(slow, TO_4000)):.2f} from step 3,000 to" in told
    three = [(LONG, "warm-seed102"), *((EARLY, f"warm-classwise-seed{n}") for n in (101, 105))]
    four = [(EARLY, f"warm-classwise-50k-seed{n}") for n in WARM]
    for seeds in (three, four):
        found = statistics.correlation(*shares(seeds, (7000, 8000)))
        assert f"and {found:.2f} from step 7,000 to 8,000 in both schedules" in told
    sure, correct = shares([(EARLY, f"late-seed{n}") for n in (102, 103, 104, 105)], TO_4000)
    assert f"it is {statistics.correlation(sure, correct):.2f} from step 3,000 to 4,000" in told
    assert sure.index(max(sure)) == correct.index(min(correct))


def test_figures_of_what_failed_in_the_first_steps_are_those_that_were_measured(told):
    """Strong views of labelled images, contrast first, other thresholds, a teacher."""
    strong, smaller = (early_right(f"{one}strong-seed105", *TO_4000) for one in ("", "slow-"))
    weak = early_right("slow-seed105", *TO_4000)
    assert (
        f"{strong} % of the pseudo-labels are right from step 3,000 to 4,000, but {smaller} % "
        f"with 0.02, where weak views have {weak}." in told
    )
    first, plain = "first-seed105", "slow-hard-seed105"
    assert (
        f"But {early_right(first, 2000, 3000)} % of the pseudo-labels are right from step 2,000 to "
        f"3,000, where learning them from the start has {long_right(plain, 2000, 3000)} %" in told
    )
    figures = early_validation(first, 6000), long_validation(plain, 6000)
    assert "behind as well: {} and {} % of the validation images".format(*figures) in told
    fixed = early_right("slow-fixed-seed105", *TO_4000)
    low, high = long_right(plain, *TO_4000), early_right("slow-hard-50k-seed105", *TO_4000)
    assert f"{fixed} % of the pseudo-labels are right from step 3,000 to 4,000, where" in told
    assert f"where adaptive selection has {low} to {high} (seed 105" in told

    quick = " and ".join(early_right(f"quick-seed{seed}", *TO_4000) for seed in (100, 101))
    hard = [long_right(name, *TO_4000) for name in BEST]
    assert f"{quick} % of the pseudo-labels are right (seeds 100 and 101)" in told
    assert "where 0.999 has {} and {} %".format(*hard) in told
    now, before = (
        " and ".join(early_right(f"teacher-{name}-seed101", *steps) for name in ("weak", "joint"))
        for steps in (TO_4000, (2000, 3000))
    )
    assert f"But {now} % of these are right from step 3,000 to 4,000" in told
    assert f"it was {before} % in the thousand steps before" in told


def test_figures_of_digits_are_those_that_were_measured(told):
    """Labelled images in weak views and in strong ones, and thresholds by class, seed by seed."""
    weak, strong, classwise = (
        [
            validation(f"{name}-seed{seed}", 250, folder="digits-10-tuning")
            for seed in range(100, 115)
        ]
        for name in ("muon-adaptive", "muon-adaptive-strong", "muon-classwise")
    )
    order = sorted(zip(weak, strong, classwise, strict=True), key=lambda seed: float(seed[0]))
    (one, its, by_class), (other, others, others_by_class) = order[:2]
    assert f"which have {one} and {other} % in weak ones, come to {its} and {others} %" in told
    assert f"another, with {min(strong, key=float)} %" in told
    assert f"they come to {by_class} and {others_by_class} %, and again the mean" in told


def test_figures_of_several_starts_are_those_that_were_measured(told):
    """Eight sets of labels, four trainings of each: spread, and what the surest comes to."""
    folder, ends, sure = "digits-10-starts", [], {100: [], 150: [], 250: []}
    for labels in range(100, 108):
        names = [f"labels{labels}-seed{seed}" for seed in range(200, 204)]
        lines = [logged(name, 249, 250, "eval", folder)[0] for name in names]
        ends.append([100 * line["validation_top1"] for line in lines])
        for step, chosen in sure.items():
            lines = [logged(name, step - 1, step, folder=folder)[0] for name in names]
            confidence = [line["usual_confidence"] for line in lines]
            chosen.append(ends[-1][confidence.index(max(confidence))])
    within = statistics.mean(statistics.pstdev(four) for four in ends)
    between = statistics.pstdev(statistics.mean(four) for four in ends)
    assert f"deviate by {within:.1f} points from their mean" in told
    assert f"the eight means by {between:.1f} from theirs" in told
    early, later, last = (f"{statistics.mean(chosen):.2f}" for chosen in sure.values())
    every, best = (f"{statistics.mean(map(of, ends)):.2f}" for of in (statistics.mean, max))
    assert (
        f"at step 100 of 250 ends at {early} %, averaged over the eight, where all starts end at "
        f"{every} and the best of each four at {best}." in told
    )
    assert later == last
    assert f"At step 150 the choice is better, {later} %, and no better at the end" in told


def test_figures_of_the_run_alone_on_the_card_are_those_that_were_measured(told):
    """And of the one that was stopped."""
    folder = "cifar10-fast-hard"
    done, stopped = "comatch-seed0", "comatch-seed1"
    summary = json.loads((RESULTS / folder / done / "summary.json").read_text())
    session = json.loads((RESULTS / folder / done / "environment.json").read_text())["sessions"][0]
    assert f"took {summary['seconds']:.0f} s, of which {session['startup_seconds']:.0f}" in told
    assert f"({summary['seconds']:.0f} s alone on" in (DOCS.parent / "README.md").read_text()
    assert f"ends at {100 * summary['top1']:.2f} % on the test part" in told
    one, other = (right(name, 6000, 8000, folder=folder) for name in (stopped, done))
    assert f"{one} % of its pseudo-labels were right, where seed 0 had {other}," in told
    assert f"it was {right(stopped, 26_000, 28_000, folder=folder)} %, with" in told
    last = logged(stopped, 0, 50_000, "eval", folder)[-1]
    shown = f"{100 * last['top1']:.2f} %"
    assert f"{shown} on the test part at step {last['step']:,}." in told
    assert f"it had {shown} at step {last['step']:,}" in (RESULTS / "README.md").read_text()


def test_figures_of_the_reported_runs_are_those_that_were_measured(told):
    """Accuracy of `cifar10-fast` at both lengths, and its pseudo-labels on the way."""
    (row,) = runs.rows(sorted((RESULTS / "cifar10-fast").glob("comatch-seed*")))
    assert f"{row.steps:,} steps, which are less than six minutes, end at" in told
    assert f"end at {row.accuracy().split(' (')[0]} % on the test part" in told
    (row,) = runs.rows(sorted((RESULTS / "cifar10-fast-50k").glob("comatch-seed*")))
    assert f"`--steps {row.steps}`, which fit into ten, the same seeds end at" in told
    assert f"the same seeds end at {row.accuracy().split(' (')[0]} %" in told
    assert row.accuracy().replace(" (", " % (") in (DOCS.parent / "README.md").read_text()
    seeds = [f"comatch-seed{seed}" for seed in range(3)]
    tests = [logged(one, 35_999, 50_000, "eval", "cifar10-fast-50k") for one in seeds]
    middle, last = (", ".join(f"{100 * t[n]['top1']:.2f}" for t in tests) for n in (0, -1))
    assert "have {} and {} % after 36,000".format(*middle.rsplit(", ", 1)) in told
    assert "end at {} and {} %".format(*last.rsplit(", ", 1)) in told
    for folder in ("cifar10-fast", "cifar10-fast-50k"):
        share = [right(one, 12_000, 26_000, folder=folder) for one in seeds]
        assert "to 26,000 they are {}, {} and {} % with seeds 0, 1 and 2".format(*share) in told
    apart = [right(seeds[0], n, n + 1000, folder="cifar10-fast") for n in (4000, 9000)]
    assert (
        "{} % of the pseudo-labels are right from step 4,000 to 5,000 and {} % from".format(*apart)
        in told
    )


@pytest.mark.parametrize("name", methods.METHODS)
def test_every_method_has_its_page(name):
    """With its first line, its settings as they are, and every figure that it logs."""
    page = (DOCS / "methods" / f"{name}.md").read_text()
    method = methods.METHODS[name]
    assert page.startswith(f"# {name}\n\n{method.__doc__.splitlines()[0]}\n")
    for setting in dataclasses.fields(method.Config):
        row = f"| `{setting.name}` | {setting.default} | {setting.metadata['says']} |"
        assert row in page, row
    for data in ("cifar10", "stl10"):
        recipe = recipes.get(data, name)
        assert f"{recipe.steps:,} steps" in page
        assert name == "supervised" or f"`mu={recipe.mu}`" in page
        for key, value in rivals.ON_STL10.get(name, {}).items():
            assert f"`{key}={value}`" in page
    torch.manual_seed(0)
    batch = Batch(
        torch.randn(4, 3, 8, 8),
        torch.tensor([0, 1, 2, 0]),
        tuple(torch.randn(6, 3, 8, 8) for _ in method.views),
        torch.arange(6),
    )
    step = methods.build(methods.config(name), WideResNet(10, 1), Task(3, unlabelled=6))(batch)
    for metric in step.metrics:
        assert f"| `{metric}` |" in page, metric
    assert ("`pseudo_accuracy`" in page) == (step.pseudo_labels is not None)


def test_twice_as_many_steps_gain_what_the_readme_says():
    def accuracy(kind, folder, seed):
        path = RESULTS / "folder-five" / f"{folder}-{kind}-seed{seed}" / "summary.json"
        return json.loads(path.read_text())["validation_top1"]

    runs = [(folder, seed) for folder in ("five-a", "five-b") for seed in (100, 101)]
    gains = [accuracy("long", *run) - accuracy("plain", *run) for run in runs]
    assert min(gains) > 0
    assert 0.04 < statistics.mean(gains) < 0.05
    assert recipes.get("folder").steps == 1_000
    assert "a run takes 1,000 steps" in (DOCS.parent / "README.md").read_text()
