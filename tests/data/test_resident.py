"""Batches drawn on the device: every image once a pass, and exactly again from a checkpoint."""

import torch

from comatch.data.resident import Resident, Shuffler
from comatch.types import Images


def passes(shuffler, count):
    for _ in range(count):
        shuffler.shuffle()
        yield torch.cat([shuffler.draw() for _ in range(shuffler.batches)])


def test_every_row_once_before_any_twice():
    torch.manual_seed(0)
    first, second = passes(Shuffler(rows=23, batch=5), 2)
    assert len(first) == 20
    assert len(set(first.tolist())) == 20
    assert not torch.equal(first, second)


def test_rows_left_over_in_one_pass_come_in_others():
    torch.manual_seed(0)
    seen = torch.cat(list(passes(Shuffler(rows=7, batch=5), 20)))
    assert set(seen.tolist()) == set(range(7))


def test_few_rows_fill_a_batch_evenly():
    """Forty labels in a batch of 64: each once or twice."""
    torch.manual_seed(0)
    for batch in passes(Shuffler(rows=40, batch=64), 3):
        counts = torch.bincount(batch, minlength=40)
        assert counts.min() == 1
        assert counts.max() == 2


def images(n, offset=0):
    images = (torch.arange(n) + offset).to(torch.uint8)[:, None, None, None].expand(n, 3, 2, 2)
    return Images(images.contiguous(), torch.arange(n) + offset, [str(i) for i in range(n)])


def test_labels_stay_with_their_images():
    data = Resident(images(6), images(30, offset=100), batch=4, mu=2)
    for step in range(9):
        data.before_step(step)
        draw = data.draw()
        assert torch.equal(draw.x[:, 0, 0, 0].long(), draw.y)
        assert torch.equal(draw.u[:, 0, 0, 0].long(), draw.truth)
        assert torch.equal(draw.rows + 100, draw.truth)
        assert len(draw.u) == 8


def test_resuming_in_the_middle_of_a_pass():
    torch.manual_seed(0)
    data = Resident(images(6), images(30), batch=4, mu=2)
    data.before_step(0)
    data.draw()
    other = Resident(images(6), images(30), batch=4, mu=2)
    other.load_state_dict(data.state_dict())
    random = torch.get_rng_state()
    mine, theirs = [], []
    for step in range(1, 8):
        data.before_step(step)
        mine.append(data.draw().u)
    torch.set_rng_state(random)
    for step in range(1, 8):
        other.before_step(step)
        theirs.append(other.draw().u)
    assert torch.equal(torch.stack(mine), torch.stack(theirs))


def test_images_are_no_part_of_a_checkpoint():
    data = Resident(images(6), images(30), batch=4, mu=2)
    assert not [name for name in data.state_dict() if "images" in name]
