"""Detection on a tiny COCO: data, score, detector, and runs that are interrupted."""

import json
import shutil
import sys

import numpy as np
import pytest
import torch
from miniature import CATEGORIES, HEIGHT, WIDTH, make_coco
from PIL import Image
from torch import nn

from comatch.commands.report import runs
from comatch.commands.reproduce import paper
from comatch.commands.transfer import encoders, tables
from comatch.commands.transfer.detection import coco, default_folder, fine_tune, mask_rcnn, training
from comatch.commands.transfer.detection.setting import SCHEDULES, DetectionRequest, plan
from comatch.errors import UserError
from comatch.nets import Network, build_encoder
from comatch.tables import to_text
from comatch.training.loop import Interrupted
from comatch.training.run_folder import Run, RunFolder
from helpers import assert_same

pytestmark = pytest.mark.slow

SMALL = {"sides": (48, 64), "longest": 96, "proposals": 30, "sampled": 16, "norm_batches": 2}
QUICK = {"device": "cpu", "progress": False, "workers": 1, "batch": 2}
MEAN, STD = [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]


def fine_tune_on(coco, start, out=None, resume=False, **fields):
    return fine_tune(DetectionRequest(coco, start, **fields), out, resume)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_coco(tmp_path_factory.mktemp("coco"))


@pytest.fixture
def own_data(tmp_path):
    """Data that the test may damage."""
    return make_coco(tmp_path / "coco", train=4, val=3)


