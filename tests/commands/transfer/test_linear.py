"""Linear classifiers on fixed features: draws, costs, figures, and that nothing is done twice."""

import csv
import json
import os
import signal
from pathlib import Path

import pytest
import torch
from commands.transfer.test_voc2007 import LISTS, write_part
from safetensors.torch import save_file
from sklearn.svm import LinearSVC
from torch.nn.functional import normalize
from torch.nn.functional import one_hot as one_hot_of

import comatch
from comatch.commands.reproduce import paper
from comatch.commands.transfer import encoders, features
from comatch.commands.transfer import linear as linear_module
from comatch.commands.transfer import record as transfers
from comatch.commands.transfer.benchmark import Benchmark, open_benchmark
from comatch.commands.transfer.linear import COSTS, choose_cost, deal, draw, jobs_for, linear
from comatch.errors import UserError
from comatch.types import Images
from helpers import TINY


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The smallest run there is, on digits."""
    monkeypatch.chdir(tmp_path)
    options = {"steps": 2, "device": "cpu", "progress": False, "settings": TINY}
    comatch.train("digits", labels=10, out="run", **options)
    return "run"


def transfer(data, *names, **more):
    return linear(data, names, out="out", device="cpu", progress=False, **more)


def toy(y, several=False):
    """A benchmark that is asked for targets only."""
    rows = torch.arange(len(y))
    part = Images(torch.zeros(len(y), 3, 1, 1), rows, list(map(str, rows.tolist())))
    names = [f"class {c}" for c in range(y.shape[1])]
    return Benchmark("toy", names, part, y, part, y, several)


def one_hot(labels):
    return 2 * one_hot_of(torch.as_tensor(labels)) - 1


# -------------------------------------------------------------------------------- draws and costs


def test_a_draw_has_as_many_of_each_class_and_another_seed_another_draw():
    benchmark = toy(one_hot([0, 1, 2] * 20))
    rows = draw(benchmark, 5, seed=0)
    assert (benchmark.train_y[rows] > 0).sum(0).tolist() == [5, 5, 5]
    assert torch.equal(rows, draw(benchmark, 5, seed=0))
    assert not torch.equal(rows, draw(benchmark, 5, seed=1))
    assert torch.equal(draw(benchmark, None, seed=0), torch.arange(60))


def test_a_image_of_two_classes_may_be_drawn_for_either_and_counts_once():
    y = torch.tensor([[1, 1], [1, 1], [-1, -1]])
    assert draw(toy(y, several=True), 2, seed=0).tolist() == [0, 1]


def test_a_class_with_too_few_images_is_told():
    with pytest.raises(UserError, match=r"'class 1' of toy has 1 images.*leave 2 out of --shots"):
        draw(toy(one_hot([0, 0, 1])), 2, seed=0)


def test_of_all_images_there_is_one_draw():
    assert jobs_for([2, None], 3) == [(2, 0), (2, 1), (2, 2), (None, 0)]


def test_folds_have_a_part_of_each_class():
    y = one_hot([0] * 6 + [1] * 9)
    part = deal(y, 3, seed=0)
    counts = [
        [(part[:6] == fold).sum().item(), (part[6:] == fold).sum().item()] for fold in range(3)
    ]
    assert counts == [[2, 3]] * 3


@pytest.mark.parametrize("spread", [0.02, 0.3, 3.0])
def test_the_cost_is_the_one_that_is_best_at_images_held_back(spread):
    """A slow twin: every fold and cost by scikit-learn, one after the other."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.tensor([0, 1, 2] * 15)
    y = one_hot(labels).double()
    x = torch.randn(3, 12, generator=generator)[labels] * spread
    x = normalize(x + 1 + torch.randn(45, 12, generator=generator) / 2, dim=1).double()
    part = deal(y, 3, seed=4).numpy()

    def twin(cost):
        machine = LinearSVC(C=cost, dual=False, tol=1e-9, max_iter=100_000)
        scores = []
        for fold in range(3):
            rest, held = part != fold, part == fold
            scores.append(machine.fit(x[rest], labels[rest]).score(x[held], labels[held]))
        return round(sum(scores), 9)

    best = max(map(twin, COSTS))
    chosen = next(cost for cost in COSTS if twin(cost) == best)  # of equals the least
    assert choose_cost(toy(y), x, y, seed=4) == chosen


def test_one_image_a_class_leaves_no_choice_of_a_cost():
    y = one_hot([0, 1]).double()
    assert choose_cost(toy(y), y, y, seed=0) == 1.0


