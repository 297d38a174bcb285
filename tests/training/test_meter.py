"""Metrics summed on the device."""

import copy

import pytest
import torch

from comatch.training.meter import Meter, averages, score


def metrics(loss, finite=1.0):
    values = {"steps": 1.0, "finite_steps": finite, "loss": loss}
    return {name: torch.tensor(value) for name, value in values.items()}


def test_accuracy_of_confident_pseudo_labels():
    pseudo, truth = torch.tensor([0, 1, -1, 2, 2]), torch.tensor([0, 2, 1, -1, 2])
    meter = Meter()
    meter.add({**metrics(1.0), **score(pseudo, truth)})
    means = averages(meter.read())
    assert means["confident"] == pytest.approx(4 / 5)
    assert means["pseudo_accuracy"] == pytest.approx(2 / 3)  # one true class is unknown


def test_reading_averages_and_clears():
    meter = Meter()
    for value in (1.0, 2.0, 6.0):
        meter.add(metrics(value))
    assert averages(meter.read()) == {"loss": 3.0}
    assert meter.read()["loss"] == 0.0


def test_sums_keep_their_address():
    """A captured CUDA graph writes to the address that it recorded."""
    meter = Meter()
    meter.add(metrics(1.0))
    address = meter.sums.data_ptr()
    meter.read()
    meter.add(metrics(2.0))
    assert meter.sums.data_ptr() == address
    assert meter.read()["loss"] == 2.0


def test_state_dict_round_trip():
    meter, other = Meter(), Meter()
    meter.add(metrics(1.0))
    meter.add(metrics(float("nan"), finite=0.0))
    other.load_state_dict(copy.deepcopy(meter.state_dict()), torch.device("cpu"))
    assert other.bad_steps() == meter.bad_steps() == 1
    other.add(metrics(1.0))
    assert other.read()["steps"] == 3.0
    assert meter.read()["steps"] == 2.0  # they share no memory


def test_state_dict_round_trip_of_an_empty_meter():
    meter, other = Meter(), Meter()
    assert meter.bad_steps() == 0
    other.load_state_dict(meter.state_dict(), torch.device("cpu"))
    assert other.read() == {}
    other.add(metrics(4.0))
    assert other.read() == {"steps": 1.0, "finite_steps": 1.0, "loss": 4.0}