def write_run(path, net="resnet18", stem="standard", size=224):
    torch.manual_seed(5)
    network = Network(build_encoder(net, size, stem), classes=3, embedding_dim=16)
    for value in network.state_dict().values():  # batch norm statistics too
        value.add_(torch.rand_like(value) / 10) if value.is_floating_point() else value.add_(7)
    described = {
        "net": net,
        "stem": stem,
        "image_size": size,
        "embedding_dim": 16,
        "classes": ["a", "b", "c"],
        "mean": MEAN,
        "std": STD,
    }
    path.mkdir()
    RunFolder(path).write_model(network, described)
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The run folder of a classifier, with the files that a detector reads."""
    return write_run(tmp_path_factory.mktemp("runs") / "mine")


def setting(**changes):
    overrides = {"start": "random", "schedule": "1x", "steps": 90_000, "batch": 16, "seed": 0}
    known = {"net": "resnet18", "mean": MEAN, "std": STD, "coco": "", "images": 1}
    return plan(overrides | changes, known | {"classes": ["a", "b"], "precision": "fp32"})


# ------------------------------------------------------------------------------------ data


def test_images_and_targets(data):
    part = coco.CocoPart(data, "train", learn=True)
    assert len(part) == 9  # the tenth has no object
    assert part.classes == ["disc", "rectangle"]  # in the order of their ids
    assert len(coco.CocoPart(data, "val", learn=False)) == 6  # scoring needs all images
    _, image, target, _ = part.read(0)
    assert image.shape == (3, HEIGHT, WIDTH)
    assert target["boxes"].dtype == torch.float32  # although COCO's are whole numbers here
    (x0, y0, x1, y1), (label,) = target["boxes"][0].tolist(), target["labels"].tolist()
    assert part.classes[label - 1] == "rectangle"
    red = (image[0].int() - image[2].int()) > 100  # where the rectangle was painted
    assert (red == target["masks"][0].bool()).float().mean() > 0.98
    rows, columns = target["masks"][0].nonzero().T
    around = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    assert np.abs(np.subtract(around, (x0, y0, x1, y1))).max() <= 1


def test_crowds_are_not_targets(data):
    part = coco.CocoPart(data, "train", learn=True)
    id = part.ids[-1]
    assert any(one["iscrowd"] for one in part.coco.imgToAnns[id])
    assert len(part.target(id)["labels"]) == len(part.coco.imgToAnns[id]) - 1


def test_a_flip_moves_image_boxes_and_masks(data):
    part = coco.CocoPart(data, "train", learn=True)
    plain, flipped = part.read(1), part.read(1, flip=True)
    assert torch.equal(flipped.image, plain.image.flip(2))
    assert torch.equal(flipped.target["masks"], plain.target["masks"].flip(2))
    x0, y0, x1, y1 = plain.target["boxes"].T
    assert torch.equal(flipped.target["boxes"].T, torch.stack([WIDTH - x1, y0, WIDTH - x0, y1]))
    assert torch.equal(flipped.target["labels"], plain.target["labels"])


def test_empty_boxes_are_not_targets(own_data):
    path = own_data / "annotations/instances_train2017.json"
    content = json.loads(path.read_text())
    first, second, *_ = content["annotations"]
    first["bbox"] = [WIDTH + 1, 2, 10, 10]  # the only one of its image
    second["bbox"][3] = 1e-5  # float32 would round it to nothing
    path.write_text(json.dumps(content))
    part = coco.CocoPart(own_data, "train", learn=True)
    assert first["image_id"] not in part.ids
    assert len(part.target(second["image_id"])["labels"]) == 1


def contents(batches):
    return [[(one.id, one.image.sum().item()) for one in batch] for batch in batches]


def test_batches_depend_on_seed_and_step_alone(data):
    part = coco.CocoPart(data, "train", learn=True)

    def batches(seed, *steps, workers=1):
        return contents(coco.batches(part, 3, seed, range(*steps), workers))

    everything = batches(0, 6)
    assert batches(0, 4, 6) == everything[4:]
    assert batches(0, 6, workers=4) == everything
    assert batches(1, 6) != everything
    ids = [id for batch in everything[:3] for id, _ in batch]
    assert sorted(ids) == part.ids  # each once before any is repeated
    flips = [
        torch.equal(one.image, part.read(part.ids.index(one.id), flip=True).image)
        for batch in coco.batches(part, 3, 0, range(30), 1)
        for one in batch
    ]
    assert 0.3 < np.mean(flips) < 0.7


def test_batches_do_not_use_the_global_generator(data):
    before = torch.get_rng_state()
    list(coco.batches(coco.CocoPart(data, "train", learn=True), 2, 0, range(2), 1))
    assert torch.equal(torch.get_rng_state(), before)


# ----------------------------------------------------------------------------------- score


def truth(part, move=0):
    """The output of a perfect detector for each image, in torchvision's format."""
    for id in part.ids:
        if part.objects(id):
            target = part.target(id)
            scores = torch.linspace(1, 0.5, len(target["labels"]))
            boxes, masks = target["boxes"] + move, target["masks"].roll((move, move), (1, 2))
            output = {"boxes": boxes, "labels": target["labels"], "scores": scores}
            yield id, output | {"masks": masks[:, None].float()}


def perfect(part, move=0):
    return [
        one
        for id, output in truth(part, move)
        for one in coco.to_detections(output, id, part.categories)
    ]


def test_perfect_detections_score_100_and_none_score_0(data):
    part = coco.CocoPart(data, "val", learn=False)
    figures = coco.score(part, perfect(part), part.ids)
    assert list(figures)[:6] == [f"bb_{name}" for name in coco.METRICS]
    assert {figures[name] for name in paper.COCO_FIGURES} == {100.0}
    assert figures["bb_APl"] is None  # no object is large
    none = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0), "scores": torch.zeros(0)}
    none["masks"] = torch.zeros(0, 1, HEIGHT, WIDTH)
    assert coco.to_detections(none, part.ids[0], part.categories) == []
    nothing = coco.score(part, [], part.ids)
    assert {nothing[name] for name in paper.COCO_FIGURES} == {0.0}


def test_nearly_right_detections(data):
    part = coco.CocoPart(data, "val", learn=False)
    near = coco.score(part, perfect(part, move=2), part.ids)
    far = coco.score(part, perfect(part, move=5), part.ids)
    assert 100 > near["bb_AP"] > far["bb_AP"] > 0
    assert 100 > near["mk_AP"] > far["mk_AP"]
    assert near["bb_AP50"] == 100
    mistaken = [one | {"category_id": {3: 7, 7: 3}[one["category_id"]]} for one in perfect(part)]
    assert coco.score(part, mistaken, part.ids)["bb_AP"] == 0


