"""Worker processes: their answers, and what happens when one ends."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from PIL import Image

from comatch.data import image_workers as module
from comatch.data.image_workers import Answer, Wanted, Workers
from comatch.data.images import read_image
from comatch.errors import UserError
from helpers import photograph

CELL = 4096


def ask(workers, paths, form="square", side=16):
    wanted = [Wanted(str(path), 0.5, i) for i, path in enumerate(paths)]
    return workers.ask(wanted, side, form)


@pytest.fixture
def start():
    started = []

    def start(count, cells):
        started.append(Workers(count, cells, CELL))
        return started[-1]

    yield start
    for workers in started:
        workers.close()


def test_which_files_are_passed_as_jpegs(tmp_path, start):
    image = photograph(20, 10)
    image.save(tmp_path / "plain.jpg")
    image.convert("L").save(tmp_path / "grey.jpeg")
    image.save(tmp_path / "a.png")
    for turn, name in ((1, "upright.jpg"), (6, "turned.jpg")):
        exif = Image.Exif()
        exif[0x0112] = turn
        image.save(tmp_path / name, exif=exif)
    photograph(200, 200).save(tmp_path / "long.jpg", quality=100)
    whole = (tmp_path / "plain.jpg").read_bytes()
    (tmp_path / "cut.jpg").write_bytes(whole[:-9])
    (tmp_path / "more.jpg").write_bytes(whole + b"and more")  # Pillow decodes it
    (tmp_path / "empty.jpg").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe.jpg")
    paths = [*sorted(tmp_path.iterdir()), tmp_path / "none.jpg"]
    workers = start(1, len(paths))
    answers = dict(zip([path.name for path in paths], ask(workers, paths, "jpeg"), strict=True))
    assert {name for name, a in answers.items() if a.form == "jpeg"} == {
        "plain.jpg",
        "grey.jpeg",
        "upright.jpg",
    }
    reasons = {name: a.why for name, a in answers.items() if a.why}
    assert reasons["empty.jpg"] == "an empty file"
    assert reasons["none.jpg"] == "no such file or directory"
    assert reasons["pipe.jpg"] == "not a file"
    assert set(reasons) == {"empty.jpg", "none.jpg", "cut.jpg", "pipe.jpg"}
    for i, path in enumerate(paths):
        answer = answers[path.name]
        found = workers.memory[i * CELL : i * CELL + answer.length]
        if answer.form == "jpeg":
            assert found == path.read_bytes()
        elif not answer.why:
            assert found == read_image(path, 16).tobytes()


def test_whole_images(tmp_path, start):
    """Decoded and upright, of any format, if they fit into their cells."""
    image = photograph(20, 10)
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(tmp_path / "turned.png", exif=exif)
    image.convert("L").save(tmp_path / "grey.jpg")
    photograph(200, 200).save(tmp_path / "long.jpg")
    (tmp_path / "cut.jpg").write_bytes((tmp_path / "grey.jpg").read_bytes()[:-9])
    paths = [tmp_path / name for name in ("turned.png", "grey.jpg", "long.jpg", "cut.jpg")]
    workers = start(1, len(paths))
    turned, grey, long, cut = ask(workers, paths, "whole")
    assert (turned.form, turned.size, turned.length) == ("whole", (20, 10), 600)
    assert (grey.form, grey.size) == ("whole", (10, 20))
    assert long == Answer(3 * 16 * 16, "square")
    assert "truncated" in cut.why
    upright = np.frombuffer(workers.memory[:600], np.uint8).reshape(20, 10, 3)
    assert np.array_equal(upright, np.rot90(np.asarray(image), -1))
    shades = np.frombuffer(workers.memory[CELL : CELL + 600], np.uint8).reshape(10, 20, 3)
    assert np.array_equal(shades, np.asarray(Image.open(paths[1]).convert("RGB")))
    assert workers.memory[2 * CELL : 2 * CELL + 768] == read_image(paths[2], 16).tobytes()


def test_several_threads_share_the_workers(tmp_path, start):
    """Each thread gets its own answers, in order."""
    for i in range(40):
        Image.fromarray(np.full((9, 9, 3), i, np.uint8)).save(tmp_path / f"{i}.png")
    workers = start(2, 3 * 40)
    errors = []

    def work(part):
        order = np.random.default_rng(part).permutation(40)
        wanted = [
            Wanted(str(tmp_path / f"{i}.png"), 0.5, part * 40 + n) for n, i in enumerate(order)
        ]
        for _ in range(5):
            answers = workers.ask(wanted, 3, "jpeg")
            seen = [workers.memory[w.cell * CELL] for w in wanted]
            if answers != [Answer(27, "square")] * 40 or seen != list(order):
                errors.append(part)

    threads = [threading.Thread(target=work, args=[part]) for part in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert workers.ask([], 3, "jpeg") == []


def test_an_ended_worker_is_an_error(tmp_path, start):
    photograph(20, 10).save(tmp_path / "a.png")
    workers = start(1, 1)
    assert ask(workers, [tmp_path / "a.png"])[0].length == 3 * 16 * 16
    for stop in (signal.SIGINT, signal.SIGTERM):  # a worker ignores them
        os.kill(workers.processes[0].pid, stop)
        assert ask(workers, [tmp_path / "a.png"])[0].length == 3 * 16 * 16
    os.kill(workers.processes[0].pid, signal.SIGKILL)
    with pytest.raises(UserError, match=r"has ended .exit code -9.* --resume"):
        ask(workers, [tmp_path / "a.png"])
    with pytest.raises(UserError, match="have been ended"):  # without waiting
        ask(workers, [tmp_path / "a.png"])


def test_a_worker_imports_neither_torch_nor_rich():
    code = (
        "import sys; from comatch.data import image_workers, images; "
        "sys.exit('torch' in sys.modules or 'rich' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_ranks_on_one_machine_share_its_cores(monkeypatch):
    monkeypatch.setattr(module.os, "cpu_count", lambda: 8)
    assert module.default_workers() == 8
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert module.default_workers() == 2
    monkeypatch.setattr(module.os, "cpu_count", lambda: None)
    assert module.default_workers() == 1


def test_closing_ends_the_workers(start):
    workers = start(2, 1)
    workers.close()
    assert [process.returncode for process in workers.processes] == [0, 0]


def test_requests_after_closing_are_errors(tmp_path, start):
    """Threads that wait for an answer get an error, too."""
    for i in range(200):
        photograph(30, 40).save(tmp_path / f"{i}.png")
    workers = start(1, 1)
    errors = []

    def work():
        try:
            while True:
                workers.ask([Wanted(str(tmp_path / f"{i}.png"), 0.5, 0) for i in range(200)], 16)
        except (UserError, ValueError) as error:
            errors.append(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    workers.close()
    for thread in threads:
        thread.join(20)
    assert len(errors) == 4


def test_memory_without_memfd(tmp_path, start, monkeypatch):
    monkeypatch.delattr(module.os, "memfd_create")
    photograph(20, 10).save(tmp_path / "a.png")
    workers = start(1, 1)
    (answer,) = ask(workers, [tmp_path / "a.png"])
    assert workers.memory[: answer.length] == read_image(tmp_path / "a.png", 16).tobytes()
