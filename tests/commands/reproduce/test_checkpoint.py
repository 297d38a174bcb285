"""A published checkpoint is evaluated without training: a file in the layout of the authors'."""

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image

from comatch.commands.reproduce.checkpoint import evaluate_checkpoint
from comatch.errors import UserError
from comatch.planning import Request
from helpers import photograph

NAMES = ("a", "b", "c", "d", "e", "f", "g")  # of the classes: seven, so that top-5 means something
MEAN = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
STD = torch.tensor([0.229, 0.224, 0.225])[:, None, None]


class Authors(torch.nn.Module):
    """The two networks of the authors' ImageNet model, with torchvision's ResNet as the encoder."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        for prefix in ("", "m_"):
            encoder = torchvision.models.resnet18()
            width, encoder.fc = encoder.fc.in_features, torch.nn.Identity()
            for norm in encoder.modules():
                if isinstance(norm, torch.nn.BatchNorm2d):
                    norm.running_mean.normal_(std=0.1)
                    norm.running_var.uniform_(0.5, 1.5)
            setattr(self, f"{prefix}encoder", encoder)
            setattr(self, f"{prefix}classifier", torch.nn.Linear(width, len(NAMES)))
            setattr(self, f"{prefix}fc1", torch.nn.Linear(width, width))
            setattr(self, f"{prefix}fc2", torch.nn.Linear(width, 128))
        self.register_buffer("queue_s", torch.rand(128, 30))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    def forward(self, images):
        return self.classifier(self.encoder(images))


def save(path, state, under):
    torch.save({under: state, "epoch": 399, "optimizer": {"state": {}}}, path)
    return path


@pytest.fixture
def model():
    return Authors().eval()


@pytest.fixture
def data(tmp_path):
    """A folder as ImageNet has it."""
    for number, name in enumerate(NAMES):
        for part, count in (("train", 2), ("val", 3)):
            (tmp_path / "data" / part / name).mkdir(parents=True)
            for i in range(count):
                image = photograph(90, 70, seed=100 * number + 10 * i + (part == "val"))
                image.save(tmp_path / "data" / part / name / f"{i}.png")
    return tmp_path / "data"


@torch.no_grad()
def accuracy(model, data):
    """Top-1 and top-5 by torchvision: shorter side 73 (64 x 256 / 224), centre crop of 64."""
    right, in_five, count = 0, 0, 0
    for label, name in enumerate(NAMES):
        for path in sorted((data / "val" / name).iterdir()):
            image = Image.open(path).convert("RGB")
            side = 73 / min(image.size)
            sizes = [round(side * length) for length in image.size]
            pixels = np.asarray(image.resize(sizes, Image.Resampling.BILINEAR))
            top, left = ((length - 64) // 2 for length in pixels.shape[:2])
            crop = torch.from_numpy(pixels[top : top + 64, left : left + 64].copy())
            logits = model(((crop.permute(2, 0, 1) / 255 - MEAN) / STD)[None])[0]
            right += int(logits.argmax() == label)
            in_five += int(label in logits.topk(5).indices)
            count += 1
    return right / count, in_five / count


def evaluate(path, data, **settings):
    asked = {"net": "resnet18", "image_size": 64, "labels": 7, "stream": "yes", **settings}
    request = Request(data, recipe="imagenet-1pct", device="cpu", settings=asked, progress=False)
    return evaluate_checkpoint(str(path), request)


@pytest.mark.parametrize(
    ("prefix", "under"), [("", "model"), ("module.", "state_dict"), ("module.model.", "model")]
)
def test_the_authors_file_is_loaded_completely(tmp_path, model, data, prefix, under):
    state = {f"{prefix}{name}": value for name, value in model.state_dict().items()}
    found = evaluate(save(tmp_path / "comatch.pth.tar", state, under), data)
    assert found.loaded.taken == found.loaded.wanted == 100
    assert found.loaded.heads == {"projector": "loaded", "classifier": "loaded"}
    assert found.loaded.left_out == []
    assert {word.split()[0] for word in found.loaded.unused} == {
        *("m_encoder", "m_classifier", "m_fc1", "m_fc2", "queue_s", "queue_ptr")
    }
    top1, top5 = accuracy(model, data)
    assert found.scores.top1 == pytest.approx(top1)
    assert found.scores.top5 == pytest.approx(top5)
    assert found.scores.images == 21
    assert found.published == (66.0, 86.4)


def test_torchvisions_classifier_is_known(tmp_path, data):
    torch.manual_seed(0)
    model = torchvision.models.resnet18(num_classes=len(NAMES)).eval()
    torch.save(model.state_dict(), tmp_path / "resnet18.pth")
    found = evaluate(tmp_path / "resnet18.pth", data)
    assert found.loaded.heads["classifier"] == "loaded"
    assert (found.scores.top1, found.scores.top5) == pytest.approx(accuracy(model, data))


def test_the_command(cli, tmp_path, model, data):
    path = save(tmp_path / "comatch.pth.tar", model.state_dict(), "model")
    words = ["--set", "net=resnet18", "--set", "image_size=64", "--set", "labels=7"]
    words += ["--set", "stream=yes", "--device", "cpu"]
    code, out, err = cli("reproduce", "checkpoint", data, path, *words)
    assert code == 0, err
    top1, top5 = accuracy(model, data)
    rows = [line.split() for line in out.splitlines()]
    assert ["imagenet-1pct", "paper", "66.0", "86.4"] in rows
    assert ["ours", f"{100 * top1:.2f}", f"{100 * top5:.2f}"] in rows
    assert "100 of 100 encoder tensors, projector loaded, classifier loaded" in out
    assert "evaluated on 21 images" in out


def test_files_that_cannot_be_evaluated(tmp_path, model, data):
    state = model.state_dict()
    without = {n: v for n, v in state.items() if "classifier" not in n}
    with pytest.raises(UserError, match=r"has no classifier of these data: classifier new \(not"):
        evaluate(save(tmp_path / "a.pth", without, "model"), data)
    other = {**state, "classifier.weight": torch.ones(9, 512), "classifier.bias": torch.ones(9)}
    with pytest.raises(UserError, match=r"has no classifier.*9x512 in it, 7x512 here"):
        evaluate(save(tmp_path / "b.pth", other, "model"), data)
    part = {n: v for n, v in state.items() if n != "encoder.conv1.weight"}
    with pytest.raises(UserError, match=r"is no whole encoder: conv1.weight"):
        evaluate(save(tmp_path / "c.pth", part, "model"), data)
    with pytest.raises(UserError, match=r"nowhere.pth does not exist"):
        evaluate(tmp_path / "nowhere.pth", data)
