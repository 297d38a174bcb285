"""Initial weights: every source, what is loaded, and what the report says of the rest."""

import argparse
import json
import logging
import os
from collections import OrderedDict

import pytest
import timm
import torch
import torchvision
from safetensors.torch import load_file, save_file

import comatch
from comatch import api, methods, planning
from comatch.config import replace
from comatch.data import sources, splits
from comatch.errors import UserError
from comatch.nets import Network, build_encoder, pretrained
from comatch.training import loop
from comatch.training.build import build
from comatch.training.init_weights import load_initial
from comatch.training.run_folder import RunFolder
from comatch.types import Task
from helpers import TINY, TINY_WORDS, make_images

CPU = torch.device("cpu")
FAST = ["--labels", 20, "--steps", 2, "--device", "cpu", *TINY_WORDS]


def network(net="wrn-10-1", size=32, stem="auto", classes=3, embedding_dim=16):
    return Network(build_encoder(net, size, stem), classes, embedding_dim)


def random_values(state):
    """Different values of the same names and shapes; variances stay positive."""
    torch.manual_seed(9)
    return {
        name: torch.rand(value.shape) + 0.1 if value.is_floating_point() else value + 7
        for name, value in state.items()
    }


def prefixed(prefix, state):
    return {prefix + name: value for name, value in state.items()}


def copied(net):
    return {name: value.clone() for name, value in net.state_dict().items()}


def unchanged(net, before, part):
    now = net.state_dict()
    names = [name for name in before if name.startswith(part)]
    assert names
    return all(torch.equal(now[name], before[name]) for name in names)


def assert_encoder_is(net, state):
    own = net.encoder.state_dict()
    assert own.keys() == state.keys()
    for name in own:
        assert torch.equal(own[name], state[name]), name


@pytest.fixture
def encoder_file(tmp_path):
    """The file of an encoder for the smallest run."""
    state = random_values(network(size=8).encoder.state_dict())
    torch.save(state, tmp_path / "encoder.pt")
    return tmp_path / "encoder.pt"


# ------------------------------------------------------------------------------- what fits


@pytest.mark.parametrize(
    "prefix",
    ["", "module.", "backbone.", "encoder.", "model.", "module.model.backbone.", "_orig_mod.net."],
)
def test_wrapper_prefixes_are_dropped(prefix):
    net = network()
    before, state = copied(net), random_values(net.encoder.state_dict())
    loaded = pretrained.fill(net, prefixed(prefix, state), "file")
    assert_encoder_is(net, state)  # batch-norm statistics too
    assert loaded.taken == loaded.wanted > 20
    assert (loaded.left_out, loaded.unused) == ([], [])
    assert unchanged(net, before, "classifier.")
    assert unchanged(net, before, "projector.")


