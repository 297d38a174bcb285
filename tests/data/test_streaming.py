"""Streamed batches: the images of the files, with their labels; a resume is exact."""

import gc
import threading
import time

import numpy as np
import pytest
import torch
from PIL import Image

from comatch import distributed
from comatch.augment.batch import AugmentBatch
from comatch.augment.policies import Views
from comatch.data import reader
from comatch.data import streaming as module
from comatch.data.images import read_image
from comatch.data.order import Schedule
from comatch.data.streaming import Streaming, in_pieces, middle, side_for
from comatch.errors import UserError
from comatch.types import Files, Images

CPU = torch.device("cpu")
SIDE = 9


def make_files(root, count, offset=0, size=(12, 12)):
    """Uniform images; the number of each is its grey value and its label."""
    root.mkdir(parents=True)
    names = [f"{i:03d}.png" for i in range(count)]
    for i, name in enumerate(names):
        Image.new("RGB", size, (i + offset,) * 3).save(root / name)
    return Files(root, torch.arange(count) + offset, names)


@pytest.fixture
def parts(tmp_path):
    return make_files(tmp_path / "x", 6), make_files(tmp_path / "u", 30, offset=100)


def stream(parts, batch=4, mu=2, **options):
    augment = AugmentBatch(("weak",), Views(), torch.zeros(3), torch.ones(3))
    options = {"image_size": 8, "side": SIDE, "device": CPU, "workers": 2, **options}
    return Streaming(*parts, batch, mu, augment, **options)


def batches(feed, steps):
    for step in steps:
        feed.before_step(step)
        yield type(feed.draw())(*(tensor.clone() for tensor in feed.draw()))


# -------------------------------------------------------------------------------------- batches


def test_labels_stay_with_their_images(parts):
    for draw in batches(stream(parts), range(9)):
        assert torch.equal(draw.x[:, 0, 0, 0].long(), draw.y)
        assert torch.equal(draw.u[:, 0, 0, 0].long(), draw.truth)
        assert torch.equal(draw.rows + 100, draw.truth)
        assert draw.x.shape == (4, 3, SIDE, SIDE)
        assert draw.u.shape == (8, 3, SIDE, SIDE)
        assert draw.x.dtype == torch.uint8


def test_each_image_is_a_random_window_of_its_file(tmp_path):
    """Each column has its own red value, which shows where the window was."""
    pixels = np.zeros((12, 60, 3), np.uint8)
    pixels[..., 0] = np.arange(60) * 4
    for part in ("x", "u"):
        (tmp_path / part).mkdir()
        for i in range(3):
            pixels[..., 1] = i
            Image.fromarray(pixels).save(tmp_path / part / f"{i}.png")
    names = ["0.png", "1.png", "2.png"]
    parts = [Files(tmp_path / part, torch.arange(3), names) for part in ("x", "u")]
    first, second = batches(stream(parts, batch=3, mu=1, side=12), (0, 1))
    lefts = []
    for draw in (first, second):
        for image, row in zip(draw.u, draw.rows.tolist(), strict=True):
            left = float(image[0, 0].float().mean()) / 4 - 5.5
            expected = read_image(parts[1].root / names[row], 12, left / 48)
            assert np.abs(image.numpy().astype(int) - expected).max() <= 2
            lefts.append(left)
    assert min(lefts) >= -0.1
    assert max(lefts) <= 48.1
    assert len({round(left) for left in lefts}) > 3


def test_a_pass_draws_each_row_once():
    order = Schedule(23, 5, 7)
    first, second = (np.concatenate([order.at(4 * t + i) for i in range(4)]) for t in (0, 1))
    assert len(set(first.tolist())) == len(set(second.tolist())) == 20
    assert first.tolist() != second.tolist()
    assert np.array_equal(Schedule(23, 5, 7).at(6), order.at(6))  # from any first step
    assert not np.array_equal(Schedule(23, 5, 8).at(6), order.at(6))
    counts = np.bincount(Schedule(40, 64, 0).at(3), minlength=40)  # forty labels in a batch of 64
    assert (counts.min(), counts.max()) == (1, 2)


def test_a_resume_is_exact_after_any_step(parts):
    whole = list(batches(stream(parts, seed=5), range(12)))
    feed = stream(parts, seed=5)
    list(batches(feed, range(5)))
    other = stream(parts, seed=5)
    other.load_state_dict(feed.state_dict())
    for one, resumed in zip(whole[5:], batches(other, range(5, 12)), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, resumed, strict=True))
    again = next(batches(feed, [2]))  # an earlier step
    assert torch.equal(again.u, whole[2].u)
    assert not torch.equal(next(batches(stream(parts, seed=6), [0])).rows, whole[0].rows)


def test_streaming_leaves_the_random_state_alone(parts):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    list(batches(stream(parts), range(4)))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_addresses_of_the_buffers_never_change(parts):
    feed = stream(parts)
    feed.before_step(0)
    places = [tensor.data_ptr() for tensor in feed.draw()]
    for step in range(1, 8):
        feed.before_step(step)
        assert [tensor.data_ptr() for tensor in feed.draw()] == places


def test_a_fixed_number_of_batches_is_read_in_advance(parts, monkeypatch):
    sent = []
    submit = module.Reader.submit

    def count(self, files, rows, *rest, **options):
        sent.append(len(rows))
        return submit(self, files, rows, *rest, **options)

    monkeypatch.setattr(module.Reader, "submit", count)
    feed = stream(parts, ahead=3)
    for step in range(5):
        feed.before_step(step)
        assert sum(sent) == (step + 4) * 12
        assert len(feed.pending) == 3
    monkeypatch.setattr(module, "READ_CHUNK", 3)  # a batch may be several chunks
    sent.clear()
    feed.before_step(5)
    assert sent == [3, 1, 3, 3, 2]
    for draw in batches(feed, range(6, 12)):
        assert torch.equal(draw.u[:, 0, 0, 0].long(), draw.truth)


