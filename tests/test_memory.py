"""Ring buffer, averages and EMA against reference implementations in plain Python."""

import copy
from collections import deque

import pytest
import torch
from torch import nn

from comatch.memory import Averages, Ema, RingBuffer, RunningMean


@pytest.mark.parametrize(("size", "pushes"), [(10, [5, 5, 5]), (7, [3, 3, 3, 3]), (4, [6, 1, 9])])
def test_ring_buffer_keeps_the_last_rows(size, pushes):
    buffer, expected = RingBuffer(size, 2), deque(maxlen=size)
    value = 0
    for count in pushes:
        rows = torch.arange(value, value + count).float()[:, None].repeat(1, 2)
        value += count
        buffer.push(rows)
        expected.extend(rows[:, 0].tolist())
        assert buffer.filled.item() == len(expected)
        assert bool(buffer.full) == (len(expected) == size)
        held = buffer.rows[: len(expected), 0] if len(expected) < size else buffer.rows[:, 0]
        assert sorted(held.tolist()) == sorted(expected)


def test_the_oldest_row_is_overwritten_first():
    buffer = RingBuffer(3, 1)
    for value in range(5):
        buffer.push(torch.full((1, 1), float(value)))
    assert buffer.rows[:, 0].tolist() == [3.0, 4.0, 2.0]
    assert buffer.cursor.item() == 2


def test_mean_with_is_the_mean_after_pushing():
    buffer, window = RingBuffer(4, 3), deque(maxlen=4)
    generator = torch.Generator().manual_seed(0)
    for _ in range(11):
        row = torch.rand(3, generator=generator)
        window.append(row)
        before = buffer.rows.clone()
        mean = buffer.mean_with(row)
        assert torch.equal(buffer.rows, before), "reading must not write"
        torch.testing.assert_close(mean, torch.stack(list(window)).mean(0))
        buffer.push(row[None])


def test_ring_buffer_keeps_its_address():
    """A captured CUDA graph always writes to the same address."""
    buffer = RingBuffer(4, 2)
    addresses = [b.data_ptr() for b in buffer.buffers()]
    for _ in range(3):
        buffer.push(torch.rand(3, 2))
    assert [b.data_ptr() for b in buffer.buffers()] == addresses


def test_ring_buffer_state_round_trips():
    buffer, other = RingBuffer(5, 2), RingBuffer(5, 2)
    buffer.push(torch.rand(3, 2))
    other.load_state_dict(buffer.state_dict())
    row = torch.rand(4, 2)
    buffer.push(row)
    other.push(row)
    assert torch.equal(buffer.rows, other.rows)
    assert torch.equal(buffer.cursor, other.cursor)


def test_kept_by_is_which_rows_remain():
    buffer = RingBuffer(5, 1)
    for pushed in range(0, 12, 2):
        for count in (1, 3, 5, 7):
            kept = [i for i in range(pushed) if i >= pushed + count - 5]
            expected = {float(i) for i in kept}
            assert {*buffer.rows[buffer.kept_by(count)].flatten().tolist()} == expected
        buffer.push(torch.tensor([[float(pushed)], [float(pushed + 1)]]))


@pytest.mark.parametrize("decay", [0.0, 0.7, 0.999])
def test_running_mean_is_an_exponential_average(decay):
    running, expected = RunningMean(torch.tensor([0.25, 1.0]), decay).double(), [0.25, 1.0]
    address = running.row.data_ptr()
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        row = torch.rand(2, generator=generator, dtype=torch.float64)
        expected = [
            decay * m + (1 - decay) * r for m, r in zip(expected, row.tolist(), strict=True)
        ]
        before = running.row.clone()
        mean = running.mean_with(row)
        assert torch.equal(running.row, before), "reading must not write"
        assert mean.tolist() == pytest.approx(expected, rel=1e-12)
        running.push(row[None])
        assert torch.equal(running.row, mean)
    assert running.row.data_ptr() == address


def test_running_mean_copies_its_guess():
    guess = torch.tensor([0.5])
    RunningMean(guess, 0.9).push(torch.tensor([[1.0]]))
    assert guess.item() == 0.5