def test_a_prefix_that_is_a_module_of_the_network_is_kept():
    """Some nets have a module named like a wrapper."""

    class NestedNet(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.network = torch.nn.Linear(3, 4)
            self.num_features = 4

    net = Network(NestedNet(), classes=2)
    state = random_values(net.encoder.state_dict())
    pretrained.fill(net, prefixed("module.", state), "file")
    assert_encoder_is(net, state)


def test_the_shorter_of_two_matching_names_wins():
    net = network()
    state = random_values(net.encoder.state_dict())
    both = {**prefixed("model.", {n: v + 1 for n, v in state.items()}), **state}
    loaded = pretrained.fill(net, both, "file")
    assert_encoder_is(net, state)
    assert loaded.unused == ["blocks (32)", "norm (4)", "stem"]


def test_matching_tensors_are_loaded_and_the_others_reported():
    """With a small stem, one of ResNet-18's 100 tensors has another shape."""
    state = random_values(timm.create_model("resnet18", num_classes=5).state_dict())
    net = network("resnet18", stem="small")
    before = copied(net)
    loaded = pretrained.fill(net, state, "resnet18.pth")
    assert loaded.lines() == [
        "began from resnet18.pth: 99 of 100 encoder tensors, "
        "projector new (not in it), classifier new",
        "left out: conv1.weight (64x3x7x7 in it, 64x3x3x3 here); not used: fc (2)",
    ]
    assert unchanged(net, before, "encoder.conv1.")
    assert torch.equal(net.encoder.layer4[1].bn2.running_var, state["layer4.1.bn2.running_var"])


def test_a_long_report_is_shortened():
    net = network("wrn-10-2")
    loaded = pretrained.fill(net, random_values(network("wrn-10-1").encoder.state_dict()), "file")
    assert 0 < loaded.taken < loaded.wanted
    assert f" and {len(loaded.left_out) - 3} more" in loaded.lines()[1]
    assert len(loaded.lines()) == 2


def test_files_without_batch_counters():
    net = network()
    state = random_values(net.encoder.state_dict())
    loaded = pretrained.fill(net, {n: v for n, v in state.items() if "num_batch" not in n}, "file")
    assert loaded.taken == loaded.wanted
    assert loaded.left_out == []


def test_no_matching_tensor_is_an_error_and_changes_nothing():
    net = network()
    before = copied(net)
    with pytest.raises(UserError) as error:
        pretrained.fill(net, {"features.0.weight": torch.ones(8, 3, 5, 5)}, "vgg.pth")
    assert "needs stem.weight (16x3x3x3)" in str(error.value)
    assert "there is features.0.weight (8x3x5x5)" in str(error.value)
    with pytest.raises(UserError, match=r"there is module\.stem\.weight \(2x2\)"):
        pretrained.fill(net, {"x": torch.ones(1), "module.stem.weight": torch.ones(2, 2)}, "file")
    assert unchanged(net, before, "")


def test_half_precision_is_converted_to_the_networks():
    net = network()
    state = {n: v.half() for n, v in random_values(net.encoder.state_dict()).items()}
    pretrained.fill(net, state, "file")
    assert net.encoder.stem.weight.dtype == torch.float32
    assert torch.equal(net.encoder.stem.weight, state["stem.weight"].float())


# --------------------------------------------------------------------------------- MoCo v2


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_timm_and_torchvision_name_resnet_tensors_equally(name):
    """MoCo v2's checkpoints have torchvision's names."""
    with torch.device("meta"):
        ours, theirs = timm.create_model(name), torchvision.models.get_model(name)
    shapes = [{n: v.shape for n, v in net.state_dict().items()} for net in (ours, theirs)]
    assert shapes[0] == shapes[1]


def moco_v2(embedding_dim=16):
    """A ResNet-18 checkpoint as MoCo v2's `main_moco.py --mlp` writes it."""
    query = random_values(timm.create_model("resnet18", num_classes=0).state_dict())
    for layer, rows in ((0, 512), (2, embedding_dim)):
        query[f"fc.{layer}.weight"] = torch.rand(rows, 512)
        query[f"fc.{layer}.bias"] = torch.rand(rows)
    key = {name: value + 1 for name, value in query.items()}
    state = OrderedDict(
        {
            "module.queue": torch.rand(embedding_dim, 64),
            "module.queue_ptr": torch.zeros(1, dtype=torch.long),
            **prefixed("module.encoder_q.", query),
            **prefixed("module.encoder_k.", key),
        }
    )
    optimizer = {"state": {}, "param_groups": [{"lr": 0.03}]}
    return {"epoch": 200, "arch": "resnet18", "state_dict": state, "optimizer": optimizer}


@pytest.mark.parametrize("zipped", [True, False])  # the published files are not zipped
def test_moco_v2_in_its_published_layout(tmp_path, zipped):
    checkpoint, path = moco_v2(), tmp_path / "moco_v2_200ep_pretrain.pth.tar"
    torch.save(checkpoint, path, _use_new_zipfile_serialization=zipped)
    weights = pretrained.read_file(path)
    net = network("resnet18", 96, "standard")
    before = copied(net)
    loaded = pretrained.fill(net, weights, "moco.pth.tar")
    state = {n.removeprefix("module.encoder_q."): v for n, v in checkpoint["state_dict"].items()}
    assert_encoder_is(net, {name: state[name] for name in net.encoder.state_dict()})
    for layer in (0, 2):
        for kind in ("weight", "bias"):
            own = getattr(net.projector.layers[layer], kind)
            assert torch.equal(own, state[f"fc.{layer}.{kind}"])
    assert unchanged(net, before, "classifier.")
    assert loaded.lines() == [
        "began from moco.pth.tar: 100 of 100 encoder tensors, projector loaded, classifier new",
        "not used: encoder_k (104), queue, queue_ptr",
    ]


def test_a_projector_is_loaded_completely_or_not_at_all():
    net = network("resnet18", 96, "standard", embedding_dim=8)
    before = copied(net)
    loaded = pretrained.fill(net, moco_v2(embedding_dim=16)["state_dict"], "moco")
    assert loaded.heads["projector"] == "new (16x512 in it, 8x512 here)"
    assert unchanged(net, before, "projector.")
    assert loaded.taken == loaded.wanted
    without = network("resnet18", 96, "standard", embedding_dim=0)
    loaded = pretrained.fill(without, moco_v2()["state_dict"], "moco")
    assert "projector" not in loaded.heads
    assert "fc (4)" in loaded.unused


# ------------------------------------------------------------ other methods without labels


def published_layout(method, encoder):
    """A ResNet-18 in the layout in which the checkpoints of a method are published."""
    head = {"weight": torch.rand(128, 512), "bias": torch.rand(128)}
    if method == "simclr":  # converted to torchvision's names, with a linear classifier
        return {"state_dict": {**encoder, **prefixed("fc.", linear(512, 1000))}}
    if method == "byol":  # converted: the online network's encoder
        online = prefixed("module.", {**encoder, **prefixed("fc.", linear(512, 1000))})
        return {"epoch": 300, "online_backbone": online}
    if method == "byol, whole":
        target = {name: value + 1 for name, value in encoder.items()}
        return {
            "model": {
                **prefixed("online_network.encoder.", encoder),
                **prefixed("target_network.encoder.", target),
                **prefixed("predictor.0.", head),
            }
        }
    if method == "swav":
        heads = prefixed("projection_head.0.", head) | {"prototypes.weight": torch.rand(30, 128)}
        return prefixed("module.", {**encoder, **heads})
    if method == "pirl":  # VISSL
        trunk = prefixed("_feature_blocks.", encoder)
        model = {"trunk": trunk, "heads": prefixed("0.clf.0.", head)}
        return {
            "phase_idx": 100,
            "classy_state_dict": {"base_model": {"model": model, "meta": {}}, "train_phase_idx": 9},
        }
    assert method == "pcl"
    key = {name: value + 1 for name, value in encoder.items()}
    state = {
        **prefixed("module.encoder_q.", encoder | prefixed("fc.", head)),
        **prefixed("module.encoder_k.", key),
        "module.queue": torch.rand(128, 16),
    }
    return {"epoch": 200, "arch": "resnet18", "state_dict": state, "optimizer": {"lr": 0.03}}


@pytest.mark.parametrize("method", ["simclr", "byol", "byol, whole", "swav", "pirl", "pcl"])
def test_published_encoders_without_labels(tmp_path, method):
    encoder = random_values(timm.create_model("resnet18", num_classes=0).state_dict())
    torch.save(published_layout(method, encoder), tmp_path / "published.pth")
    net = network("resnet18", 96, "standard")
    before = copied(net)
    weights = pretrained.read_file(tmp_path / "published.pth")
    loaded = pretrained.fill(net, weights, method)
    assert loaded.taken == loaded.wanted == 100
    assert_encoder_is(net, encoder)
    assert unchanged(net, before, "classifier.")
    assert loaded.heads["projector"].startswith("new")


# ---------------------------------------------------------------- the authors of CoMatch


def authors_file(classes=3, embedding_dim=16):
    """A checkpoint in the layout of the authors' ImageNet models, with a ResNet-18."""
    encoder = random_values(timm.create_model("resnet18", num_classes=0).state_dict())
    heads = {
        **{f"classifier.{k}": v for k, v in linear(512, classes).items()},
        **{f"fc1.{k}": v for k, v in linear(512, 512).items()},
        **{f"fc2.{k}": v for k, v in linear(512, embedding_dim).items()},
    }
    state = {**prefixed("encoder.", encoder), **heads}
    teacher = {f"m_{name}": value + 1 for name, value in state.items()}
    memory = {"queue_s": torch.rand(embedding_dim, 9), "probs_u": torch.rand(classes, 9)}
    return {"model": prefixed("module.", {**state, **teacher, **memory}), "epoch": 399}, state


def linear(width, rows):
    return {"weight": torch.rand(rows, width), "bias": torch.rand(rows)}


@pytest.mark.parametrize("classifier", [True, False])
def test_the_authors_checkpoint_is_loaded_completely(tmp_path, classifier):
    content, state = authors_file()
    torch.save(content, tmp_path / "comatch.pth.tar")
    net = network("resnet18", 96, "standard")
    before = copied(net)
    weights = pretrained.read_file(tmp_path / "comatch.pth.tar")
    loaded = pretrained.fill(net, weights, "comatch.pth.tar", classifier=classifier)
    assert loaded.taken == loaded.wanted == 100
    assert_encoder_is(net, {name: state[f"encoder.{name}"] for name in net.encoder.state_dict()})
    for layer, name in ((0, "fc1"), (2, "fc2")):
        for kind in ("weight", "bias"):
            own = getattr(net.projector.layers[layer], kind)
            assert torch.equal(own, state[f"{name}.{kind}"])
    if classifier:
        assert torch.equal(net.classifier.weight, state["classifier.weight"])
        assert loaded.heads == {"projector": "loaded", "classifier": "loaded"}
    else:
        assert unchanged(net, before, "classifier.")
        assert loaded.heads["classifier"] == "new (not known to be for these classes)"


def test_a_run_begins_with_the_authors_classifier_if_asked(tmp_path):
    content, state = authors_file(classes=10)
    torch.save(content, tmp_path / "comatch.pth.tar")
    settings = {"image_size": 32, "stem": "standard", "net": "resnet18", "embedding_dim": 16}
    asked = {**settings, "init_classifier": True}
    dataset = sources.load("digits", tmp_path, 32)
    for given in (settings, asked):
        recipe = plan("digits", {**TINY, **given}, init=tmp_path / "comatch.pth.tar", labels=20)
        run = built(recipe, dataset)
        for net in (run.method.net, run.method.ema.net):
            same = torch.equal(net.classifier.weight, state["classifier.weight"])
            assert same == (given is asked)
            assert torch.equal(net.projector.layers[2].bias, state["fc2.bias"])
    torch.save(authors_file(classes=9)[0], tmp_path / "other.pth.tar")
    recipe = plan("digits", {**TINY, **asked}, init=tmp_path / "other.pth.tar", labels=20)
    with pytest.raises(UserError, match=r"has no classifier for the 10 classes.*9x512 in it"):
        built(recipe, dataset)


# ----------------------------------------------------------------------------------- files


def saved(state, path, under):
    if path.suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save({under: state, "epoch": 3} if under else state, path)
    return path


@pytest.mark.parametrize(
    ("name", "under"),
    [("a.pt", ""), ("a.pth", "state_dict"), ("a.ckpt", "model"), ("a.safetensors", "")],
)
def test_files_of_weights(tmp_path, name, under):
    net = network()
    state = random_values(net.encoder.state_dict())
    path = saved(prefixed("module.", state), tmp_path / name, under)
    pretrained.fill(net, pretrained.read_file(path), name)
    assert_encoder_is(net, state)


class Evil:
    def __reduce__(self):
        return os.mkdir, ("executed",)


@pytest.mark.parametrize(
    ("content", "fragment"),
    [
        ({"state_dict": {"x": torch.ones(1)}, "args": argparse.Namespace(a=1)}, "more than"),
        ({"state_dict": Evil()}, "more than weights"),
        (torch.nn.Linear(2, 2), "more than weights"),
        ({"epoch": 3}, "holds no state dict"),
        ([1, 2], "holds no state dict"),
    ],
)
def test_files_with_other_content_are_refused(tmp_path, monkeypatch, content, fragment):
    monkeypatch.chdir(tmp_path)
    torch.save(content, "x.pt")
    with pytest.raises(UserError, match=fragment) as error:
        pretrained.read_file(tmp_path / "x.pt")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("name", ["x.pt", "x.safetensors"])
@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04 cut off", b"\x80\x02}"])
def test_damaged_files_are_refused(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match="no file of weights, or damaged") as error:
        pretrained.read_file(tmp_path / name)
    assert "\n" not in str(error.value)


