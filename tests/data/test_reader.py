"""The reader: squares by Pillow, and the steps for a GPU with the kernel replaced by Pillow."""

import numpy as np
import pytest
import torch
from PIL import Image

from comatch.data import reader as module
from comatch.data.images import read_image, square
from comatch.data.reader import FastestForm, Reader, gpu_decoder, pin
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


def truncate(files, row):
    """Remove the second half of a file."""
    path = files.root / files.names[row]
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def read(files, rows, replace=False, positions=None, side=16):
    with Reader(side, CPU, workers=3) as reader:
        return reader.submit(files, rows, positions or [0.5] * len(rows), replace).result()


# ---------------------------------------------------------------------------------- Pillow


def test_images_are_in_order_with_their_windows(files):
    rows, positions = [3, 0, 6, 3, 4], [0.0, 0.5, 0.2, 1.0, 0.9]
    chunk = read(files, rows, positions=positions)
    assert chunk.rows == rows
    assert chunk.bad == {}
    assert chunk.images.shape == (5, 3, 16, 16)
    for image, row, position in zip(chunk.images, rows, positions, strict=True):
        expected = read_image(files.root / files.names[row], 16, position)
        assert np.array_equal(image.numpy(), expected)


def test_unreadable_files_are_left_out(files):
    truncate(files, 2)
    (files.root / files.names[5]).unlink()
    chunk = read(files, range(8))
    assert chunk.rows == [0, 1, 3, 4, 6, 7]
    assert len(chunk.images) == 6
    assert set(chunk.bad) == {2, 5}
    assert chunk.bad[5] == "no such file or directory"


def test_the_next_file_replaces_an_unreadable_one(files):
    for row in (2, 3, 7):
        truncate(files, row)
    chunk = read(files, [7, 2, 1, 3], replace=True)
    assert chunk.rows == [0, 4, 1, 4]  # after the last comes the first
    assert set(chunk.bad) == {2, 3, 7}
    for image, row in zip(chunk.images, chunk.rows, strict=True):
        assert np.array_equal(image.numpy(), read_image(files.root / files.names[row], 16))


def test_only_damaged_images(files):
    for row in range(8):
        truncate(files, row)
    with pytest.raises(UserError, match=r"8 images in a row give none \(0.jpg: .*truncated"):
        read(files, [3], replace=True)
    assert read(files, [3]).rows == []


# ----------------------------------------------------------------------- the steps for a GPU


@pytest.fixture
def by_pillow(monkeypatch):
    """Pillow in place of the GPU's kernel, which has its own tests."""
    squares = pytest.importorskip("comatch.kernels.squares")

    def fit(images, positions, into, rows):
        for image, position, row in zip(images, positions, rows, strict=True):
            image = Image.fromarray(image.permute(1, 2, 0).numpy())
            into[row] = torch.from_numpy(square(image, into.shape[-1], position))

    monkeypatch.setattr(squares, "fit", fit)


def test_decoded_images_and_squares_are_put_together(files, by_pillow):
    with Image.open(files.root / "7.jpg") as image:
        decoded = torch.from_numpy(np.array(image).transpose(2, 0, 1).copy())
        expected = {position: square(image, 16, position) for position in (0.0, 0.5, 1.0)}
    pixels = torch.full((3 * 16 * 16,), 9, dtype=torch.uint8)
    with Reader(16, CPU, 1) as reader:
        images = reader._put_together(
            {0: decoded, 4: decoded, 2: decoded}, {1: pixels}, [0.0, 0.5, 0.5, 0.5, 1.0]
        )
    assert (images[1] == 9).all()
    for n, position in ((0, 0.0), (2, 0.5), (3, 1.0)):
        assert np.array_equal(images[n], expected[position])