@pytest.mark.parametrize("alpha", [0.0, 0.6, 0.99])
def test_averages_of_each_image_over_its_visits(alpha):
    averages, z, visits = Averages(5, 2, alpha).double(), [[0.0, 0.0] for _ in range(5)], [0] * 5
    generator = torch.Generator().manual_seed(0)
    for _ in range(30):
        images = torch.randperm(4, generator=generator)[:2]  # the last is never seen
        rows = torch.rand(2, 2, generator=generator, dtype=torch.float64)
        averages.push(images, rows)
        for i, row in zip(images.tolist(), rows.tolist(), strict=True):
            z[i] = [alpha * a + (1 - alpha) * b for a, b in zip(z[i], row, strict=True)]
            visits[i] += 1
        mean, seen = averages.read(torch.arange(5))
        assert mean.dtype == torch.float64
        assert seen.tolist() == [n > 0 for n in visits]
        for i in range(5):
            expected = [a / (1 - alpha ** visits[i]) if visits[i] else 0.0 for a in z[i]]
            assert mean[i].tolist() == pytest.approx(expected, rel=1e-12)
    assert min(visits[:4]) > 1


def test_after_one_visit_the_average_is_the_row():
    averages = Averages(3, 2, 0.6)
    rows = torch.tensor([[0.3, 0.7], [0.9, 0.1]])
    averages.push(torch.tensor([2, 0]), rows)
    torch.testing.assert_close(averages.read(torch.tensor([2, 0]))[0], rows)


def test_an_image_that_occurs_twice_is_updated_once_with_its_last_row():
    averages, expected = Averages(3, 1, 0.6), Averages(3, 1, 0.6)
    for start in (1.0, 7.0):
        values = torch.arange(start, start + 5)[:, None]
        averages.push(torch.tensor([1, 0, 1, 1, 0]), values)
        expected.push(torch.tensor([1, 0]), values[[3, 4]])
    assert torch.equal(averages.rows, expected.rows)
    assert torch.equal(averages.mass, expected.mass)


def test_averages_keep_their_address_and_reading_changes_nothing():
    averages = Averages(4, 2, 0.6)
    addresses = [b.data_ptr() for b in averages.buffers()]
    averages.push(torch.tensor([0, 3]), torch.rand(2, 2, requires_grad=True))
    before = copy.deepcopy(averages.state_dict())
    averages.read(torch.tensor([0, 1]))
    assert [b.data_ptr() for b in averages.buffers()] == addresses
    assert not averages.rows.requires_grad
    for name, value in averages.state_dict().items():
        assert torch.equal(value, before[name])


def test_averages_round_trip():
    averages, other = Averages(4, 2, 0.6), Averages(4, 2, 0.6)
    averages.push(torch.tensor([1, 2]), torch.rand(2, 2))
    other.load_state_dict(averages.state_dict())
    rows = torch.rand(3, 2)
    for each in (averages, other):
        each.push(torch.tensor([0, 1, 3]), rows)
    for a, b in zip(averages.read(torch.arange(4)), other.read(torch.arange(4)), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("decay", [0.9, torch.tensor(0.9)])
def test_ema_follows_weights_and_copies_statistics(decay):
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    ema = Ema(net)
    expected = [p.detach().clone() for p in net.parameters()]
    for _ in range(5):
        with torch.no_grad():
            for p in net.parameters():
                p.add_(torch.randn_like(p))
        net(torch.randn(8, 3))  # moves the running statistics
        ema.update(net, decay)
        expected = [
            0.9 * t + 0.1 * p.detach() for t, p in zip(expected, net.parameters(), strict=True)
        ]
    for average, value in zip(ema.net.parameters(), expected, strict=True):
        torch.testing.assert_close(average, value)
        assert not average.requires_grad
    for kept, now in zip(ema.net.buffers(), net.buffers(), strict=True):
        assert torch.equal(kept, now)


def test_ema_starts_as_a_separate_copy():
    net = nn.Linear(2, 2)
    ema = Ema(net)
    first = copy.deepcopy(ema.net.state_dict())
    with torch.no_grad():
        net.weight.add_(1.0)
    assert torch.equal(ema.net.state_dict()["weight"], first["weight"])
