"""Linear classifiers on features: draws, costs, scores, and resuming."""

import csv
import dataclasses
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from sklearn.svm import LinearSVC
from torch.nn.functional import normalize
from torch.nn.functional import one_hot as one_hot_of

import comatch
from comatch.commands.reproduce import paper
from comatch.commands.transfer import encoders, features
from comatch.commands.transfer import linear as linear_module
from comatch.commands.transfer.benchmark import Benchmark, open_benchmark
from comatch.commands.transfer.linear import (
    COSTS,
    LinearTest,
    choose_cost,
    draw,
    linear,
    make_folds,
)
from comatch.commands.transfer.record import Record
from comatch.errors import UserError
from comatch.types import Images
from commands.transfer.test_voc2007 import LISTS, write_part
from helpers import TINY

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A tiny run on digits."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    options = {"steps": 2, "device": "cpu", "progress": False, "settings": TINY}
    return comatch.train("digits", labels=10, out=folder, **options).path


@pytest.fixture
def run(trained, tmp_path, monkeypatch):
    """A copy of the run in the current folder."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained, "run")
    return "run"


def transfer(data, *names, **more):
    test = LinearTest(data, names, out="out", **{"device": "cpu", "progress": False, **more})
    return linear(test)


def toy(y, multi_label=False):
    """A benchmark whose images do not matter, only its targets."""
    rows = torch.arange(len(y))
    part = Images(torch.zeros(len(y), 3, 1, 1), rows, list(map(str, rows.tolist())))
    names = [f"class {c}" for c in range(y.shape[1])]
    return Benchmark("toy", names, part, y, part, y, multi_label)


def one_hot(labels):
    return 2 * one_hot_of(torch.as_tensor(labels)) - 1


# -------------------------------------------------------------------------------- draws and costs


def test_a_draw_has_equally_many_images_of_each_class_and_depends_on_the_seed():
    benchmark = toy(one_hot([0, 1, 2] * 20))
    rows = draw(benchmark, 5, seed=0)
    assert (benchmark.train_y[rows] > 0).sum(0).tolist() == [5, 5, 5]
    assert torch.equal(rows, draw(benchmark, 5, seed=0))
    assert not torch.equal(rows, draw(benchmark, 5, seed=1))
    assert torch.equal(draw(benchmark, None, seed=0), torch.arange(60))


def test_an_image_of_two_classes_is_drawn_once():
    y = torch.tensor([[1, 1], [1, 1], [-1, -1]])
    assert draw(toy(y, multi_label=True), 2, seed=0).tolist() == [0, 1]


def test_a_class_with_too_few_images_is_an_error():
    with pytest.raises(
        UserError, match=r"'class 1' of toy has 1 training images.*leave 2 out of --shots"
    ):
        draw(toy(one_hot([0, 0, 1])), 2, seed=0)


def test_all_images_are_drawn_once():
    test = LinearTest("digits", ["random"], shots=[2, None], repeats=3)
    assert test.jobs() == [(2, 0), (2, 1), (2, 2), (None, 0)]


def test_folds_are_stratified():
    y = one_hot([0] * 6 + [1] * 9)
    part = make_folds(y, 3, seed=0)
    counts = [
        [(part[:6] == fold).sum().item(), (part[6:] == fold).sum().item()] for fold in range(3)
    ]
    assert counts == [[2, 3]] * 3


@pytest.mark.parametrize("spread", [0.02, 0.3, 3.0])
def test_the_cost_has_the_best_score_in_cross_validation(spread):
    """The reference implementation is scikit-learn, one fold and one cost at a time."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.tensor([0, 1, 2] * 15)
    y = one_hot(labels).double()
    x = torch.randn(3, 12, generator=generator)[labels] * spread
    x = normalize(x + 1 + torch.randn(45, 12, generator=generator) / 2, dim=1).double()
    part = make_folds(y, 3, seed=4).numpy()

    def reference(cost):
        machine = LinearSVC(C=cost, dual=False, tol=1e-9, max_iter=100_000)
        scores = []
        for fold in range(3):
            rest, held = part != fold, part == fold
            scores.append(machine.fit(x[rest], labels[rest]).score(x[held], labels[held]))
        return round(sum(scores), 9)

    best = max(map(reference, COSTS))
    chosen = next(cost for cost in COSTS if reference(cost) == best)
    assert choose_cost(toy(y), x, y, seed=4) == chosen


