"""`comatch report --html`: one page about a run, whatever the run is like."""

import csv
import html.parser
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import comatch
from comatch.commands.report.page import charts, findings
from comatch.commands.report.page.answers import (
    LABELLED,
    NOT_LABELLED,
    TEST,
    Answers,
    with_classes,
)
from comatch.commands.report.page.pictures import DOT, Album
from comatch.data.copies import near_pairs
from comatch.types import Dataset, Images
from helpers import TINY, assert_one_line_error, make_images, read_json, rewrite_json

pytestmark = pytest.mark.slow
EVIL = "<script>document.title='changed'</script>"


class Page(html.parser.HTMLParser):
    """Elements, headings and texts of a page; scripts and styles are texts of their own."""

    def __init__(self, path):
        super().__init__()
        self.elements, self.text, self.scripts, self.inside = [], "", [], ""
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.inside = tag

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts.append(data)
        elif self.inside != "style":
            self.text += data

    def ids(self):
        return {attributes.get("id") for _, attributes in self.elements}

    def all(self, tag):
        return [attributes for kind, attributes in self.elements if kind == tag]


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    options = {"steps": 4, "device": "cpu", "settings": {**TINY, "mu": 1}, "progress": False}
    comatch.train(make_images(folder / "images"), out=folder / "run", **options)
    return folder


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained / "run", tmp_path / "run")


def made(cli, run, *words):
    code, out, err = cli("report", run, "--html", "report.html", "--overwrite", *words)
    assert code == 0, err
    assert "Traceback" not in err
    assert "report.html" in out
    return Page(Path("report.html"))


def test_a_page_has_every_section(cli, run):
    page = made(cli, run)
    sections = {
        *("data", "classes", "confusion", "calibration", "examples", "map", "labels", "copies"),
        *("unknown", "training", "settings", "reproduce"),
    }
    assert sections <= page.ids()
    top1 = read_json(run / "summary.json")["top1"]
    assert f"{top1:.1%}" in page.text
    assert "95 % confidence interval" in page.text
    assert len(page.all("circle")) >= 24 + 30 + 8


def test_a_page_needs_nothing_else(cli, run):
    page = made(cli, run)
    for tag, attributes in page.elements:
        for name in ("src", "href", "xlink:href"):
            assert re.match(r"data:image/jpeg;base64,|#|$", attributes.get(name) or ""), tag
    assert "url(" not in Path("report.html").read_text()


def test_images_have_texts_and_tables_have_heads(cli, run):
    page = made(cli, run)
    assert page.all("img")
    assert all("alt" in image for image in page.all("img"))
    assert len(page.all("th")) > 10
    assert all(head.get("scope") in ("col", "row") for head in page.all("th"))
    (language,) = page.all("html")
    assert language["lang"] == "en"


def test_names_cannot_run_scripts(cli, trained, tmp_path):
    images = make_images(tmp_path / "images", per_class=4, unlabelled=4)
    name = EVIL.replace("/", "\u2215")  # a file name has no slash
    (images / "standing").rename(images / f"{name}\"'&")
    (images / "test/standing").rename(images / f"test/{name}\"'&")
    (images / "lying/0.png").rename(images / f"lying/{name}.png")
    settings = {**TINY, "mu": 1, "batch": 4, "steps": 1}
    comatch.train(images, out=tmp_path / EVIL[:8], settings=settings, device="cpu", progress=False)
    run = tmp_path / EVIL[:8]
    (run / "folds").mkdir()
    with (run / "folds/2.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "label", "predicted", "probability"])
        table.writerow([f"lying/{EVIL}.png", "lying", f"{name}\"'&", "0.9"])
    page = made(cli, run)
    assert len(page.scripts) == 2  # the data of the map, and the program
    policy = next(m for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert "script-src 'sha256-" in policy["content"]
    assert name in page.text
    assert f"lying/{EVIL}.png" in page.text
    data = json.loads(page.scripts[0])
    assert any(name in point["name"] for point in data["points"])
    card = (run / "model_card.md").read_text()
    assert "<script" not in card


def test_nothing_is_overwritten_unasked(cli, run):
    words = ["report", run, "--html", "report.html"]
    assert cli(*words)[0] == 0
    card = run / "model_card.md"
    card.write_text("mine")
    assert_one_line_error(cli(*words), "report.html exists: add --overwrite")
    code, _, err = cli("report", run, "--html", "other.html")
    assert code == 0
    assert "has a model card already" in err
    assert card.read_text() == "mine"
    assert cli(*words, "--overwrite")[0] == 0
    assert card.read_text() != "mine"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--html", "a.pdf"], "ends in .html"),
        (["run", "run", "--html", "a.html"], "one run folder, not 2"),
        (["nowhere", "--html", "a.html"], "there is no run folder nowhere"),
        ([".", "--html", "a.html"], "not a run folder"),
        (["run", "--html", "a.html", "--markdown"], "--markdown"),
        (["run", "--overwrite"], "--overwrite is for --html"),
        (["run", "--html", "nowhere/a.html"], "cannot write nowhere"),
    ],
)
def test_what_cannot_be_done_is_an_error(cli, run, words, message):
    assert_one_line_error(cli("report", *words), message)