def test_boxes_and_masks_are_scored_separately(data):
    part = coco.CocoPart(data, "val", learn=False)
    moved = [one | {"bbox": [0, 0, 3, 3]} for one in perfect(part)]
    figures = coco.score(part, moved, part.ids)
    assert (figures["bb_AP"], figures["mk_AP"]) == (0, 100)
    speck = torch.zeros(1, 1, HEIGHT, WIDTH)
    speck[..., :5, :5] = 1  # a small mask in a large box
    output = {"boxes": torch.tensor([[0.0, 0, 60, 60]]), "labels": torch.tensor([1])}
    wrong = coco.to_detections(
        output | {"masks": speck, "scores": torch.tensor([2.0])}, part.ids[0], part.categories
    )
    figures = coco.score(part, perfect(part) + wrong, part.ids)
    assert figures["bb_APs"] == 100  # the wrong box is large
    assert figures["mk_APs"] < 100


def test_detections_in_a_crowd_are_not_wrong(data):
    part = coco.CocoPart(data, "val", learn=False)
    id = part.ids[-2]
    (crowd,) = (one for one in part.coco.imgToAnns[id] if one["iscrowd"])
    drawn = torch.from_numpy(part.coco.annToMask(crowd))[None, None].float()
    output = {"boxes": torch.tensor([[4.0, 2, 60, 12]]), "labels": torch.tensor([1])}
    output |= {"masks": drawn, "scores": torch.tensor([2.0])}  # the most confident of all
    inside = coco.to_detections(output, id, part.categories)
    assert coco.score(part, perfect(part) + inside, part.ids)["bb_AP"] == 100
    elsewhere = coco.to_detections(output, part.ids[-1], part.categories)
    assert coco.score(part, perfect(part) + elsewhere, part.ids)["bb_AP"] < 100


def test_unreadable_images_are_not_scored(data):
    part = coco.CocoPart(data, "val", learn=False)
    some = part.ids[1:]
    figures = coco.score(part, [one for one in perfect(part) if one["image_id"] in some], some)
    assert figures["bb_AP"] == 100


# -------------------------------------------------------------------------------- detector


def test_only_the_encoder_has_the_weights_of_the_run(run):
    def detector(start):
        torch.manual_seed(0)
        encoder, loaded = mask_rcnn.build_encoder_from(start, "resnet18")
        return mask_rcnn.build(setting(), encoder).state_dict(), loaded

    theirs = encoders.load_encoder(str(run), encoders.PUBLISHED, "cpu")
    weights = theirs.net.encoder.state_dict()
    ours, loaded = detector(theirs)
    new, nothing = detector(None)
    body = {n.removeprefix("backbone.body."): v for n, v in ours.items() if "body." in n}
    assert body.keys() == weights.keys()
    for name, value in body.items():
        if not name.endswith("num_batches_tracked"):
            assert torch.equal(value, weights[name]), name
            assert not torch.equal(value, new[f"backbone.body.{name}"]), name
    for name in ours.keys() - {f"backbone.body.{name}" for name in body}:
        assert torch.equal(ours[name], new[name]), name  # the same for every start
    assert loaded.taken == loaded.wanted
    assert nothing is None