# ------------------------------------------------------------------------------------ timm


@pytest.fixture
def hub(monkeypatch):
    """timm as it is with a network, but for the values of the weights."""
    create, asked = timm.create_model, []

    def create_model(name, pretrained=False, **options):
        model = create(name, **options)
        if pretrained:
            asked.append(name)
            model.load_state_dict(random_values(model.state_dict()))
        return model

    monkeypatch.setattr(timm, "create_model", create_model)
    monkeypatch.setattr("comatch.nets.encoders.is_available", lambda name: True)
    return asked


@pytest.mark.parametrize("source", ["timm", "timm:resnet18.a1_in1k"])
def test_timm(hub, source):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    weights, name = pretrained.read_timm(source, "resnet18", 96)
    assert torch.equal(torch.get_rng_state(), before)
    assert hub == ["resnet18" if source == "timm" else "resnet18.a1_in1k"]
    assert name == "timm:resnet18.a1_in1k"  # the full name of the default
    net = network("resnet18", 96, "standard")
    assert pretrained.fill(net, weights, name).taken == 100
    assert_encoder_is(net, weights)


@pytest.mark.parametrize(
    ("source", "net", "fragment"),
    [
        ("timm:resnet18.a1_in2k", "resnet18", "did you mean 'resnet18.a1_in1k'"),
        ("timm:resnet18.x", "resnet18", "did you mean 'resnet18."),
        ("timm:resnet50.a1_in1k", "resnet18", "timm:resnet50.a1_in1k is not for net=resnet18"),
        ("timm", "wrn-10-1", "timm has no weights for net=wrn-10-1"),
        ("timm", "resnet34t", "timm has no weights for net=resnet34t"),
    ],
)
def test_unknown_timm_weights(hub, source, net, fragment):
    with pytest.raises(UserError) as error:
        pretrained.read_timm(source, net, 96)
    assert fragment in str(error.value)
    assert hub == []