def test_with_one_image_a_class_the_cost_is_the_default():
    y = one_hot([0, 1]).double()
    assert choose_cost(toy(y), y, y, seed=0) == 1.0


def test_average_precision_ignores_difficult_images():
    """By hand: the two positive images are the first and the third of the three that count."""
    benchmark = toy(torch.tensor([[1], [-1], [1], [0]]), multi_label=True)
    decisions = torch.tensor([[0.9], [0.5], [0.1], [0.7]])
    assert benchmark.score(decisions, benchmark.test_y) == pytest.approx((1 / 1 + 2 / 3) / 2)


def test_interpolated_average_precision_by_hand():
    """Precision after each positive image is 1, 2/4 and 3/5; at a recall of 2/3, 3/5 is higher."""
    targets = torch.tensor([[1], [-1], [-1], [1], [1], [-1]])
    decisions = torch.tensor([[0.9], [0.8], [0.7], [0.6], [0.5], [0.4]])
    benchmark = dataclasses.replace(toy(targets, multi_label=True), protocol="pcl")
    assert benchmark.score(decisions, targets) == pytest.approx((1 + 3 / 5 + 3 / 5) / 3)
    strict = toy(targets, multi_label=True).score(decisions, targets)
    assert strict == pytest.approx((1 + 2 / 4 + 3 / 5) / 3)


# ---------------------------------------------------------------------------------- whole runs


def test_a_run_and_a_random_network(run):
    found = transfer("digits", run, "random", shots=[2, None], repeats=2)
    assert [line[0] for line in found.lines()] == ["accuracy %", "run", "random wrn-10-1"]
    assert found.lines()[0][1:] == ["2", "all"]
    jobs = [(2, 0, 20), (2, 1, 20), (None, 0, 1438)]
    assert [(f.encoder, f.shots, f.seed, f.images) for f in found.figures] == [
        (name, *job) for name in ("run", "random wrn-10-1") for job in jobs
    ]
    best = {f.encoder: f.score for f in found.figures if f.shots is None}
    assert min(best.values()) > 0.7  # even random features separate the digits well
    assert best["run"] != best["random wrn-10-1"]

    lines = list(csv.DictReader((Path("out") / "linear.csv").open()))
    assert [float(line["score"]) for line in lines] == [f.score for f in found.figures]
    markdown = (Path("out") / "linear.md").read_text()
    assert f"| run | {found.text('run', 2)} | {found.text('run', None)} |" in markdown
    assert "(n=2)" in found.text("run", 2)


def test_the_features_are_those_of_the_encoder(run):
    encoder = encoders.load_encoder(run, encoders.PUBLISHED, "cpu")
    benchmark = open_benchmark("digits", Path("data"), encoder.image_size)
    store = features.Store(Path("some.safetensors"), "key")
    wanted = torch.tensor([5, 3, 700])
    features.encode(store, encoder, benchmark.train, wanted, progress=False)
    rows, x = store.get(wanted)
    assert rows.tolist() == [5, 3, 700]
    classifier = comatch.load(run, "cpu")
    pixels = benchmark.train.images[wanted].float() / 255
    mean, std = (v[:, None, None] for v in (classifier.mean, classifier.std))
    with torch.no_grad():
        truth = classifier.net.encoder((pixels - mean) / std)
    truth = normalize(truth.double(), dim=1)
    assert torch.allclose(x, truth, atol=1e-5)


def watch_encoding(monkeypatch, before):
    """Call `before` with all images that an encoder is about to see."""
    make = features.feature_function

    def watched(encoder):
        compute = make(encoder)

        def call(images):
            before(images)
            return compute(images)

        return call

    monkeypatch.setattr(features, "feature_function", watched)


def test_existing_results_are_not_computed_again_and_new_ones_are_added(run, monkeypatch):
    transfer("digits", run, shots=[1], repeats=1)
    encoded = []
    watch_encoding(monkeypatch, lambda images: encoded.append(len(images)))
    before = transfer("digits", run, shots=[1], repeats=1).figures
    assert not encoded
    more = transfer("digits", run, shots=[1, 2], repeats=1).figures
    assert more[0] == before[0]
    assert [f.shots for f in more] == [1, 2]
    assert 0 < sum(encoded) <= 20  # those images of the new draw that the old one does not have