def test_all_layers_are_trained_and_have_batch_norm():
    model = mask_rcnn.build(setting(), mask_rcnn.build_encoder_from(None, "resnet18")[0])
    assert all(p.requires_grad for p in model.parameters())
    norms = [m for m in model.backbone.modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(norms) == 20 + 8  # of ResNet-18, and two for each new level
    model.train()
    images = torch.rand(2, 3, 64, 96)
    maps = model.backbone(images)
    assert list(maps) == ["0", "1", "2", "3", "pool"]
    assert [m.shape[2:] for m in maps.values()] == [(16, 24), (8, 12), (4, 6), (2, 3), (1, 2)]
    assert all(norm.num_batches_tracked == 1 for norm in norms)
    model.backbone.bf16 = True
    for name, low in model.backbone(images).items():
        assert low.dtype == torch.float32
        assert not torch.equal(low, maps[name])
        assert (low - maps[name]).norm() < 0.1 * maps[name].norm()


def test_images_are_normalised_for_the_encoder_and_resized():
    model = mask_rcnn.build(setting(), mask_rcnn.build_encoder_from(None, "resnet18")[0])
    assert (model.transform.image_mean, model.transform.image_std) == (MEAN, STD)
    assert list(model.transform.min_size) == [640, 672, 704, 736, 768, 800]
    model.eval()
    sizes = [model.transform([torch.zeros(3, 480, w)])[0].image_sizes[0] for w in (640, 1000)]
    assert sizes == [(800, 1066), (639, 1333)]


def test_schedules():
    assert {name: steps for name, (steps, _) in SCHEDULES.items()} == paper.COCO_STEPS
    once, twice = setting(), setting(schedule="2x", steps=180_000)
    assert (once.milestones, twice.milestones) == ([60_000, 80_000], [120_000, 160_000])
    assert once.warmup == twice.warmup == 1000
    rates = {step: once.lr_at(step) for step in (0, 499, 999, 59_999, 60_000, 79_999, 80_000)}
    wanted = [2e-5, 0.01, 0.02, 0.02, 0.002, 0.002, 0.0002]
    assert list(rates.values()) == pytest.approx(wanted)
    short = setting(steps=9_000, batch=4)
    assert (short.milestones, short.warmup, short.lr) == ([6_000, 8_000], 100, 0.005)
    assert setting(lr=1.0).lr == 1.0
    with pytest.raises(UserError, match="unknown setting 'side': did you mean 'sides'"):
        setting(side=3)


# ------------------------------------------------------------------------------------- run


def test_the_detector_learns_to_find_shapes(run, tmp_path, monkeypatch):
    data = make_coco(tmp_path / "coco", train=17, val=7)
    out = tmp_path / "out"
    settings = SMALL | {"lr": 0.02, "sides": (64,), "sampled": 8, "norm_batches": 4}
    options = QUICK | {"steps": 24, "batch": 4, "settings": settings, "out": out}
    monkeypatch.setattr(training, "LOG_EVERY", 4)
    done = fine_tune_on(data, run, **options)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line["kind"] == "train"]
    assert len(losses) == 6
    assert losses[-1] < losses[0] / 2
    assert lines[-1]["kind"] == "eval"
    assert lines[-1]["bb_AP"] == done.summary["bb_AP"]
    assert done.summary["bb_AP50"] > 20
    assert done.summary["mk_AP50"] > 20
    files = {"config.json", "metrics.jsonl", "environment.json", "last.pt", "summary.json"}
    assert {p.name for p in out.iterdir()} == {*files, "tensorboard"}
    assert json.loads((out / "summary.json").read_text()) == done.summary
    config = json.loads((out / "config.json").read_text())
    assert (config["start"], config["net"], config["mean"]) == (str(run), "resnet18", MEAN)
    session = json.loads((out / "environment.json").read_text())["sessions"][0]
    assert session["init"]["encoder"] == {"taken": 100, "wanted": 100}
    assert runs.find(tmp_path) == []  # a detector has no accuracy
    with pytest.raises(UserError, match="out is a run of transfer detect"):
        runs.find(out)
    again = fine_tune_on(data, run, resume=True, **options)
    assert again.summary == done.summary  # finished: only read
    with pytest.raises(UserError, match="is not empty: add --resume"):
        fine_tune_on(data, run, **options)


class Killed(BaseException):
    """Ends a run without any handling."""


def kill(*_):
    raise Killed


