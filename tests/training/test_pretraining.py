"""Runs without labels: from images to an encoder, resume, and training from it."""

import json
import shutil
import warnings

import pytest
import torch
from safetensors.torch import load_file

import comatch
from comatch import methods, planning, recipes
from comatch.config import settings_of
from comatch.errors import UserError
from comatch.evaluation import representation
from comatch.planning import Request
from comatch.training import loop
from comatch.training.run_folder import RunFolder
from helpers import SMALL, assert_one_line_error, assert_same, interrupt_at, read_json, start

TINY = {
    "image_size": 8,
    "net": "wrn-10-1",
    "batch": 20,
    "log_every": 2,
    "eval_every": 4,
    "checkpoint_every": 3,
    "precision": "fp32",  # in bf16, oneDNN has NaN in the gradients of patches of 2 pixels
}
OPTIONS = {"steps": 6, "device": "cpu", "progress": False}


def settings_for(method):
    own = {**SMALL.get(method, {}), **({"instance_share": 0.4} if method == "pcl" else {})}
    return {**TINY, **own}


def pretrain(out, method="simclr", data="digits", **options):
    settings = {**settings_for(method), **options.pop("settings", {})}
    return comatch.pretrain(
        data, method=method, out=out, settings=settings, **{**OPTIONS, **options}
    )


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A run of MoCo v2, whose head is that of CoMatch."""
    return pretrain(tmp_path_factory.mktemp("learned") / "run", "moco_v2")


def test_a_run_has_scores_of_its_features_and_uses_no_label(learned):
    summary = learned.summary
    assert summary["labels"] == 0
    assert summary["unlabelled"] == 1438
    assert 0 < summary["knn_top1"] <= 1
    assert 0 < summary["linear_top1"] <= 1
    assert not read_json(learned.path / "split.json")["labelled"]
    lines = [json.loads(line) for line in (learned.path / "metrics.jsonl").open()]
    kinds = [(line["step"], line["kind"], "linear_top1" in line) for line in lines]
    assert kinds[1:3] == [(4, "train", False), (4, "eval", False)]
    assert kinds[-1] == (6, "eval", True)
    assert read_json(learned.path / "model.json")["pretraining"] == "moco_v2"


@pytest.mark.slow
def test_training_starts_from_a_run_without_labels(learned, tmp_path):
    """Encoder and head are loaded; the classifier, which the run does not have, is new."""
    started = comatch.train(
        "digits",
        init=learned.path,
        labels=20,
        out=tmp_path / "run",
        settings={**TINY, "batch": 4, "mu": 2, "embedding_dim": 128, "lr": 1e-12},
        **OPTIONS,
    )
    loaded = read_json(started.path / "environment.json")["sessions"][0]["init"]
    assert loaded["encoder"]["taken"] == loaded["encoder"]["wanted"]
    assert (loaded["projector"], loaded["classifier"]) == ("loaded", "new")
    before, after = (load_file(p / "model.safetensors") for p in (learned.path, started.path))
    for name in ("encoder.stem.weight", "projector.layers.2.weight"):
        torch.testing.assert_close(before[name], after[name])


def test_a_run_without_labels_does_not_predict(learned, cli):
    with pytest.raises(UserError, match="has no classifier: comatch train DATA --init"):
        comatch.load(learned)
    assert_one_line_error(cli("evaluate", learned.path), "has no classifier")


@pytest.mark.slow
@pytest.mark.parametrize("method", methods.PRETRAINING)
def test_every_method_resumes_exactly(tmp_path, monkeypatch, method):
    pretrain(tmp_path / "whole", method)
    with monkeypatch.context() as patch:
        interrupt_at(patch, 4)
        with pytest.raises(loop.Interrupted):
            pretrain(tmp_path / "parts", method)
    pretrain(tmp_path / "parts", method, resume=True)
    for name in ("metrics.jsonl", "model.safetensors", "split.json", "config.json"):
        whole, parts = ((tmp_path / run / name).read_bytes() for run in ("whole", "parts"))
        assert whole == parts, name
    states = [torch.load(tmp_path / run / "last.pt") for run in ("whole", "parts")]
    for key in ("method", "optimizer", "data"):
        assert_same(states[0][key], states[1][key])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["swav", "pcl"])
def test_images_on_disk(images, tmp_path, method):
    """Without any label; one image is damaged, and rows stay those of the files."""
    for kind in ("standing", "lying"):
        for file in (images / kind).iterdir():
            shutil.move(file, images / "unlabeled" / f"{kind}-{file.name}")
        (images / kind).rmdir()
    shutil.rmtree(images / "test")
    (images / "unlabeled" / "7.jpg").write_bytes(b"no image")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        run = pretrain(
            tmp_path / "run",
            method,
            images,
            settings={"stream": "yes", "workers": 1, "mean": (0.5,) * 3, "std": (0.3,) * 3},
        )
    assert run.summary["unlabelled"] == 54
    assert run.summary["unreadable"] == 1
    assert "knn_top1" not in run.summary


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        (["--method", "comatch"], ["comatch is a method of another command", "comatch train"]),
        (["--method", "simcrl"], ["did you mean 'simclr'"]),
        (["--recipe", "cifar10"], ["unknown recipe 'cifar10'", "pretrain-cifar10"]),
        (["--set", "batch=2000"], ["2000 different images", "1438", "batch=1438"]),
        (["--set", "mu=2"], ["mu=2"]),
        (["--method", "moco_v2", "--set", "queue_size=2000"], ["queue_size=1438"]),
        (["--method", "pirl", "--set", "negatives=2000"], ["negatives=1438"]),
        (["--method", "pcl", "--set", "clusters=800"], ["clusters=359"]),
        (["--method", "pcl", "--set", "clusters=5", "--set", "batch=1"], ["batch=1"]),
    ],
)
def test_bad_input_is_told_before_anything_starts(cli, tmp_path, words, fragments):
    result = cli("pretrain", "digits", "--out", "run", *words)
    assert_one_line_error(result, *fragments)
    assert not (tmp_path / "run").exists()


def test_a_method_without_labels_does_not_train(cli):
    result = cli("train", "digits", "--method", "byol")
    assert_one_line_error(result, "byol is a method of another command", "comatch pretrain")
    with pytest.raises(UserError, match="comatch pretrain DATA --method byol"):
        comatch.train("digits", method="byol")
    with pytest.raises(UserError, match="leave labels out"):
        comatch.pretrain("digits", labels=10)


@pytest.mark.slow
def test_the_command(cli, tmp_path):
    words = [word for k, v in TINY.items() for word in ("--set", f"{k}={v}")]
    code, out, err = cli("pretrain", "digits", "--steps", 2, "--device", "cpu", *words)
    assert code == 0, err
    assert "comatch train digits --init runs/digits-simclr-seed0" in out
    again = cli("pretrain", "--out", "runs/digits-simclr-seed0", "--resume")
    assert again[0] == 0
    process = start("train", "--out", "runs/digits-simclr-seed0", "--resume", cwd=tmp_path)
    assert "use comatch pretrain" in process.communicate(timeout=120)[1].replace("\n", " ")


CHAIN = {"image_size": 8, "net": "wrn-10-1", "norm_momentum": 0.1, "checkpoint_every": 3}


def chain(out, resume=False, **options):
    settings = {**CHAIN, "batch": 10, "mu": 2, "log_every": 2, "precision": "fp32"}
    both = {"pretrain": "simclr", "pretrain_steps": 4, "labels": 20, "seed": 3, **OPTIONS}
    return comatch.train("digits", out=out, resume=resume, settings=settings, **{**both, **options})


@pytest.mark.slow
@pytest.mark.parametrize("stop", [2, 7])  # without labels, and with them
def test_both_parts_in_one_folder_resume_exactly(tmp_path, monkeypatch, stop):
    whole = chain(tmp_path / "whole")
    first = RunFolder(whole.path / "pretraining")
    assert first.recipe().method.method == "simclr"
    assert (first.recipe().model.net, first.recipe().optim.steps) == ("wrn-10-1", 4)
    assert read_json(whole.path / "config.json")["recipe"]["model"]["init"] == str(first.path)
    with monkeypatch.context() as patch:
        interrupt_at(patch, stop)
        with pytest.raises(loop.Interrupted) as stopped:
            chain(tmp_path / "parts")
        assert stopped.value.folder == tmp_path / "parts"
    chain(tmp_path / "parts", resume=True)
    for name in ("metrics.jsonl", "model.safetensors"):
        for part in ("", "pretraining"):
            files = [tmp_path / run / part / name for run in ("whole", "parts")]
            assert files[0].read_bytes() == files[1].read_bytes()
    with pytest.raises(UserError, match="not empty"):
        chain(tmp_path / "parts")


@pytest.mark.slow
def test_a_run_takes_the_network_of_the_run_without_labels(learned, tmp_path):
    recipe = planning.plan(
        Request("digits", recipe="cifar10", init=learned.path), torch.device("cpu")
    )
    assert (recipe.model.net, recipe.dataset.image_size) == ("wrn-10-1", 8)
    other = Request("digits", init=learned.path, settings={"net": "wrn-10-2"})
    assert planning.plan(other, torch.device("cpu")).model.net == "wrn-10-2"


@pytest.mark.slow
def test_fine_tuning_from_the_middle_of_the_head(tmp_path, learned):
    """SimCLR v2: the first of three layers stays, and its output are the features."""
    first = pretrain(tmp_path / "first", settings={"head_layers": 3})
    settings = {**TINY, "batch": 4, "mu": 2, "lr": 1e-12, "init_head_layers": 1}
    options = {"init": first.path, "labels": 20, "settings": settings, "method": "supervised"}
    run = comatch.train("digits", out=tmp_path / "run", **options, **OPTIONS)
    classifier = comatch.load(run, device="cpu")
    before = load_file(first.path / "model.safetensors")
    head = classifier.net.encoder.head
    torch.testing.assert_close(head[0].weight, before["projector.layers.0.weight"])
    torch.testing.assert_close(
        classifier.net.encoder.body.stem.weight, before["encoder.stem.weight"]
    )
    assert isinstance(head[-1], torch.nn.ReLU)
    features = classifier.net(torch.randn(4, 3, 8, 8)).features
    assert bool((features >= 0).all())
    with pytest.raises(UserError, match="has no SimCLR head"):
        comatch.train(
            "digits", out=tmp_path / "bad", **{**options, "init": learned.path}, **OPTIONS
        )
    with pytest.raises(UserError, match="add --init"):
        comatch.train("digits", out=tmp_path / "bad", settings={"init_head_layers": 1})


@pytest.mark.slow
def test_distillation_approaches_the_teacher_and_resumes_exactly(tmp_path, monkeypatch):
    settings = {**CHAIN, "batch": 10, "mu": 2, "log_every": 2, "lr": 0.05, "ema_decay": 0.5}
    options = {"labels": 20, "settings": settings, "device": "cpu", "progress": False}
    teacher = comatch.train(
        "digits", steps=30, out=tmp_path / "teacher", method="fixmatch", **options
    )
    taught = {**options, "settings": {**settings, "teacher": teacher.path}}
    student = comatch.train("digits", method="distill", steps=12, out=tmp_path / "whole", **taught)
    lines = [json.loads(line) for line in (student.path / "metrics.jsonl").open()]
    losses = [line["loss_teacher"] for line in lines if line["kind"] == "train"]
    assert losses[-1] < losses[0]
    with monkeypatch.context() as patch:
        interrupt_at(patch, 5)
        with pytest.raises(loop.Interrupted):
            comatch.train("digits", method="distill", steps=12, out=tmp_path / "parts", **taught)
    comatch.train(
        "digits", method="distill", steps=12, out=tmp_path / "parts", resume=True, **taught
    )
    whole, parts = (tmp_path / run / "metrics.jsonl" for run in ("whole", "parts"))
    assert whole.read_bytes() == parts.read_bytes()
    for change, said in (
        ({"teacher": None}, "--teacher RUN"),
        ({"image_size": 16}, "sees images of 8 pixels"),
        ({"teacher": tmp_path}, "not a run folder"),
    ):
        bad = {**taught, "settings": {**taught["settings"], **change}}
        with pytest.raises(UserError, match=said):
            comatch.train("digits", method="distill", out=tmp_path / "bad", steps=1, **bad)
    described = read_json(teacher.path / "model.json")
    described["classes"][0] = "another"
    (teacher.path / "model.json").write_text(json.dumps(described))
    with pytest.raises(UserError, match="other classes"):
        comatch.train("digits", method="distill", out=tmp_path / "bad", steps=1, **taught)
    assert not (tmp_path / "bad").exists()


@pytest.mark.parametrize("name", recipes.PRETRAINING)
@pytest.mark.parametrize("method", methods.PRETRAINING)
def test_every_recipe_has_every_method(name, method):
    recipe = recipes.get(name, method)
    assert (recipe.name, recipe.method.method, recipe.optim.mu) == (name, method, 1)
    images = {"pretrain-imagenet": 1_281_167, "pretrain-tiny-imagenet": 100_000}.get(name, 1400)
    limits = {"queue_size", "negatives"} & settings_of(recipe.method).keys()
    if "cifar10" not in name:
        sizes = [
            getattr(recipe.method, key) for key in limits if (method, key) != ("pcl", "negatives")
        ]
        assert all(size <= images for size in sizes)


@pytest.mark.parametrize(
    ("method", "epochs", "batch", "lr", "weight_decay"),
    [
        ("simclr", 1000, 4096, 0.3 * 4096 / 256, 1e-6),
        ("moco_v2", 800, 256, 0.03, 1e-4),
        ("byol", 1000, 4096, 0.2 * 4096 / 256, 1.5e-6),
        ("swav", 800, 4096, 4.8, 1e-6),
        ("pirl", 800, 1024, 0.12, 1e-4),
        ("pcl", 200, 256, 0.03, 1e-4),
    ],
)
def test_imagenet_has_the_settings_of_the_papers(method, epochs, batch, lr, weight_decay):
    optim = recipes.get("pretrain-imagenet", method).optim
    assert (optim.batch, optim.weight_decay) == (batch, weight_decay)
    assert optim.lr == pytest.approx(lr)
    assert optim.steps == epochs * (1_281_167 // batch)
    assert optim.optimizer == ("lars" if batch == 4096 else "sgd")


def test_nearest_neighbours_in_plain_loops():
    generator = torch.Generator().manual_seed(0)
    train = representation.Labelled(
        torch.randn(50, 6, generator=generator), torch.randint(3, (50,), generator=generator)
    )
    test = representation.Labelled(
        torch.randn(30, 6, generator=generator), torch.randint(3, (30,), generator=generator)
    )
    right = 0
    for x, y in zip(test.x, test.y.tolist(), strict=True):
        near = sorted(
            (-float(torch.cosine_similarity(x, other, dim=0)), label)
            for other, label in zip(train.x, train.y.tolist(), strict=True)
        )[:20]
        votes = [0.0] * 3
        for cosine, label in near:
            votes[label] += 2.718281828 ** (-cosine / 0.07)
        right += votes.index(max(votes)) == y
    found = representation.nearest_neighbours(train, test, torch.device("cpu"))
    assert found == pytest.approx(right / 30)


def test_a_linear_classifier_separates_what_is_separable():
    x = torch.cat([torch.randn(20, 4) + 5, torch.randn(20, 4) - 5])
    part = representation.Labelled(x.half(), torch.arange(40) // 20)
    assert representation.linear(part, part) == 1