def test_ctrl_c_keeps_the_features_computed_so_far(run, monkeypatch):
    whole = transfer("digits", run, shots=[1], repeats=3)
    for file in Path("out").rglob("*.*"):
        file.unlink()
    monkeypatch.setattr(features, "AT_ONCE", 60)
    calls = []

    def press(images):
        calls.append(len(images))
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    watch_encoding(monkeypatch, press)
    with pytest.raises(KeyboardInterrupt):
        transfer("digits", run, shots=[1], repeats=3)
    assert len(calls) == 3  # it stops after the current piece
    assert transfer("digits", run, shots=[1], repeats=3).figures == whole.figures
    benchmark = open_benchmark("digits", Path("data"), 8)
    drawn = torch.cat([draw(benchmark, 1, seed) for seed in range(3)]).unique()
    assert sum(calls) == len(drawn) + 359  # no image was encoded twice


def test_a_killed_test_is_resumed(run, monkeypatch):
    whole = transfer("digits", run, shots=[1], repeats=3)
    for file in Path("out").rglob("*.*"):
        file.unlink()
    monkeypatch.setattr(features, "SAVE_AFTER", 100)
    monkeypatch.setattr(features, "AT_ONCE", 60)
    calls = []

    def stop(images):
        calls.append(len(images))
        if len(calls) == 5:
            raise RuntimeError

    watch_encoding(monkeypatch, stop)
    with pytest.raises(RuntimeError):
        transfer("digits", run, shots=[1], repeats=3)
    again = transfer("digits", run, shots=[1], repeats=3)
    assert again.figures == whole.figures
    assert sum(calls) < 30 + 359 + 60 + 60  # at most two pieces were encoded twice


def test_the_feature_file_is_rewritten_rarely(run, monkeypatch):
    monkeypatch.setattr(features, "SAVE_AFTER", 10)
    monkeypatch.setattr(features, "AT_ONCE", 10)
    saved, add = [], features.Store.add
    monkeypatch.setattr(
        features.Store, "add", lambda self, *new: add(self, *new) or saved.append(len(self.rows))
    )
    transfer("digits", run, shots=[None])
    train, test = saved[: saved.index(1438) + 1], saved[saved.index(1438) + 1 :]
    assert test[-1] == 359
    assert train[:4] == [10, 20, 30, 40]
    assert sum(train) < 6 * 1438  # a save every ten images would be seventy times as much


def test_results_of_other_weights_under_the_same_name_are_dropped(run):
    first = transfer("digits", run, shots=[1], repeats=1).figures
    net = comatch.load(run, "cpu").net
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn_like(parameter) * parameter.std())
    save_file(net.state_dict(), f"{run}/model.safetensors")
    with pytest.warns(UserWarning, match="run has changed: 1 results are dropped"):
        second = transfer("digits", run, shots=[1], repeats=1).figures
    assert len(second) == 1
    assert second[0].digest != first[0].digest


@pytest.mark.parametrize("stem", ["small", "half"])
def test_the_digest_includes_the_architecture(stem):
    """Stems of different stride have the same weights. Older runs do not record `resize`."""
    default = {**encoders.PUBLISHED, "net": "resnet18", "image_size": 32}
    del default["resize"]
    auto, other = (
        encoders.load_encoder("random", {**default, "stem": s}, "cpu") for s in ("auto", stem)
    )
    assert auto.resize == 32
    assert (auto.digest() == other.digest()) == (stem == "small")  # auto means small for 32 pixels


def test_results_of_other_rules_are_not_mixed(run, monkeypatch):
    transfer("digits", run, shots=[1], repeats=1)
    monkeypatch.setattr(linear_module, "RULES", "2")
    with pytest.raises(UserError, match=r"other images, labels or rules"):
        transfer("digits", run, shots=[2], repeats=1)


def test_too_many_features_are_an_error(run, monkeypatch):
    monkeypatch.setattr(linear_module, "MOST_BYTES", 100_000)
    transfer("digits", run, shots=[1], repeats=1)
    with pytest.raises(UserError, match=r"features of 1,438 images.*leave all out of --shots"):
        transfer("digits", run)


