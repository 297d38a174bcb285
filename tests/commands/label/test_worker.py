"""The background process: what it sends while pictures are encoded and labels come in."""

import numpy as np
import pytest
import torch

from comatch.commands.label.worker import Worker
from comatch.data.features import Encoder
from helpers import make_images


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """A worker with an encoder that sees stripes at once: means of rows and of columns."""
    monkeypatch.setenv("COMATCH_CACHE", str(tmp_path / "cache"))
    folder = make_images(tmp_path / "made", per_class=0, unlabelled=60, test=0) / "unlabeled"
    sent = []
    worker = Worker(folder, None, None, "cpu", lambda **message: sent.append(message))
    worker.sent = sent

    def encode(pixels):
        images = torch.as_tensor(pixels).float().mean(1)
        return torch.cat(
            [
                images.mean(1).var(1, keepdim=True),
                images.mean(2).var(1, keepdim=True),
                images.mean((1, 2))[:, None],
            ],
            1,
        )

    worker.encoder = Encoder("stripes", 3, 24, lambda: encode)
    worker.inbox.put({"names": [f"{i}.jpg" for i in range(60)]})
    worker.receive()
    return worker


def go(worker):
    """One round of its loop."""
    for _ in worker.encode():
        worker.receive()
        worker.learn()
    worker.learn(rest=True)
    sent = {key: value for message in worker.sent for key, value in message.items()}
    worker.sent.clear()
    return sent


def test_an_order_without_labels(worker):
    sent = go(worker)
    assert sent["progress"] == [60, 60]
    assert sorted(sent["order"]) == list(range(60))
    assert {number % 2 for number in sent["order"][:4]} == {0, 1}  # both kinds come early
    assert "model" not in sent
    assert go(worker) == {}  # nothing is new


def test_a_model_with_labels(worker):
    go(worker)
    truth = {number: ("standing", "lying")[number % 2] for number in range(12)}
    worker.inbox.put({"marks": {str(number): label for number, label in truth.items()}})
    worker.inbox.put({"marks": {**{str(n): label for n, label in truth.items()}, "20": None}})
    worker.receive()
    sent = go(worker)
    model = sent["model"]
    guess = {n: model["classes"][g] for n, g in zip(model["numbers"], model["guess"], strict=True)}
    right = [guess[number] == ("standing", "lying")[number % 2] for number in range(60)]
    assert np.mean(right) > 0.9
    assert model["labels"] == 12
    accuracy = model["accuracy"]
    assert accuracy["images"] == 12
    assert 0 <= accuracy["low"] <= accuracy["share"] <= accuracy["high"] <= 1
    assert not {*range(12), 20} & set(sent["order"])  # labelled and skipped ones


def test_unreadable_and_new_pictures(worker):
    (worker.root / "damaged.jpg").write_text("no image")
    worker.inbox.put({"names": ["damaged.jpg"]})
    worker.receive()
    sent = go(worker)
    assert list(sent["unread"]) == ["60"]
    assert 60 not in sent["order"]
    assert sent["progress"] == [61, 61]