def test_the_next_batch_is_read_during_the_present_step(parts):
    feed = stream(parts)
    feed.before_step(0)
    deadline = time.monotonic() + 10
    while (
        not all(f.done() for batch in feed.pending for f in batch) and time.monotonic() < deadline
    ):
        time.sleep(0.001)
    began = time.monotonic()
    feed.before_step(1)
    assert time.monotonic() - began < 0.05


def test_a_method_without_unlabelled_images(parts):
    feed = stream((parts[0], parts[1].subset(torch.tensor([], dtype=torch.long))), mu=0)
    draw = next(batches(feed, [0]))
    assert len(draw.x) == 4
    assert draw.u.shape == (0, 3, SIDE, SIDE)


def test_ranks_share_a_batch(tmp_path, monkeypatch):
    parts = [make_files(tmp_path / part, 16, size=(30, 12)) for part in "xu"]
    for files in parts:  # pixels that show where the window is
        for name in files.names:
            pixels = np.arange(30 * 12 * 3, dtype=np.uint16).reshape(12, 30, 3) % 251
            Image.fromarray(pixels.astype(np.uint8)).save(files.root / name)
    whole = next(batches(stream(parts, seed=3), [4]))
    seen = []
    for rank in range(2):
        monkeypatch.setattr(distributed, "_rank", rank)
        monkeypatch.setattr(distributed, "_world", 2)
        seen.append(next(batches(stream(parts, seed=3), [4])))
        monkeypatch.undo()
    assert torch.equal(torch.cat([draw.rows for draw in seen]), whole.rows)
    assert torch.equal(torch.cat([draw.y for draw in seen]), whole.y)
    assert torch.equal(torch.cat([draw.u for draw in seen]), whole.u)


def test_threads_end_with_their_feed(parts):
    feed = stream(parts)
    feed.before_step(0)
    before = threading.active_count()
    del feed
    gc.collect()
    deadline = time.monotonic() + 10
    while threading.active_count() >= before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() < before


# -------------------------------------------------------------------------- damaged images


def test_a_damaged_image_is_replaced_and_counted_once(tmp_path):
    parts = make_files(tmp_path / "x", 100), make_files(tmp_path / "u", 120, offset=100)
    (parts[1].root / "007.png").write_bytes(b"\x89PNG")
    (parts[0].root / "099.png").unlink()
    feed = stream(parts, batch=50, mu=1)
    for draw in batches(feed, range(5)):
        assert torch.equal(draw.x[:, 0, 0, 0].long(), draw.y)
        assert torch.equal(draw.u[:, 0, 0, 0].long(), draw.truth)
        assert 107 not in draw.truth.tolist()
        assert 99 not in draw.y.tolist()
    assert feed.counts() == {"unreadable": 2}
    assert list(feed.state_dict()) == ["unreadable"]
    other = stream(parts, batch=50, mu=1)
    other.load_state_dict(feed.state_dict())
    assert other.counts() == {"unreadable": 2}


def test_more_than_one_in_a_hundred_is_an_error(parts):
    for name in ("003.png", "005.png", "009.png"):  # three are always tolerated
        (parts[1].root / name).write_bytes(b"")
    feed = stream(parts, batch=4, mu=7)
    feed.before_step(0)
    feed.before_step(1)
    assert feed.counts() == {"unreadable": 3}
    (parts[1].root / "007.png").write_bytes(b"")
    feed = stream(parts, batch=4, mu=7)
    with pytest.raises(UserError, match=r"4 of 36 images cannot be read, .*png: an empty file"):
        list(batches(feed, range(2)))


# ------------------------------------------------------------------------------ for evaluation


def test_all_images_in_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "CHUNK", 4)
    files = make_files(tmp_path / "x", 11, size=(16, 12))
    (files.root / "005.png").write_bytes(b"?")
    with pytest.warns(UserWarning, match=r"1 images cannot be read .* \(005.png: not an image"):
        pieces = list(in_pieces(files, 8, CPU))
    assert [len(images) for images, _ in pieces] == [4, 3, 3]
    labels = torch.cat([labels for _, labels in pieces])
    assert labels.tolist() == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]
    images = torch.cat([images for images, _ in pieces])
    assert images.shape == (10, 3, 8, 8)
    assert torch.equal(images[:, 0, 0, 0].long(), labels)


def test_resident_images_are_one_chunk():
    part = Images(torch.zeros(5, 3, 8, 8, dtype=torch.uint8), torch.arange(5), list("abcde"))
    ((images, labels),) = in_pieces(part, 8, CPU)
    assert images is part.images
    assert labels is part.labels


def test_no_readable_image_is_an_error(tmp_path):
    files = make_files(tmp_path / "x", 2)
    for name in files.names:
        (files.root / name).write_bytes(b"")
    with pytest.raises(UserError, match=r"none of 2 images can be read \(000.png: an empty file"):
        list(in_pieces(files, 8, CPU))


def test_the_middle_of_the_square():
    assert side_for(224) == 256
    images = torch.arange(256).expand(1, 3, 256, 256)
    assert middle(images, 224)[0, 0, 0].tolist() == list(range(16, 240))
    assert middle(images, 256) is not None