def run_with(name, value, *words, **options):
    """`fine_tune` with a patched function that ends it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(name, value)
        fine_tune_on(*words, **options)


STEP = "comatch.commands.transfer.detection.training.FineTuning.step"


def killed_after(steps):
    take = training.FineTuning.step
    return lambda self, *batch: kill() if self.done == steps else take(self, *batch)


def assert_same_run(one, other):
    states = [torch.load(run / "last.pt", weights_only=True) for run in (one, other)]
    for state in states:
        del state["seconds"]
    assert_same(*states)
    assert (one / "metrics.jsonl").read_bytes() == (other / "metrics.jsonl").read_bytes()
    summaries = [json.loads((run / "summary.json").read_text()) for run in (one, other)]
    for summary in summaries:
        del summary["seconds"], summary["peak_memory_mb"]
    assert summaries[0] == summaries[1]


def test_resume_is_bit_exact(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "LOG_EVERY", 2)
    run, own_data = write_run(tmp_path / "run"), make_coco(tmp_path / "coco", train=17, val=3)
    (first,) = coco.batches(coco.CocoPart(own_data, "train", learn=True), 2, 0, range(1), 1)
    # Drawn once in the run, so the resumed part knows of it only from the checkpoint.
    broken = own_data / "train2017" / f"{first[0].id:012}.jpg"
    broken.write_bytes(b"")
    options = QUICK | {"steps": 4, "settings": SMALL, "save_every": 2}
    with pytest.warns(UserWarning, match="1 of train2017 were left out"):
        fine_tune_on(own_data, run, out=tmp_path / "whole", **options)
    options |= {"out": tmp_path / "broken"}
    with pytest.raises(Killed):
        run_with(STEP, killed_after(3), own_data, run, **options)
    options |= {"resume": True}
    shutil.rmtree(run)  # the checkpoint has the weights
    stopping = "comatch.training.signals.StopRequest.__init__", request_stop
    with pytest.raises(Interrupted) as stopped:
        run_with(*stopping, own_data, run, **options)
    assert stopped.value.step == 3
    with pytest.raises(Killed):
        run_with(STEP.replace("step", "score"), kill, own_data, run, **options)
    with pytest.warns(UserWarning, match="1 of train2017 were left out"):
        fine_tune_on(own_data, run, **options | {"workers": 3})
    assert_same_run(tmp_path / "whole", tmp_path / "broken")


def request_stop(self):
    self.asked = True


def test_batch_norm_is_measured_over_many_batches(data, tmp_path, monkeypatch):
    """The first layer's mean, computed here from the batches after the last step."""
    small = setting(**SMALL | {"sides": (64,), "steps": 7, "batch": 3, "norm_batches": 3})
    model = mask_rcnn.build(small, mask_rcnn.build_encoder_from(None, "resnet18")[0])
    run = training.FineTuning(RunFolder(tmp_path), small, model, torch.device("cpu"), workers=1)
    part, body = coco.CocoPart(data, "train", learn=True), model.backbone.body
    means = []
    for batch in coco.batches(part, 3, small.seed, range(7, 10), 1):
        seen, _ = model.transform([one.image / 255 for one in batch])
        means.append(body["conv1"](seen.tensors).mean((0, 2, 3)))
    run.measure_norms(part, progress=False)
    torch.testing.assert_close(body["bn1"].running_mean, torch.stack(means).mean(0))
    measured = []
    monkeypatch.setattr(run, "measure_norms", lambda part, _: measured.append(part))
    model.backbone.bf16 = True
    run.summarise(part, coco.CocoPart(data, "val", learn=False), progress=False)
    assert measured == [part]
    assert not model.backbone.bf16  # scored in full precision