def test_the_number_of_test_images_is_recorded(run, images):
    (images / "test" / "lying" / "0.png").write_bytes(b"no image")
    with pytest.warns(UserWarning, match="1 images cannot be read"):
        found = transfer(str(images), run, shots=[2], repeats=1)
    assert found.figures[0].tested == 7  # of 8


def test_timm_encoders_have_their_own_preprocessing():
    described = encoders.describe_timm("timm:vit_tiny_patch16_224.augreg_in21k", "resnet50")
    assert described["net"] == "vit_tiny_patch16_224"
    assert (described["image_size"], described["resize"]) == (224, 256)
    assert described["mean"] == described["std"] == (0.5, 0.5, 0.5)
    assert encoders.describe_timm("timm", "resnet18")["net"] == "resnet18"
    assert encoders.describe_timm("timm:nothing", "resnet18") == encoders.PUBLISHED | {
        "net": "nothing"
    }


def test_the_papers_figures_need_the_same_measure():
    def published(data, measure):
        return Record(data, "", measure, [], []).published

    assert published("voc2007", "mean average precision")
    assert published("Places205", "accuracy")
    assert not published("voc2007", "accuracy")  # a folder of this name
    assert not published("digits", "accuracy")


def test_other_data_in_the_same_folder_are_an_error(run, images):
    transfer("digits", run, shots=[1], repeats=1)
    with pytest.raises(UserError, match=r"out holds results on digits.*choose another --out"):
        transfer(str(images), run, shots=[1], repeats=1)


def test_changed_images_are_an_error(run, images):
    transfer(str(images), run, shots=[1], repeats=1)
    changed = next((images / "test").rglob("*.png"))
    changed.write_bytes(changed.read_bytes() + bytes(10))
    with pytest.raises(
        UserError, match=r"with other images, labels or rules: choose another --out"
    ):
        transfer(str(images), run, shots=[1], repeats=1)


def test_unreadable_images_of_a_folder_are_left_out(run, images):
    (images / "standing" / "0.png").write_bytes(b"no image")
    with pytest.warns(UserWarning, match="1 images cannot be read"):
        found = transfer(str(images), run, shots=[None])
    assert found.figures[0].images == 23  # of 24 with a label
    assert transfer(str(images), run, shots=[None]).figures == found.figures


def test_an_unreadable_image_may_be_the_only_missing_one(run, images):
    (images / "standing" / "0.png").write_bytes(b"no image")
    encoder = encoders.load_encoder(run, encoders.PUBLISHED, "cpu")
    part = open_benchmark(str(images), Path("data"), encoder.image_size).train
    bad = part.names.index("standing/0.png")
    store = features.Store(Path("some.safetensors"), "key")
    with pytest.raises(UserError, match="none of 1 images can be read"):
        features.encode(store, encoder, part, torch.tensor([bad]), progress=False)
    others = torch.tensor([row for row in range(len(part)) if row != bad])
    features.encode(store, encoder, part, others, progress=False)
    with pytest.warns(UserWarning, match="1 images cannot be read"):
        features.encode(store, encoder, part, torch.tensor([bad]), progress=False)
    assert not len(store.missing(torch.arange(len(part))))
    assert torch.equal(store.get(torch.arange(len(part)))[0], others)


def test_a_file_of_weights_has_the_network_of_the_first_run(run):
    weights = comatch.load(run, "cpu").net.encoder.state_dict()
    save_file(weights, "weights.safetensors")
    found = transfer("digits", run, "weights.safetensors", shots=[2], repeats=1)
    assert found.figures[0].score == found.figures[1].score
    save_file(dict(list(weights.items())[3:]), "part.safetensors")
    with pytest.raises(UserError, match=r"part.safetensors is no whole encoder"):
        transfer("digits", run, "part.safetensors", shots=[2], repeats=1)