def test_a_run_without_a_test_part(cli, tmp_path):
    images = make_images(tmp_path / "images", per_class=4, unlabelled=8)
    shutil.rmtree(images / "test")
    settings = {**TINY, "mu": 1, "batch": 4, "steps": 1}
    comatch.train(images, out=tmp_path / "run", settings=settings, device="cpu", progress=False)
    page = made(cli, tmp_path / "run")
    assert "was not measured" in page.text
    assert "calibration" not in page.ids()
    assert "map" in page.ids()
    assert "not measured" in (tmp_path / "run/model_card.md").read_text()
    with_answers(tmp_path / "run")
    page = made(cli, tmp_path / "run")
    assert "2-fold cross-validation" in page.text
    assert {"calibration", "confusion"} <= page.ids()
    assert "lying/1.png" in page.text  # its label is contradicted


def with_answers(run):
    """The table of a cross-validation: seven labels are confirmed, one is contradicted."""
    names = [f"{kind}/{i}.png" for kind in ("lying", "standing") for i in range(4)]
    (run / "folds").mkdir(exist_ok=True)
    with (run / "folds/2.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "label", "predicted", "probability"])
        for name in names:
            label = name.split("/")[0]
            predicted = "standing" if name == "lying/1.png" else label
            table.writerow([name, label, predicted, "0.8"])


def test_images_that_have_moved(cli, trained, run, tmp_path):
    config = read_json(run / "config.json")
    config["recipe"]["dataset"]["data"] = str(tmp_path / "gone")
    rewrite_json(run / "config.json", config)
    page = made(cli, run)
    assert "cannot be shown" in page.text
    assert f"{read_json(run / 'summary.json')['top1']:.1%}" in page.text
    assert "training" in page.ids()
    assert "map" not in page.ids()
    with_answers(run)
    assert "confusion" in made(cli, run).ids()


@pytest.mark.parametrize(
    "missing",
    [
        ["model.safetensors", "model.json", "summary.json", "known_images.safetensors"],
        ["known_images.safetensors"],
        ["metrics.jsonl", "environment.json"],
        ["split.json"],
    ],
)
def test_runs_with_missing_files(cli, run, missing):
    for name in missing:
        (run / name).unlink()
    page = made(cli, run)
    assert "settings" in page.ids()


def test_a_run_of_an_old_version(cli, run):
    old = Path(__file__).parents[2] / "cli" / "config-0.1.0.json"
    recipe, present = read_json(old)["recipe"], read_json(run / "config.json")
    dataset = present["recipe"]["dataset"]
    recipe |= {key: dataset[key] for key in ("data", "labels", "image_size")}
    rewrite_json(run / "config.json", {**present, "recipe": recipe})
    (run / "known_images.safetensors").unlink()
    page = made(cli, run)
    assert {"map", "unknown", "confusion"} <= page.ids()


@pytest.mark.parametrize("classes", [1, 1000])
def test_any_number_of_classes(cli, run, classes):
    """The run's network is changed: its classes are not those of the images any more."""
    weights = load_file(run / "model.safetensors")
    for name in ("classifier.weight", "classifier.bias"):
        weights[name] = weights[name][:1].repeat(classes, *[1] * (weights[name].ndim - 1))
    save_file(weights, run / "model.safetensors")
    names = ["lying", "standing", *(f"class {i}" for i in range(classes))][:classes]
    model = read_json(run / "model.json") | {"classes": names}
    rewrite_json(run / "model.json", model)
    page = made(cli, run)
    assert "map" in page.ids()
    assert Path("report.html").stat().st_size < 10 * 2**20


def test_labels_that_have_changed_are_noted(cli, trained, run):
    split = read_json(run / "split.json") | {"fingerprint": "0"}
    rewrite_json(run / "split.json", split)
    assert "have changed since the run" in made(cli, run).text


def test_labels_are_matched_by_the_name_of_the_class():
    images = Images(torch.zeros(3, 3, 1, 1), torch.tensor([0, 1, -1]), ["a", "b", "c"])
    data = Dataset("", ["cat", "dog"], images)
    assert with_classes(data, ["ant", "dog"]).train.labels.tolist() == [-1, 1, -1]
    assert with_classes(data, ["dog", "cat"]).train.labels.tolist() == [1, 0, -1]


def test_a_mistaken_label_is_found():
    """Of two groups of images, one image has the label of the other group."""
    labels = torch.tensor([0] * 10 + [1] * 10)
    features = torch.eye(2)[labels] + 0.01 * torch.randn(20, 2)
    given = labels.clone()
    given[3] = 1
    answers = Answers(
        [str(i) for i in range(20)],
        np.array([LABELLED] * 20),
        given,
        torch.eye(2)[given],  # the classifier has learned the mistake
        features,
        None,
        None,
        [],
    )
    found = findings.doubtful_labels(answers, ["a", "b"], [])
    assert [(one.name, one.label, one.suggested) for one in found] == [("3", "b", "a")]


def test_examples_are_of_their_class():
    p = torch.rand(60, 3).softmax(1)
    labels = torch.randint(3, (60,))
    parts = np.array([TEST] * 40 + [NOT_LABELLED] * 20)
    names = [str(i) for i in range(60)]
    answers = Answers(names, parts, labels, p, torch.randn(60, 4), None, None, [])
    for one in findings.examples(answers, 3, most=2):
        assert all(answers.predicted[row] == one.number for row in one.surest + one.least_sure)
        assert not set(one.surest) & set(one.least_sure)
        assert all(row < 40 for row in one.surest + one.mistakes)
        confidence = [float(answers.confidence[row]) for row in one.surest]
        assert confidence == sorted(confidence, reverse=True)
        for row in one.mistakes:
            assert labels[row] == one.number != answers.predicted[row]


def test_near_duplicates_in_one_set():
    random = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (40, 3, 32, 32), generator=random, dtype=torch.uint8)
    images[30] = (images[4].float() * 0.95).byte()
    images[31] = images[4]
    assert set(near_pairs(images)) == {(4, 30), (4, 31)}
    assert near_pairs(images[:1]) == []