def test_images_that_cannot_be_read_are_counted(run, own_data, tmp_path):
    train, val = sorted((own_data / "train2017").iterdir()), own_data / "val2017"
    train[0].write_bytes(b"not an image")
    Image.new("RGB", (WIDTH, HEIGHT - 1)).save(train[1])  # the boxes would be in the wrong place
    next(val.iterdir()).unlink()
    options = QUICK | {"steps": 2, "batch": 3, "settings": SMALL, "out": tmp_path / "out"}
    with pytest.warns(UserWarning, match="left out") as warned:
        summary = fine_tune_on(own_data, run, **options).summary
    assert summary["unread"] == {"train2017": 2, "val2017": 1}
    said = " ".join(str(one.message) for one in warned)
    for words in (f"{train[0].name}: not an image", "size differs", "no such file"):
        assert words in said
    train[2].unlink()
    with pytest.raises(UserError, match="no image of a whole batch can be read"):
        fine_tune_on(own_data, run, **options | {"out": tmp_path / "other"})


def test_a_nan_stops_the_run(run, own_data, tmp_path, monkeypatch):
    options = QUICK | {"steps": 3, "settings": SMALL, "save_every": 1, "out": tmp_path / "out"}
    take = training.FineTuning.step

    def step(self, images, targets):
        if self.done == 1:
            self.model.backbone.fpn.inner_blocks[0][1].weight.data.fill_(float("nan"))
        return take(self, images, targets)

    monkeypatch.setattr(training.FineTuning, "step", step)
    with pytest.raises(UserError, match="not finite in 1 of the steps up to 2; the last good"):
        fine_tune_on(own_data, run, **options)
    state = torch.load(tmp_path / "out" / "last.pt", weights_only=True)
    assert state["step"] == 1
    assert all(value.isfinite().all() for value in state["model"].values())


# ----------------------------------------------------------------------- errors and tables


@pytest.mark.parametrize(
    ("net", "stem", "size", "fragment"),
    [
        ("wrn-10-1", "auto", 32, "net=wrn-10-1, and a detector is built on resnet18, resnet34"),
        ("resnet18", "small", 224, "does not fit resnet18: conv1.weight (64x3x3x3 in it, 64x3x7x7"),
    ],
)
def test_encoders_of_another_architecture_are_an_error(data, tmp_path, net, stem, size, fragment):
    run = write_run(tmp_path / "run", net, stem, size)
    with pytest.raises(UserError) as error:
        fine_tune_on(data, run, out=tmp_path / "out", **QUICK)
    assert fragment in str(error.value)
    assert not (tmp_path / "out").exists()


def test_files_of_weights_and_names_of_timm(tmp_path):
    assert mask_rcnn.net_of("random") == mask_rcnn.net_of("timm") == "resnet50"
    assert mask_rcnn.net_of("timm:resnet101.a1_in1k") == "resnet101"
    assert mask_rcnn.net_of(str(tmp_path / "moco.pth")) == "resnet50"
    with pytest.raises(UserError, match="net=vit_base_patch16_224"):
        mask_rcnn.net_of("timm:vit_base_patch16_224")
    mine = DetectionRequest("coco", "/a/mine", "2x", seed=3)
    assert str(default_folder(mine)) == "runs/detect-mine-2x-seed3"
    assert ":" not in str(default_folder(DetectionRequest("coco", "timm:resnet50.a1_in1k")))


def test_a_resumed_run_keeps_its_settings(run, own_data, tmp_path):
    options = QUICK | {"steps": 4, "settings": SMALL, "out": tmp_path / "out", "save_every": 1}
    with pytest.raises(Killed):
        run_with(STEP, killed_after(1), own_data, run, **options)
    options["resume"] = True
    with pytest.raises(UserError, match=r"steps is 4, not 5\): keep steps=4"):
        fine_tune_on(own_data, run, **options | {"steps": 5})
    with pytest.raises(UserError, match="proposals is 30, not 31"):
        fine_tune_on(own_data, run, **options | {"settings": SMALL | {"proposals": 31}})
    with pytest.raises(UserError, match="is not the data that"):
        fine_tune_on(make_coco(tmp_path / "other", 7, 3), run, **options)
    (tmp_path / "out" / "config.json").write_text('{"recipe": {}}')
    with pytest.raises(UserError, match="is not the run of a detector"):
        fine_tune_on(own_data, run, **options)


def keep(root):
    pass