def test_average_precision_leaves_out_what_is_hard_to_say():
    """By hand: of two images that show it, one is first and one is third of three that count."""
    benchmark = toy(torch.tensor([[1], [-1], [1], [0]]), several=True)
    decisions = torch.tensor([[0.9], [0.5], [0.1], [0.7]])
    assert benchmark.score(decisions, benchmark.test_y) == pytest.approx((1 / 1 + 2 / 3) / 2)


# ---------------------------------------------------------------------------------- the whole test


def test_a_run_and_a_network_that_has_learned_nothing(run):
    found = transfer("digits", run, "random", shots=[2, None], repeats=2)
    assert [line[0] for line in found.lines()] == ["accuracy %", "run", "random wrn-10-1"]
    assert found.lines()[0][1:] == ["2", "all"]
    jobs = [(2, 0, 20), (2, 1, 20), (None, 0, 1438)]
    assert [(f.encoder, f.shots, f.seed, f.images) for f in found.figures] == [
        (name, *job) for name in ("run", "random wrn-10-1") for job in jobs
    ]
    best = {f.encoder: f.score for f in found.figures if f.shots is None}
    assert min(best.values()) > 0.7  # ten classes: features of any network tell much of digits
    assert best["run"] != best["random wrn-10-1"]

    lines = list(csv.DictReader((Path("out") / "linear.csv").open()))
    assert [float(line["score"]) for line in lines] == [f.score for f in found.figures]
    markdown = (Path("out") / "linear.md").read_text()
    assert f"| run | {found.text('run', 2)} | {found.text('run', None)} |" in markdown
    assert "(n=2)" in found.text("run", 2)


def test_the_features_are_the_encoders_own(run):
    encoder = encoders.read(run, encoders.USUAL, "cpu")
    benchmark = open_benchmark("digits", Path("data"), encoder.image_size)
    store = features.Store(Path("some.safetensors"), "key")
    wanted = torch.tensor([5, 3, 700])
    features.see(store, encoder, benchmark.train, wanted, progress=False)
    rows, x = store.pick(wanted)
    assert rows.tolist() == [5, 3, 700]
    classifier = comatch.load(run, "cpu")
    pixels = benchmark.train.images[wanted].float() / 255
    mean, std = (v[:, None, None] for v in (classifier.mean, classifier.std))
    with torch.no_grad():
        truth = classifier.net.encoder((pixels - mean) / std)
    truth = normalize(truth.double(), dim=1)
    assert torch.allclose(x, truth, atol=1e-5)


def test_what_is_there_is_not_computed_again_and_more_is_added(run, monkeypatch):
    transfer("digits", run, shots=[1], repeats=1)
    looked = []
    see = features.evaluation.features
    monkeypatch.setattr(
        features.evaluation, "features", lambda *a: looked.append(len(a[1])) or see(*a)
    )
    before = transfer("digits", run, shots=[1], repeats=1).figures
    assert not looked
    more = transfer("digits", run, shots=[1, 2], repeats=1).figures
    assert more[0] == before[0]
    assert [f.shots for f in more] == [1, 2]
    assert 0 < sum(looked) <= 20  # of the new draw, what the old one did not have


def test_ctrl_c_keeps_every_image_that_was_looked_at(run, monkeypatch):
    whole = transfer("digits", run, shots=[1], repeats=3)
    for file in Path("out").rglob("*.*"):
        file.unlink()
    monkeypatch.setattr(features, "AT_ONCE", 60)
    see, calls = features.evaluation.features, []

    def pressing(*a):
        calls.append(len(a[1]))
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return see(*a)

    monkeypatch.setattr(features.evaluation, "features", pressing)
    with pytest.raises(KeyboardInterrupt):
        transfer("digits", run, shots=[1], repeats=3)
    assert len(calls) == 3  # it ends after the piece at hand
    assert transfer("digits", run, shots=[1], repeats=3).figures == whole.figures
    benchmark = open_benchmark("digits", Path("data"), 8)
    drawn = torch.cat([draw(benchmark, 1, seed) for seed in range(3)]).unique()
    assert sum(calls) == len(drawn) + 359  # no image was looked at twice


def test_a_killed_test_goes_on(run, monkeypatch):
    whole = transfer("digits", run, shots=[1], repeats=3)
    for file in Path("out").rglob("*.*"):
        file.unlink()
    monkeypatch.setattr(features, "SAVE_AFTER", 100)
    monkeypatch.setattr(features, "AT_ONCE", 60)
    see, calls = features.evaluation.features, []

    def stopping(*a):
        calls.append(len(a[1]))
        if len(calls) == 5:
            raise RuntimeError
        return see(*a)

    monkeypatch.setattr(features.evaluation, "features", stopping)
    with pytest.raises(RuntimeError):
        transfer("digits", run, shots=[1], repeats=3)
    again = transfer("digits", run, shots=[1], repeats=3)
    assert again.figures == whole.figures
    assert sum(calls) < 30 + 359 + 60 + 60  # at most two pieces were looked at twice