def test_timm_without_a_network(monkeypatch, tmp_path):
    """The error comes before the data is read, without the hub's attempts."""
    options = {"recipe": "folder", "settings": {"net": "resnet18"}, "init": "timm"}
    make_images(tmp_path / "images")
    monkeypatch.setattr(api, "load_dataset", None)
    with pytest.raises(UserError) as error:
        comatch.train(tmp_path / "images", **options, out=tmp_path / "run", progress=False)
    for fragment in ("model.safetensors of timm/resnet18.a1_in1k", "Hub", "--init FILE"):
        assert fragment in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_download_that_fails(monkeypatch, hub, caplog):
    def unreachable(*_, **__):
        logging.getLogger("huggingface_hub").warning("Retrying in 8s [Retry 4/5].")
        raise OSError("We couldn't connect to the hub. Please look at\nthis page about it")

    monkeypatch.setattr(timm, "create_model", unreachable)
    with pytest.raises(UserError) as error:
        pretrained.read_timm("timm", "resnet18", 96)
    assert "cannot get its weights for resnet18 (We couldn't connect to the hub)" in str(
        error.value
    )
    assert "--init FILE" in str(error.value)
    assert not caplog.records
    assert "\n" not in str(error.value)


# ----------------------------------------------------------------------------------- a run