def drop_annotations(root):
    (root / "annotations/instances_val2017.json").unlink()


def drop_images(root):
    shutil.rmtree(root / "train2017")


def damage_annotations(root):
    (root / "annotations/instances_train2017.json").write_text('{"images": [')


def remove_objects(root):
    path = root / "annotations/instances_train2017.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "annotations": []}))


def other_classes(root):
    path = root / "annotations/instances_val2017.json"
    content = path.read_text().replace('"category_id": 7', '"category_id": 3')
    path.write_text(json.dumps({**json.loads(content), "categories": CATEGORIES[1:]}))


@pytest.mark.parametrize(
    ("damage", "words", "fragment"),
    [
        (drop_annotations, [], "there is no coco/annotations/instances_val2017.json"),
        (drop_images, [], "there is no coco/train2017: COCO's images belong there"),
        (damage_annotations, [], "cannot be read as COCO's annotations"),
        (remove_objects, [], "no image of coco/train2017 has an object"),
        (other_classes, [], "train2017 and val2017 differ in classes"),
        (keep, ["--schedule", "3x"], "unknown schedule '3x'"),
        (keep, ["--steps", 0], "must be at least 1"),
        (keep, ["--seed", -1], "seed=-1: must not be negative"),
    ],
)
def test_mistakes_are_one_line(cli, run, own_data, damage, words, fragment):
    damage(own_data)
    code, _, err = cli("transfer", "detect", "coco", run, "--device", "cpu", *words)
    assert code == 2
    assert len(err.strip().splitlines()) == 1
    assert fragment in err


def test_without_pycocotools_the_error_names_the_extra(cli, run, data, monkeypatch):
    monkeypatch.setitem(sys.modules, "pycocotools.coco", None)
    code, _, err = cli("transfer", "detect", data, run, "--device", "cpu")
    assert code == 2
    assert 'pip install "comatch[detection]"' in err
    code, _, err = cli("transfer", "detect", data, "nowhere")
    assert code == 2
    assert "nowhere does not exist" in err


def summary(**changes):
    figures = dict.fromkeys(paper.COCO_FIGURES, 12.345)
    made = {"start": "/a/mine", "schedule": "2x", "net": "resnet50", "steps": 180_000, "batch": 16}
    return {**made, **figures, **changes}


def test_the_table_says_if_it_is_not_comparable():
    text = to_text(tables.detection(summary()))
    for words in ("2x schedule", "paper: MoCo", "61.6", "ours: mine", "12.3"):
        assert words in text
    assert "59.6" not in text  # of the other schedule
    assert "not comparable" not in text
    for unlike in ({"steps": 900}, {"batch": 8}, {"net": "resnet18"}):
        assert "not comparable" in to_text(tables.detection(summary(**unlike)))
    assert "ours: [b] mine" in to_text(tables.detection(summary(start="/a/[b] mine")))
    assert "900 steps of 16 images" in to_text(tables.detection(summary(steps=900)))


def test_the_command_prints_the_table_or_how_to_resume(cli, tmp_path, monkeypatch):
    from comatch.commands.transfer import detection

    requests = []

    def finished(request, out, resume):
        requests.append(request)
        return Run(tmp_path / "out", summary())

    monkeypatch.setattr(detection, "fine_tune", finished)
    words = ["transfer", "detect", "coco", "mine", "--schedule", "2x", "--batch", 8, "--seed", 3]
    code, out, _ = cli(*words, "--steps", 900)
    assert code == 0
    assert "paper: CoMatch" in out
    (request,) = requests
    assert (request.schedule, request.batch, request.seed, request.steps) == ("2x", 8, 3, 900)

    def stopped(*_, **__):
        raise Interrupted(7, tmp_path / "out")

    monkeypatch.setattr(detection, "fine_tune", stopped)
    for more in ([], ["--resume"]):
        code, _, err = cli(*words, *more)
        assert code == 130
        assert "stopped after step 7 of out; everything up to there is saved" in err
        assert f"comatch {' '.join(map(str, words))} --resume\n" in err