def test_pillow_decodes_what_the_gpu_cannot(files, by_pillow):
    """The decoder accepts complete JPEGs only. Other formats and a truncated file go to Pillow."""
    from torchvision.io import ImageReadMode, decode_jpeg

    image = photograph(50, 60)
    image.save(files.root / files.names[1], "PNG")
    image.convert("L").save(files.root / files.names[3])
    truncate(files, 5)
    rows, positions = [*range(8), 5, 1], torch.rand(10).tolist()
    expected = read(files, rows, True, positions, side=64)
    sizes = []

    def decode(encoded):
        sizes.append(len(encoded))
        return [decode_jpeg(data, ImageReadMode.RGB) for data in encoded]

    def refuse(encoded):
        raise RuntimeError("Error while decoding JPEG images")

    def refuse_one(encoded):
        """One image it cannot decode, as CMYK: then it decodes none of the list."""
        images = [decode_jpeg(data, ImageReadMode.RGB) for data in encoded]
        return refuse(encoded) if any(p.shape == (3, 91, 20) for p in images) else images

    for decoder in (decode, refuse, refuse_one):
        with Reader(64, CPU, 2) as reader:
            reader.decode, reader.fastest = decoder, FastestForm(["jpeg"])
            chunks = [reader.submit(files, rows, positions, replace=True) for _ in range(6)]
            chunks = [chunk.result() for chunk in chunks]
        for chunk in chunks:
            assert chunk.rows == expected.rows
            assert set(chunk.bad) == {5}
            assert (chunk.images.int() - expected.images.int()).abs().max() <= 2
    assert sizes == [6] * 6


def test_images_decoded_by_workers(files, by_pillow):
    """Of any format, if they fit into their cells: here all but the largest."""
    photograph(50, 60).save(files.root / files.names[1], "PNG")
    truncate(files, 5)
    rows, positions = [*range(8), 5, 1], torch.rand(10).tolist()
    expected = read(files, rows, True, positions, side=64)
    fetched = []

    class Watched(Reader):
        def _fetch(self, lane, whole):
            fetched.append(sorted(whole))
            return super()._fetch(lane, whole)

    with Watched(64, CPU, 2) as reader:
        reader.fastest = FastestForm(["whole"])
        chunk = reader.submit(files, rows, positions, replace=True).result()
    assert fetched == [[0, 1, 2, 3, 4, 6, 9]]  # the eighth is too large, the sixth was replaced
    assert chunk.rows == expected.rows
    assert set(chunk.bad) == {5}
    assert torch.equal(chunk.images, expected.images)


def test_the_faster_form_is_chosen_and_the_other_retried():
    fastest = FastestForm(["jpeg", "whole"])
    speed = {"jpeg": 1.0, "whole": 3.0}

    def take(times):
        taken = []
        for _ in range(times):
            taken.append(fastest.choose())
            fastest.record(taken[-1], 2, 2 * speed[taken[-1]])
        return taken

    assert take(3) == ["jpeg", "whole", "jpeg"]
    again = [turn for turn, form in enumerate(take(4500)) if form == "whole"]
    assert np.diff(again).tolist() == [8, 16, 32, 64, 128, 256, 512, 1024, 1024, 1024]
    speed["jpeg"] = 9.0  # the GPU is now busy with other work
    assert take(200)[5:].count("jpeg") <= 2
    speed["jpeg"] = 1.0
    assert take(3000)[-1000:].count("whole") <= 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_missing_decoder_is_a_warning():
    with pytest.warns(UserWarning, match="decoded on the CPU: the GPU's decoder cannot be used"):
        assert gpu_decoder(torch.device("cuda")) is None


class Driver:
    """A fake of CUDA's functions that pin memory."""

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


def test_memory_is_pinned_until_its_owner_is_deleted_or_closed(monkeypatch):
    driver, memory = Driver(), torch.zeros(8, dtype=torch.uint8)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: driver)
    first, second = Owner(), Owner()
    undo = pin(first, memory, CPU)
    assert driver.pinned == {memory.data_ptr()}
    assert pin(second, memory, CPU) is None  # no error, only slower copies
    undo()
    undo()
    assert not driver.pinned
    assert pin(second, memory, CPU)
    del second
    assert not driver.pinned


@pytest.mark.cuda
def test_deleted_readers_leave_the_gpu_usable(files):
    for _ in range(3):  # probably at the same address each time
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
    truncate(files, 5)
    if not decoder:
        monkeypatch.setattr(module, "gpu_decoder", lambda device: None)
    rows = [*range(8), *range(8)]
    positions = torch.rand(16).tolist()
    with Reader(64, torch.device("cuda"), 2) as reader:
        futures = [reader.submit(files, rows, positions, replace=True) for _ in range(6)]
        chunks = [future.result() for future in futures]
    expected = read(
        files, rows, True, positions, side=64
    )  # so large that nothing is decoded at a fraction
    for chunk in chunks:
        assert chunk.rows == expected.rows
        assert set(chunk.bad) == {5}
        difference = (chunk.images.cpu().float() - expected.images.float()).abs()
        assert difference.mean() < 2.0
        assert difference.amax() < 40