def test_many_features_are_not_written_again_and_again(run, monkeypatch):
    monkeypatch.setattr(features, "SAVE_AFTER", 10)
    monkeypatch.setattr(features, "AT_ONCE", 10)
    kept, add = [], features.Store.add
    monkeypatch.setattr(
        features.Store, "add", lambda self, *new: add(self, *new) or kept.append(len(self.rows))
    )
    transfer("digits", run, shots=[None])
    train, test = kept[: kept.index(1438) + 1], kept[kept.index(1438) + 1 :]
    assert test[-1] == 359
    assert train[:4] == [10, 20, 30, 40]
    assert sum(train) < 6 * 1438  # in steps of ten it would be seventy times as much


def test_other_weights_under_the_same_name_are_another_encoder(run):
    first = transfer("digits", run, shots=[1], repeats=1).figures
    net = comatch.load(run, "cpu").net
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn_like(parameter) * parameter.std())
    save_file(net.state_dict(), f"{run}/model.safetensors")
    with pytest.warns(UserWarning, match="run is not what it was: 1 figures are dropped"):
        second = transfer("digits", run, shots=[1], repeats=1).figures
    assert len(second) == 1
    assert second[0].digest != first[0].digest


@pytest.mark.parametrize("stem", ["small", "half"])
def test_the_same_weights_in_another_network_are_another_encoder(stem):
    """Stems of different stride have the same weights; older runs do not say `resize`."""
    like = {**encoders.USUAL, "net": "resnet18", "image_size": 32}
    del like["resize"]
    auto, other = (encoders.read("random", {**like, "stem": s}, "cpu") for s in ("auto", stem))
    assert auto.side == 32
    assert (auto.digest() == other.digest()) == (stem == "small")  # which auto is, for 32 pixels


def test_figures_made_by_other_rules_are_not_mixed_with_these(run, monkeypatch):
    transfer("digits", run, shots=[1], repeats=1)
    monkeypatch.setattr(linear_module, "RULES", "2")
    with pytest.raises(UserError, match=r"other images, labels or rules"):
        transfer("digits", run, shots=[2], repeats=1)


def test_more_features_than_an_svm_can_take_are_told(run, monkeypatch):
    monkeypatch.setattr(linear_module, "MOST_BYTES", 100_000)
    transfer("digits", run, shots=[1], repeats=1)
    with pytest.raises(UserError, match=r"features of 1,438 images.*leave all out of --shots"):
        transfer("digits", run)


def test_how_many_were_asked_about_is_written_down(run, images):
    (images / "test" / "lying" / "0.png").write_bytes(b"no image")
    with pytest.warns(UserWarning, match="1 images cannot be read"):
        found = transfer(str(images), run, shots=[2], repeats=1)
    assert found.figures[0].tested == 7  # of 8


def test_networks_of_timm_see_images_as_they_did_in_training():
    described = encoders.of_timm("timm:vit_tiny_patch16_224.augreg_in21k", "resnet50")
    assert described["net"] == "vit_tiny_patch16_224"
    assert (described["image_size"], described["resize"]) == (224, 256)
    assert described["mean"] == described["std"] == (0.5, 0.5, 0.5)
    assert encoders.of_timm("timm", "resnet18")["net"] == "resnet18"
    assert encoders.of_timm("timm:nothing", "resnet18") == encoders.USUAL | {"net": "nothing"}


def test_the_papers_figures_are_only_beside_the_same_measure():
    def found(data, measure):
        return transfers.Transfer(data, "", measure, [], [])

    assert found("voc2007", "mean average precision").theirs
    assert found("Places205", "accuracy").theirs
    assert not found("voc2007", "accuracy").theirs  # a folder that is called so
    assert not found("digits", "accuracy").theirs


def test_other_data_in_the_same_folder_are_told(run, images):
    transfer("digits", run, shots=[1], repeats=1)
    with pytest.raises(UserError, match=r"out holds figures of digits.*choose another --out"):
        transfer(str(images), run, shots=[1], repeats=1)


