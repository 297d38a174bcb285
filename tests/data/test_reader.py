"""Files to squares: by Pillow in threads, and as a GPU does it, whose arithmetic is tested here."""

import numpy as np
import pytest
import torch
from PIL import Image

from comatch.data import reader as module
from comatch.data.images import read_image, square
from comatch.data.reader import Faster, Reader, gpu_decoder, pin
from comatch.errors import UserError
from comatch.types import Files
from helpers import photograph

CPU = torch.device("cpu")
SHAPES = [(40, 30), (30, 40), (33, 33), (90, 20), (20, 91), (8, 8), (7, 61), (100, 75)]


@pytest.fixture
def files(tmp_path):
    names = [f"{i}.jpg" for i in range(len(SHAPES))]
    for i, (name, shape) in enumerate(zip(names, SHAPES, strict=True)):
        photograph(*shape, seed=i).save(tmp_path / name, quality=95)
    return Files(tmp_path, torch.arange(len(names)), names)


def spoil(files, row):
    """A file that was cut off in the middle."""
    path = files.root / files.names[row]
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def read(files, rows, replace=False, places=None, side=16):
    with Reader(side, CPU, workers=3) as reader:
        return reader.submit(files, rows, places or [0.5] * len(rows), replace).result()


# ---------------------------------------------------------------------------------- by Pillow


def test_images_come_in_order_at_their_places(files):
    rows, places = [3, 0, 6, 3, 4], [0.0, 0.5, 0.2, 1.0, 0.9]
    chunk = read(files, rows, places=places)
    assert chunk.rows == rows
    assert chunk.bad == {}
    assert chunk.images.shape == (5, 3, 16, 16)
    for image, row, place in zip(chunk.images, rows, places, strict=True):
        expected = read_image(files.root / files.names[row], 16, place)
        assert np.array_equal(image.numpy(), expected)


def test_what_gives_no_image_is_left_out(files):
    spoil(files, 2)
    (files.root / files.names[5]).unlink()
    chunk = read(files, range(8))
    assert chunk.rows == [0, 1, 3, 4, 6, 7]
    assert len(chunk.images) == 6
    assert set(chunk.bad) == {2, 5}
    assert chunk.bad[5] == "no such file or directory"


def test_or_the_next_one_takes_its_place(files):
    for row in (2, 3, 7):
        spoil(files, row)
    chunk = read(files, [7, 2, 1, 3], replace=True)
    assert chunk.rows == [0, 4, 1, 4]  # after the last comes the first
    assert set(chunk.bad) == {2, 3, 7}
    for image, row in zip(chunk.images, chunk.rows, strict=True):
        assert np.array_equal(image.numpy(), read_image(files.root / files.names[row], 16))


def test_nothing_but_damaged_images(files):
    for row in range(8):
        spoil(files, row)
    with pytest.raises(UserError, match=r"8 images in a row give none \(0.jpg: .*truncated"):
        read(files, [3], replace=True)
    assert read(files, [3]).rows == []


# ------------------------------------------------------------------------------ as a GPU does it


@pytest.fixture
def by_pillow(monkeypatch):
    """Squares what was decoded, in the place of the kernel for a GPU, which has its own tests."""
    squares = pytest.importorskip("comatch.kernels.squares")

    def fit(images, places, into, rows):
        for image, place, row in zip(images, places, rows, strict=True):
            image = Image.fromarray(image.permute(1, 2, 0).numpy())
            into[row] = torch.from_numpy(square(image, into.shape[-1], place))

    monkeypatch.setattr(squares, "fit", fit)


def test_decoded_images_and_others_are_put_together(files, by_pillow):
    with Image.open(files.root / "7.jpg") as image:
        decoded = torch.from_numpy(np.array(image).transpose(2, 0, 1).copy())
        expected = {place: square(image, 16, place) for place in (0.0, 0.5, 1.0)}
    pixels = torch.full((3 * 16 * 16,), 9, dtype=torch.uint8)
    with Reader(16, CPU, 1) as reader:
        images = reader._put_together(
            {0: decoded, 4: decoded, 2: decoded}, {1: pixels}, [0.0, 0.5, 0.5, 0.5, 1.0]
        )
    assert (images[1] == 9).all()
    for n, place in ((0, 0.0), (2, 0.5), (3, 1.0)):
        assert np.array_equal(images[n], expected[place])


def test_what_the_decoder_does_not_take_goes_to_pillow(files, by_pillow):
    """With a decoder as a GPU has it, whole JPEGs only: all other kinds, and one cut off."""
    from torchvision.io import ImageReadMode, decode_jpeg

    image = photograph(50, 60)
    image.save(files.root / files.names[1], "PNG")
    image.convert("L").save(files.root / files.names[3])
    spoil(files, 5)
    rows, places = [*range(8), 5, 1], torch.rand(10).tolist()
    expected = read(files, rows, True, places, side=64)
    sizes = []

    def decode(encoded):
        sizes.append(len(encoded))
        return [decode_jpeg(data, ImageReadMode.RGB) for data in encoded]

    def refuse(encoded):
        raise RuntimeError("Error while decoding JPEG images")

    def refuse_one(encoded):
        """As it does with CMYK: one of a list, and nothing of it is decoded."""
        images = [decode_jpeg(data, ImageReadMode.RGB) for data in encoded]
        return refuse(encoded) if any(p.shape == (3, 91, 20) for p in images) else images

    for decoder in (decode, refuse, refuse_one):
        with Reader(64, CPU, 2) as reader:
            reader.decode, reader.faster = decoder, Faster(["jpeg"])
            chunks = [reader.submit(files, rows, places, replace=True) for _ in range(6)]
            chunks = [chunk.result() for chunk in chunks]
        for chunk in chunks:
            assert chunk.rows == expected.rows
            assert set(chunk.bad) == {5}
            assert (chunk.images.int() - expected.images.int()).abs().max() <= 2
    assert sizes == [6] * 6