def plan(data=None, settings=(), **options):
    return planning.plan(planning.Request(data, settings=settings, **options), CPU)


def recipe_from(init):
    return plan("digits", TINY, init=init, labels=20)


def built(recipe, dataset):
    split = splits.make(dataset, recipe.dataset, recipe.split_seed)
    return build(recipe, dataset, split, CPU)


@pytest.mark.parametrize("method", methods.METHODS)
def test_network_and_ema_copy_get_the_weights(encoder_file, build_run, method):
    run = build_run(method=method, init=str(encoder_file))
    assert run.loaded.taken == run.loaded.wanted
    method, state = run.method, torch.load(encoder_file, weights_only=True)
    assert_encoder_is(method.net, state)
    for name, value in method.ema.net.state_dict().items():
        assert torch.equal(value, method.net.state_dict()[name]), name
    assert not any(p.requires_grad for p in method.ema.net.parameters())
    assert all(p.requires_grad for p in method.net.parameters())


def test_loading_weights_changes_no_random_draw(encoder_file):
    """Heads, batches and augmentation are drawn as without initial weights."""
    dataset = sources.load("digits", encoder_file.parent, 8)
    random, heads = [], []
    for init in (None, str(encoder_file)):
        torch.manual_seed(0)
        recipe = replace(recipe_from(encoder_file), init=init)
        run = built(recipe, dataset)
        random.append(torch.get_rng_state())
        heads.append(run.method.net.projector.layers[0].weight)
        assert (run.loaded is None) == (init is None)
    assert torch.equal(*random)
    assert torch.equal(*heads)