def test_other_images_of_the_same_names_are_told(run, images):
    transfer(str(images), run, shots=[1], repeats=1)
    changed = next((images / "test").rglob("*.png"))
    changed.write_bytes(changed.read_bytes() + bytes(10))
    with pytest.raises(
        UserError, match=r"with other images, labels or rules: choose another --out"
    ):
        transfer(str(images), run, shots=[1], repeats=1)


def test_a_folder_of_images_is_read_as_the_run_sees_it(run, images):
    (images / "standing" / "0.png").write_bytes(b"no image")
    with pytest.warns(UserWarning, match="1 images cannot be read"):
        found = transfer(str(images), run, shots=[None])
    assert found.figures[0].images == 23  # of 24 with a label
    assert transfer(str(images), run, shots=[None]).figures == found.figures


def test_a_image_that_cannot_be_read_may_be_the_only_new_one(run, images):
    (images / "standing" / "0.png").write_bytes(b"no image")
    encoder = encoders.read(run, encoders.USUAL, "cpu")
    part = open_benchmark(str(images), Path("data"), encoder.image_size).train
    bad = part.names.index("standing/0.png")
    store = features.Store(Path("some.safetensors"), "key")
    with pytest.raises(UserError, match="none of 1 images can be read"):
        features.see(store, encoder, part, torch.tensor([bad]), progress=False)
    others = torch.tensor([row for row in range(len(part)) if row != bad])
    features.see(store, encoder, part, others, progress=False)
    with pytest.warns(UserWarning, match="1 images cannot be read"):
        features.see(store, encoder, part, torch.tensor([bad]), progress=False)
    assert not len(store.missing(torch.arange(len(part))))
    assert torch.equal(store.pick(torch.arange(len(part)))[0], others)


def test_a_file_of_weights_is_for_a_network_like_the_first_run(run):
    weights = comatch.load(run, "cpu").net.encoder.state_dict()
    save_file(weights, "weights.safetensors")
    found = transfer("digits", run, "weights.safetensors", shots=[2], repeats=1)
    assert found.figures[0].score == found.figures[1].score
    save_file(dict(list(weights.items())[3:]), "part.safetensors")
    with pytest.raises(UserError, match=r"part.safetensors is no whole encoder"):
        transfer("digits", run, "part.safetensors", shots=[2], repeats=1)


def test_voc_has_several_classes_a_image_and_the_papers_figures(run, tmp_path):
    for part in LISTS:
        write_part(tmp_path / "data", part)
    found = transfer("voc2007", run, shots=[1, None], repeats=1)
    lines = found.lines()
    assert lines[0][0] == "mean average precision %"
    assert lines[1] == ["paper: supervised", "", "87.12"]
    assert lines[-1][0] == "run"
    assert len(lines) == 1 + len(paper.TRANSFER["voc2007"]) + 1
    assert all(0.5 <= f.score <= 1 for f in found.figures)  # two images, one of which is right


@pytest.mark.cuda
def test_on_a_gpu_it_is_the_same(run):
    there = linear("digits", [run], shots=[4], out="gpu", device="cuda", progress=False).figures
    here = transfer("digits", run, shots=[4]).figures
    for one, other in zip(there, here, strict=True):
        assert one.score == pytest.approx(other.score, abs=0.02)


# ------------------------------------------------------------------------------ the command line


def test_the_command_prints_the_table_and_where_it_is(run, cli):
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
    assert again.strip() == printed.partition("tables and figures")[0].strip()


def test_names_are_no_markup(run, images, cli):
    Path(run).rename("my [dim]")
    images.rename("a [bold]")
    words = ("a [bold]", "my [dim]", "--shots", "1", "--repeats", "1", "--out", "out [x]")
    code, printed, _ = cli("transfer", "linear", *words, "--device", "cpu")
    assert code == 0
    for name in ("a [bold], by", "my [dim]", "figures: out [x]"):
        assert name in printed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("digits", "nowhere"), "nowhere does not exist: give run folders"),
        (("digits", "random", "--shots", "four"), "--shots four: write whole numbers"),
        (("digits", "random", "--shots", "0"), "a class needs one image at least"),
        (("digits", "random", "--repeats", "0"), "repeats=0: must be at least 1"),
        (("nothing", "random"), "neither a folder nor a known source"),
    ],
)
def test_mistakes_are_one_line(cli, words, said, monkeypatch):
    monkeypatch.setitem(encoders.USUAL, "net", "wrn-10-1")
    monkeypatch.setitem(encoders.USUAL, "image_size", 8)
    code, _, complaint = cli("transfer", "linear", *words, "--device", "cpu")
    assert code == 2
    assert said in complaint
    assert len(complaint.strip().splitlines()) == 1
