"""Scores are compared with values computed by hand."""

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console

from comatch.evaluation import probabilities, tables, temperature
from comatch.evaluation.accuracy import calibration_error, compare, interval, score
from comatch.nets import Network, build_encoder


def test_scores():
    p = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.7, 0.1], [0.4, 0.5, 0.1], [0.6, 0.3, 0.1]])
    scores = score(compare(p, torch.tensor([0, 1, 0, 0])), 3)
    assert scores.top1 == 0.75
    assert scores.top5 is None
    assert scores.recall == [pytest.approx(2 / 3), 1.0, None]
    assert scores.confused_with == [(1, pytest.approx(1 / 3)), None, None]
    assert scores.images == 4


def test_recall_and_most_frequent_confusion_of_each_class():
    predictions = [0, 2, 2, 1, 1, 1, 0, 0, 1, 1]
    p = torch.eye(3)[predictions]
    scores = score(compare(p, torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 2, 2])), 3)
    assert scores.recall == [0.25, 0.5, 0.0]
    assert scores.confused_with == [(2, 0.5), (0, 0.5), (1, 1.0)]


def test_class_names_in_square_brackets_are_shown_as_they_are():
    p = torch.eye(2)[[0, 1, 0]]
    table = tables.scores(score(compare(p, torch.tensor([0, 1, 1])), 2), ["[red]", "[b]cat"])
    console = Console(width=120, color_system=None)
    with console.capture() as drawn:
        console.print(table)
    assert "[b]cat" in drawn.get()
    assert "[red] 50.0%" in drawn.get()


def test_top5():
    p = torch.eye(7)[[0, 0]] + torch.tensor([0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0])
    assert score(compare(p, torch.tensor([4, 6])), 7).top5 == 0.5


def test_calibration_error():
    """Two bins: confidence 0.9 with accuracy 0.5, and confidence 0.5 with accuracy 1."""
    confidence = torch.tensor([0.9, 0.9, 0.5, 0.5])
    right = torch.tensor([True, False, True, True])
    assert calibration_error(confidence, right) == pytest.approx(0.5 * 0.4 + 0.5 * 0.5, abs=1e-6)
    assert calibration_error(torch.ones(3), torch.ones(3, dtype=torch.bool)) == 0.0


@pytest.mark.parametrize("right", [0, 1, 4, 10])
def test_confidence_interval(right):
    """The ends of Wilson's interval solve (share - x)^2 = z^2 x (1 - x) / n."""
    share, n = right / 10, 10
    for end in interval(share, n):
        assert 0 <= end <= 1
        assert (share - end) ** 2 == pytest.approx(1.96**2 * end * (1 - end) / n, abs=1e-12)
    low, high = interval(share, n)
    assert low <= share <= high
    assert high - low > interval(share, 1000)[1] - interval(share, 1000)[0]


@pytest.mark.parametrize("true", [1.0, 1.7, 4.0])
def test_temperature_of_overconfident_probabilities_is_recovered(true):
    """Labels are drawn from probabilities, which are then made overconfident."""
    generator = torch.Generator().manual_seed(0)
    calibrated = F.softmax(2 * torch.randn(20_000, 5, generator=generator), dim=1)
    labels = torch.multinomial(calibrated, 1, generator=generator)[:, 0]
    overconfident = F.softmax(true * calibrated.log(), dim=1)
    found = temperature.fit(overconfident, labels)
    assert found == pytest.approx(true, rel=0.03)
    softened = temperature.soften(overconfident, found)
    torch.testing.assert_close(softened, calibrated, atol=0.01, rtol=0)
    assert torch.equal(softened.argmax(1), overconfident.argmax(1))


def test_temperature_is_between_1_and_20():
    p = torch.tensor([[0.7, 0.3], [0.4, 0.6], [1.0, 0.0]])
    assert temperature.fit(p, p.argmax(1)) == 1
    assert temperature.soften(p, 1.0) is p
    assert temperature.fit(p, p.argmin(1)) == pytest.approx(temperature.HIGHEST)
    assert temperature.soften(p, 3.0).isfinite().all()
    torch.testing.assert_close(temperature.soften(p, 3.0).sum(1), torch.ones(3))


def test_probabilities_do_not_change_the_network():
    net = Network(build_encoder("wrn-10-1", 8), 3).train()
    net.compute_dtype = torch.bfloat16
    before = {name: value.clone() for name, value in net.state_dict().items()}
    images = torch.randint(256, (10, 3, 8, 8), dtype=torch.uint8)
    mean, std = torch.full((3,), 0.5), torch.full((3,), 0.2)
    p = probabilities(net, images, mean, std, batch=4)
    assert net.training
    assert net.compute_dtype == torch.bfloat16
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]), name
    torch.testing.assert_close(p.sum(1), torch.ones(10))
    torch.testing.assert_close(p, probabilities(net, images, mean, std, batch=10))