def session(folder, number=-1):
    return json.loads((folder / "environment.json").read_text())["sessions"][number]


def test_a_run_from_a_run(cli, tmp_path):
    """Same net and classes: all weights are loaded. stderr and the run folder say so."""
    assert cli("train", "digits", *FAST, "--out", "first")[0] == 0
    code, _, err = cli("train", "digits", *FAST, "--init", "first", "--seed", 1, "--out", "second")
    assert code == 0, err
    assert f"began from {tmp_path}/first: 37 of 37 encoder tensors, projector loaded" in err
    noted = session(tmp_path / "second")["init"]
    assert noted["encoder"] == {"taken": 37, "wanted": 37}
    assert (noted["projector"], noted["classifier"]) == ("loaded", "loaded")
    assert RunFolder(tmp_path / "second").recipe().model.init == str(tmp_path / "first")

    dataset = sources.load("digits", tmp_path, 8)
    recipe = recipe_from(tmp_path / "first")
    run = built(recipe, dataset)
    weights = load_file(tmp_path / "first/model.safetensors")
    for net in (run.method.net, run.method.ema.net):
        for name, value in net.state_dict().items():
            assert torch.equal(value, weights[name]), name


def test_the_classifier_of_other_classes_is_not_loaded(tmp_path):
    comatch.train("digits", labels=20, steps=1, settings=TINY, out=tmp_path / "run", progress=False)
    encoder = build_encoder("wrn-10-1", 8)
    method = methods.build(methods.config("comatch"), encoder, Task(classes=10))
    before = copied(method.net)
    recipe, classes = recipe_from(tmp_path / "run"), [f"other {i}" for i in range(10)]
    loaded = load_initial(method.net, recipe.model, recipe.dataset.image_size, classes)
    assert loaded.heads["classifier"] == "new (not known to be for these classes)"
    assert loaded.heads["projector"] == "loaded"
    assert unchanged(method.net, before, "classifier.")


