"""Ring buffer and moving average against a Python list."""

import copy
from collections import deque

import pytest
import torch
from torch import nn

from comatch.memory import Ema, RingBuffer


@pytest.mark.parametrize(("size", "pushes"), [(10, [5, 5, 5]), (7, [3, 3, 3, 3]), (4, [6, 1, 9])])
def test_ring_buffer_keeps_the_last_rows(size, pushes):
    buffer, twin = RingBuffer(size, 2), deque(maxlen=size)
    value = 0
    for count in pushes:
        rows = torch.arange(value, value + count).float()[:, None].repeat(1, 2)
        value += count
        buffer.push(rows)
        twin.extend(rows[:, 0].tolist())
        assert buffer.filled.item() == len(twin)
        assert bool(buffer.full) == (len(twin) == size)
        held = buffer.rows[: len(twin), 0] if len(twin) < size else buffer.rows[:, 0]
        assert sorted(held.tolist()) == sorted(twin)


def test_the_oldest_row_goes_first():
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


def test_ring_buffer_never_moves():
    """A captured CUDA graph writes to the address it saw first."""
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


def test_ema_follows_weights_and_copies_statistics():
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    ema = Ema(net, decay=0.9)
    twin = [p.detach().clone() for p in net.parameters()]
    for _ in range(5):
        with torch.no_grad():
            for p in net.parameters():
                p.add_(torch.randn_like(p))
        net(torch.randn(8, 3))  # moves the running statistics
        ema.update(net)
        twin = [0.9 * t + 0.1 * p.detach() for t, p in zip(twin, net.parameters(), strict=True)]
    for kept, expected in zip(ema.net.parameters(), twin, strict=True):
        torch.testing.assert_close(kept, expected)
        assert not kept.requires_grad
    for kept, now in zip(ema.net.buffers(), net.buffers(), strict=True):
        assert torch.equal(kept, now)


def test_ema_starts_as_a_copy_of_its_own():
    net = nn.Linear(2, 2)
    ema = Ema(net, 0.5)
    first = copy.deepcopy(ema.net.state_dict())
    with torch.no_grad():
        net.weight.add_(1.0)
    assert torch.equal(ema.net.state_dict()["weight"], first["weight"])