def test_voc_is_multi_label_and_has_the_papers_figures(run, tmp_path):
    for part in LISTS:
        write_part(tmp_path / "data", part)
    found = transfer("voc2007", run, shots=[1, None], repeats=1)
    lines = found.lines()
    assert lines[0][0] == "mean average precision %"
    assert lines[1] == ["paper: supervised", "", "87.12"]
    assert lines[-1][0] == "run"
    assert len(lines) == 1 + len(paper.TRANSFER["voc2007"]) + 1
    assert all(0.5 <= f.score <= 1 for f in found.figures)  # two images, one of them positive


def test_the_protocol_of_pcl(run, tmp_path):
    """Difficult images are negatives, so the difficult cat is one; results are kept apart."""
    for part in LISTS:
        write_part(tmp_path / "data", part)
    benchmarks = [
        open_benchmark("voc2007", tmp_path / "data", 8, False, p) for p in ("strict", "pcl")
    ]
    strict, pcl = benchmarks
    assert strict.train_y.tolist() == [[1, 1], [-1, -1], [0, 1]]
    assert pcl.train_y.tolist() == [[1, 1], [-1, -1], [-1, 1]]
    assert (strict.positive_weight, pcl.positive_weight) == (1, 2)
    found = transfer("voc2007", run, shots=[1], repeats=1, protocol="pcl")
    assert found.lines()[0][0] == "mean average precision (protocol of PCL) %"
    assert found.lines()[1][0] == "paper: supervised"
    with pytest.raises(UserError, match="other images, labels or rules"):
        transfer("voc2007", run, shots=[1], repeats=1)
    assert LinearTest("voc2007", ["random"], protocol="pcl").folder.name == "transfer-voc2007-pcl"
    with pytest.raises(UserError, match="--protocol pcl is for voc2007, not for digits"):
        LinearTest("digits", ["random"], protocol="pcl")
    with pytest.raises(UserError, match="unknown protocol 'plc': did you mean 'pcl'"):
        LinearTest("voc2007", ["random"], protocol="plc")


@pytest.mark.cuda
def test_the_gpu_gives_the_same_scores(run):
    test = LinearTest("digits", [run], [4], out="gpu", device="cuda", progress=False)
    on_cpu = transfer("digits", run, shots=[4]).figures
    for one, other in zip(linear(test).figures, on_cpu, strict=True):
        assert one.score == pytest.approx(other.score, abs=0.02)


# ------------------------------------------------------------------------------ the command line


def test_the_command_prints_the_table_and_its_folder(run, cli):
    words = ("digits", f"{run}/", "--shots", "1,all", "--device", "cpu")
    code, printed, _ = cli("transfer", "linear", *words)
    assert code == 0
    assert "digits, by images a class" in printed
    assert "runs/transfer-digits" in printed
    record = json.loads(Path("runs/transfer-digits/figures.json").read_text())
    assert {figure["shots"] for figure in record["figures"]} == {1, None}
    assert {figure["encoder"] for figure in record["figures"]} == {run}
    code, again, _ = cli("report", "runs/transfer-digits/figures.json")
    assert code == 0
    assert again.strip() == printed.partition("results and tables")[0].strip()


def test_names_in_brackets_are_not_markup(run, images, cli):
    Path(run).rename("my [dim]")
    images.rename("a [bold]")
    words = ("a [bold]", "my [dim]", "--shots", "1", "--repeats", "1", "--out", "out [x]")
    code, printed, _ = cli("transfer", "linear", *words, "--device", "cpu")
    assert code == 0
    for name in ("a [bold], by", "my [dim]", "tables: out [x]"):
        assert name in printed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("digits", "nowhere"), "nowhere does not exist: give run folders"),
        (("digits", "random", "--shots", "four"), "--shots four: write whole numbers"),
        (("digits", "random", "--shots", "0"), "each number of images must be at least 1"),
        (("digits", "random", "--repeats", "0"), "repeats=0: must be at least 1"),
        (("nothing", "random"), "neither a folder nor a known source"),
    ],
)
def test_mistakes_are_one_line(cli, words, said, monkeypatch):
    monkeypatch.setitem(encoders.PUBLISHED, "net", "wrn-10-1")
    monkeypatch.setitem(encoders.PUBLISHED, "image_size", 8)
    code, _, complaint = cli("transfer", "linear", *words, "--device", "cpu")
    assert code == 2
    assert said in complaint
    assert len(complaint.strip().splitlines()) == 1