def test_images_that_processes_decoded(files, by_pillow):
    """Of any kind, as far as they fit into their cells: of these all but the largest."""
    photograph(50, 60).save(files.root / files.names[1], "PNG")
    spoil(files, 5)
    rows, places = [*range(8), 5, 1], torch.rand(10).tolist()
    expected = read(files, rows, True, places, side=64)
    fetched = []

    class Watched(Reader):
        def _fetch(self, lane, whole):
            fetched.append(sorted(whole))
            return super()._fetch(lane, whole)

    with Watched(64, CPU, 2) as reader:
        reader.faster = Faster(["whole"])
        chunk = reader.submit(files, rows, places, replace=True).result()
    assert fetched == [[0, 1, 2, 3, 4, 6, 9]]  # the eighth is too large, another took the sixth's
    assert chunk.rows == expected.rows
    assert set(chunk.bad) == {5}
    assert torch.equal(chunk.images, expected.images)


def test_the_faster_way_is_taken_and_the_other_tried_again():
    faster = Faster(["jpeg", "whole"])
    speed = {"jpeg": 1.0, "whole": 3.0}

    def take(times):
        taken = []
        for _ in range(times):
            taken.append(faster.choose())
            faster.note(taken[-1], 2, 2 * speed[taken[-1]])
        return taken

    assert take(3) == ["jpeg", "whole", "jpeg"]
    again = [turn for turn, way in enumerate(take(4500)) if way == "whole"]
    assert np.diff(again).tolist() == [8, 16, 32, 64, 128, 256, 512, 1024, 1024, 1024]
    speed["jpeg"] = 9.0  # the GPU has other work by now
    assert take(200)[5:].count("jpeg") <= 2
    speed["jpeg"] = 1.0
    assert take(3000)[-1000:].count("whole") <= 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_no_decoder_is_told_once_and_no_end():
    with pytest.warns(UserWarning, match="decoded on the CPU: the GPU's decoder cannot be used"):
        assert gpu_decoder(torch.device("cuda")) is None


class Driver:
    """What of CUDA pins memory, and remembers what is pinned."""

    def __init__(self):
        self.pinned = set()

    def cudaHostRegister(self, address, size, flags):  # noqa: N802
        again = address in self.pinned
        self.pinned.add(address)
        return int(again)

    def cudaHostUnregister(self, address):  # noqa: N802
        self.pinned.remove(address)


class Owner:
    pass


def test_memory_is_pinned_until_its_owner_is_gone_or_closed(monkeypatch):
    driver, memory = Driver(), torch.zeros(8, dtype=torch.uint8)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: driver)
    first, second = Owner(), Owner()
    undo = pin(first, memory, CPU)
    assert driver.pinned == {memory.data_ptr()}
    assert pin(second, memory, CPU) is None, "it is slower then, but no error"
    undo()
    undo()
    assert not driver.pinned
    assert pin(second, memory, CPU)
    del second
    assert not driver.pinned


@pytest.mark.cuda
def test_readers_that_are_dropped_leave_the_gpu_in_order(files):
    for _ in range(3):  # their memory likely comes to lie where that of the one before was
        reader = Reader(16, torch.device("cuda"), 1)
        assert reader.unpin
        reader.submit(files, range(8), [0.5] * 8).result()
        reader.close()
        del reader
        assert torch.zeros(1, device="cuda").item() == 0


@pytest.mark.cuda
@pytest.mark.parametrize("decoder", [True, False])
def test_a_gpu_gives_the_same_images(files, decoder, monkeypatch):
    image = photograph(50, 60)
    image.save(files.root / files.names[1], "PNG")
    image.convert("CMYK").save(files.root / files.names[2], "JPEG")
    image.convert("L").save(files.root / files.names[3])
    spoil(files, 5)
    if not decoder:
        monkeypatch.setattr(module, "gpu_decoder", lambda device: None)
    rows = [*range(8), *range(8)]
    places = torch.rand(16).tolist()
    with Reader(64, torch.device("cuda"), 2) as reader:
        futures = [reader.submit(files, rows, places, replace=True) for _ in range(6)]
        chunks = [future.result() for future in futures]
    expected = read(files, rows, True, places, side=64)  # so large that all is decoded
    for chunk in chunks:
        assert chunk.rows == expected.rows
        assert set(chunk.bad) == {5}
        difference = (chunk.images.cpu().float() - expected.images.float()).abs()
        assert difference.mean() < 2.0
        assert difference.amax() < 40