def test_pictures_stay_within_their_room():
    noise = np.random.default_rng(0).integers(0, 256, (3, DOT, DOT), dtype=np.uint8)
    album = Album(room=10_000)
    taken = [album.take(noise, DOT) for _ in range(20)]
    assert 0 < len("".join(taken)) <= 10_000
    assert taken[-1] == ""
    assert album.take(None, DOT) == ""


def test_reliability_counts_every_prediction():
    confidence = torch.tensor([0.05, 0.95, 0.99, 1.0])
    bins = charts.reliability(confidence, torch.tensor([True, True, False, True]))
    assert sum(one.images for one in bins) == 4
    assert bins[0].accuracy == 1.0
    assert bins[-1].accuracy == pytest.approx(2 / 3)


@pytest.mark.parametrize("values", [{1: 0.0, 2: 0.0}, {1: 5.0, 1000: -2.0}, {50: 1e-9, 100: 1e9}])
def test_curves_stay_in_their_chart(values):
    (chart,) = charts.training_curves({"loss": values})
    for pair in chart.curves[0].points.split():
        x, y = map(float, pair.split(","))
        assert 0 <= x <= charts.WIDTH
        assert 0 <= y <= charts.HEIGHT


def test_a_picture_of_two_thousand_images_fits(tmp_path):
    """The pictures of the map take most of a page."""
    photograph = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    image = np.asarray(Image.fromarray(photograph).resize((112, 112))).transpose(2, 0, 1)
    album = Album()
    assert all(album.take(image, DOT) for _ in range(2000))