@pytest.mark.slow
@pytest.mark.parametrize("evaluate", ["raw", "ema"])
def test_a_run_saves_the_weights_and_the_head_of_its_settings(tmp_path, evaluate):
    settings = {**TINY, "head_activation": "relu", "evaluate": evaluate}
    options = {"labels": 20, "steps": 2, "settings": settings, "progress": False}
    run = comatch.train("digits", **options, out=tmp_path / "run")
    net = comatch.load(run, "cpu").net
    assert isinstance(net.projector.layers[1], torch.nn.ReLU)
    method = torch.load(tmp_path / "run/last.pt", weights_only=False)["method"]
    raw, averaged = method["net.classifier.weight"], method["ema.net.classifier.weight"]
    assert not torch.equal(raw, averaged)
    assert torch.equal(net.classifier.weight, raw if evaluate == "raw" else averaged)


def test_a_run_of_another_net_is_an_error(cli, tmp_path):
    assert cli("train", "digits", *FAST, "--out", "run")[0] == 0
    result = cli("train", "digits", *FAST, "--set", "net=wrn-16-1", "--init", "run", "--out", "b")
    fails(result, "run has net=wrn-10-1 and this run net=wrn-16-1", "--set net=wrn-10-1")
    assert not (tmp_path / "b").exists()


def fails(result, *fragments):
    code, _, err = result
    lines = [line for line in err.splitlines() if line.strip()]
    assert code == 2, err
    assert len(lines) == 1, err
    assert lines[0].startswith("error: "), err
    for fragment in fragments:
        assert fragment in lines[0], err


@pytest.mark.parametrize("words", [["--init", "x.pt"], ["--set", "init=x.pt"]])
def test_invalid_initial_weights_give_one_line_and_no_folder(cli, tmp_path, words):
    command = ["train", "digits", *FAST, *words]
    fails(cli(*command), "x.pt does not exist", "a run folder, a file of weights, or timm")
    (tmp_path / "x.pt").write_text("hello")
    fails(cli(*command), "x.pt is no file of weights")
    (tmp_path / "x.pt").unlink()
    (tmp_path / "x.pt").mkdir()
    fails(cli(*command), "x.pt is no run folder: name the file of weights in it")
    (tmp_path / "x.pt/split.json").write_text("{}")
    fails(cli(*command), "x.pt holds no trained network yet")
    assert not (tmp_path / "runs").exists()


def test_init_as_an_argument_or_a_setting(encoder_file, tmp_path):
    options = {"labels": 20, "steps": 1, "progress": False}
    ways = {"a": {"init": encoder_file}, "b": {"settings": {"init": str(encoder_file)}}}
    for name, way in ways.items():
        settings = {**TINY, **way.pop("settings", {})}
        comatch.train("digits", **options, **way, settings=settings, out=tmp_path / name)
    a, b = (load_file(tmp_path / name / "model.safetensors") for name in ways)
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_resumed_run_does_not_need_the_initial_weights(encoder_file, tmp_path, monkeypatch):
    """The run is interrupted and the file deleted. The resume is bit-exact."""
    settings = {**TINY, "checkpoint_every": 1, "eval_every": 2}
    options = {"labels": 20, "steps": 3, "init": encoder_file, "progress": False}
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    comatch.train("digits", **options, settings=settings, out=whole)

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop, "evaluate", stop)
        with pytest.raises(KeyboardInterrupt):
            comatch.train("digits", **options, settings=settings, out=broken)
    encoder_file.unlink()
    comatch.train("digits", **options, settings=settings, out=broken, resume=True)
    for name in ("model.safetensors", "metrics.jsonl", "config.json"):
        assert (whole / name).read_bytes() == (broken / name).read_bytes(), name
    assert "init" in session(broken, 0)
    assert "init" not in session(broken, 1)


