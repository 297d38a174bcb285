"""Images in device memory: each once a pass, and the same batches after a resume."""

import torch

from comatch.augment.batch import AugmentBatch
from comatch.augment.policies import Views
from comatch.data.order import Shuffler
from comatch.data.resident import Resident
from comatch.types import Images


def passes(shuffler, count):
    for _ in range(count):
        shuffler.shuffle()
        yield torch.cat([shuffler.draw() for _ in range(shuffler.batches)])


def test_a_pass_draws_each_row_once():
    torch.manual_seed(0)
    first, second = passes(Shuffler(rows=23, batch=5), 2)
    assert len(first) == 20
    assert len(set(first.tolist())) == 20
    assert not torch.equal(first, second)


def test_rows_left_over_in_one_pass_are_drawn_in_others():
    torch.manual_seed(0)
    seen = torch.cat(list(passes(Shuffler(rows=7, batch=5), 20)))
    assert set(seen.tolist()) == set(range(7))


def test_few_rows_fill_a_batch_evenly():
    """40 labels in a batch of 64: each once or twice."""
    torch.manual_seed(0)
    for batch in passes(Shuffler(rows=40, batch=64), 3):
        counts = torch.bincount(batch, minlength=40)
        assert counts.min() == 1
        assert counts.max() == 2


def resident(labelled, unlabelled):
    augment = AugmentBatch(("weak",), Views(), torch.zeros(3), torch.ones(3))
    return Resident(labelled, unlabelled, 4, 2, augment)


def images(n, offset=0):
    images = (torch.arange(n) + offset).to(torch.uint8)[:, None, None, None].expand(n, 3, 2, 2)
    return Images(images.contiguous(), torch.arange(n) + offset, [str(i) for i in range(n)])


def test_labels_stay_with_their_images():
    feed = resident(images(6), images(30, offset=100))
    for step in range(9):
        feed.before_step(step)
        draw = feed.draw()
        assert torch.equal(draw.x[:, 0, 0, 0].long(), draw.y)
        assert torch.equal(draw.u[:, 0, 0, 0].long(), draw.truth)
        assert torch.equal(draw.rows + 100, draw.truth)
        assert len(draw.u) == 8


def test_resuming_in_the_middle_of_a_pass():
    torch.manual_seed(0)
    feed = resident(images(6), images(30))
    feed.before_step(0)
    feed.draw()
    other = resident(images(6), images(30))
    other.load_state_dict(feed.state_dict())
    random = torch.get_rng_state()
    first, second = [], []
    for step in range(1, 8):
        feed.before_step(step)
        first.append(feed.draw().u)
    torch.set_rng_state(random)
    for step in range(1, 8):
        other.before_step(step)
        second.append(other.draw().u)
    assert torch.equal(torch.stack(first), torch.stack(second))


def test_a_checkpoint_has_no_images():
    feed = resident(images(6), images(30))
    assert not [name for name in feed.state_dict() if "images" in name]