def test_without_a_checkpoint_a_resume_needs_the_initial_weights(encoder_file, tmp_path):
    options = {"labels": 20, "steps": 1, "init": encoder_file, "settings": TINY, "progress": False}
    comatch.train("digits", **options, out=tmp_path / "run")
    (tmp_path / "run/last.pt").unlink()
    (tmp_path / "run/summary.json").unlink()
    encoder_file.unlink()
    with pytest.raises(UserError, match="does not exist"):
        comatch.train("digits", **options, out=tmp_path / "run", resume=True)


def test_a_resume_accepts_the_same_relative_path(cli, encoder_file, tmp_path):
    command = ["train", "digits", *FAST, "--init", encoder_file.name, "--out", "run"]
    assert cli(*command)[0] == 0
    encoder_file.unlink()
    assert cli(*command, "--resume")[0] == 0
    fails(cli(*command[:-4], "--init", "b.pt", "--out", "run", "--resume"), "init is")


def test_a_comparison_loads_initial_weights(encoder_file, tmp_path):
    options = {"methods": ["supervised"], "labels": 20, "steps": 1, "seeds": [0], "progress": False}
    settings = {key: TINY[key] for key in TINY if key != "bank_size"}
    with pytest.raises(UserError, match="does not exist"):
        comatch.compare(
            "digits", **options, settings={**settings, "init": "gone.pt"}, out=tmp_path / "c"
        )
    assert not (tmp_path / "c").exists()
    settings["init"] = str(encoder_file)
    comatch.compare("digits", **options, settings=settings, out=tmp_path / "c")
    assert session(tmp_path / "c/supervised-seed0")["init"]["encoder"]["taken"] == 37


# ------------------------------------------------------------------------ the learning rate


@pytest.mark.parametrize(
    ("settings", "lr"),
    [
        ({}, 0.1),
        ({"init": "timm"}, 0.1),
        ({"init_lr": 0.02}, 0.1),
        ({"init_lr": 0.02, "init": "timm"}, 0.02),
        ({"init_lr": 0.02, "init": "timm", "lr": 0.5}, 0.5),
    ],
)
def test_a_run_with_weights_has_its_own_learning_rate(settings, lr):
    assert plan("digits", settings).optim.lr == lr
    texts = [f"{key}={value}" for key, value in settings.items()]
    assert plan("digits", texts).optim.lr == lr


def test_initial_weights_are_trained_with_sgd_unless_muon_is_set():
    def optimizer(*settings):
        return plan("images", settings, recipe="folder").optim.optimizer

    assert optimizer() == "muon"
    assert optimizer("init=timm") == "sgd"
    assert optimizer("init=timm", "optimizer=muon") == "muon"


@pytest.mark.parametrize("name", ["imagenet-1pct", "imagenet-10pct"])
def test_the_papers_learning_rates(name, tmp_path):
    """Section 4.2: 0.1, and 0.03 for models initialised with MoCo v2."""
    assert plan("images", recipe=name).optim.lr == 0.1
    (tmp_path / "moco.pth.tar").touch()
    assert plan("images", recipe=name, init=tmp_path / "moco.pth.tar").optim.lr == 0.03


@pytest.mark.parametrize(("name", "steps"), [("imagenet-1pct", 4_875), ("imagenet-10pct", 24_000)])
def test_fine_tuning_on_imagenet_takes_the_epochs_of_simclr(name, steps, tmp_path):
    """60 epochs of 13,000 labels and 30 of 128,000, with 160 images a step."""
    (tmp_path / "moco.pth.tar").touch()
    options = {"recipe": name, "init": tmp_path / "moco.pth.tar"}
    assert plan("images", **options, method="supervised").optim.steps == steps
    assert plan("images", **options, method="supervised", steps=7).optim.steps == 7
    assert plan("images", **options).optim.steps == plan("images", recipe=name).optim.steps
