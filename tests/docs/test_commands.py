"""The commands and programs in README, tutorial, how-to guides and examples run as written.

What is cut: steps, batch size, number of seeds; tables are made of the runs that exist. Blocks of
`sh` are not run: they need a network, a GPU, several processes or data that no test has.
"""

import importlib
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch

import comatch
from comatch import api
from comatch.data import sources
from helpers import make_images, photograph, write_cifar10

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in (
        ROOT / "README.md",
        *sorted((ROOT / "docs" / "tutorial").glob("*.md")),
        *sorted((ROOT / "docs" / "how-to").glob("*.md")),
        ROOT / "docs" / "reference" / "python.md",
    )
}
RUN_ELSEWHERE = "docs/how-to/export.md"  # tests/commands/test_export.py compares what it prints
BLOCK = re.compile(r"^```(\w+)(?: title=\"(.+?)\")?\n(.*?)^```", re.DOTALL | re.MULTILINE)
SMALL = ["--steps", "2", "--set", "batch=10", "--set", "mu=2"]


def blocks(page, language):
    """The name and the text of each block of code."""
    found = BLOCK.findall(PAGES[page])
    return [(name, text) for kind, name, text in found if kind == language]


def commands(page):
    """Each command in the `bash` blocks, as words."""
    text = "".join(text for _, text in blocks(page, "bash")).replace("\\\n", " ")
    lines = (shlex.split(line, comments=True) for line in text.splitlines())
    return [words for words in lines if words]


def programs(page):
    """The `python` blocks that are whole programs. Indented ones are parts of an example."""
    return [text for name, text in blocks(page, "python") if not name and text[0] != " "]


def pages_with(found):
    pages = [page for page in PAGES if page != RUN_ELSEWHERE and found(page)]
    return pytest.mark.parametrize("page", pages, ids=lambda page: Path(page).stem)


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A run of the recipe `folder`, to continue from."""
    root = tmp_path_factory.mktemp("trained")
    images = make_images(root / "images", unlabelled=20)
    settings = {"batch": 10, "mu": 2}
    return api.train(images, out=root / "run", steps=2, settings=settings, progress=False).path


@pytest.fixture
def workplace(tmp_path, trained, monkeypatch):
    """A folder with everything that the pages name."""
    make_images(tmp_path / "images", per_class=6, unlabelled=20)
    write_cifar10(tmp_path / "data", per_batch=20)
    for part, count in (("training", 7), ("validation", 1)):
        for number in range(10):
            folder = tmp_path / "download" / part / f"n{number}"
            folder.mkdir(parents=True)
            for i in range(count):
                photograph(40, 30, seed=10 * number + i).save(folder / f"{part}{i}.jpg")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "other").symlink_to(trained)
    torch.save(timm.create_model("resnet18").state_dict(), tmp_path / "weights.pth")
    create = timm.create_model  # pretrained weights are not downloaded: random ones will do
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained=False, **o: create(name, **o))
    monkeypatch.setattr("comatch.nets.encoders.is_available", lambda name: True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sources, "SOURCES", dict(sources.SOURCES))  # a page adds one
    return tmp_path


def shortened(command, words):
    if command == "train" and "--resume" not in words:
        given = words.index("--steps") if "--steps" in words else len(words)
        words = [*words[:given], *words[given + 2 :], *SMALL]
    if command == "pretrain":
        words = [*words, "--steps", "2", "--set", "batch=10"]
    if command == "compare":
        words = [{"0,1,2": "0"}.get(word, word) for word in words] + SMALL
    if command == "reproduce" and words[0] != "curves":
        words = [*words, "--no-train"]  # test_reproduce trains
    if command == "transfer":
        words = [*words, "--repeats", "1"]
    return words


@pages_with(commands)
def test_commands_run_as_written(page, workplace, cli, trained):
    for name, text in blocks(page, "python"):
        if name:
            (workplace / name).write_text(text)
    if "--out runs/mine" not in PAGES[page]:  # a page about a run that exists already
        copy = [sys.executable, "-c", "import shutil, sys; shutil.copytree(*sys.argv[1:])"]
        subprocess.run([*copy, trained, "runs/mine"], check=True)
    for program, *words in commands(page):
        if program == "make":
            assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        elif program == "python":
            subprocess.run([sys.executable, ROOT / words[0], *words[1:]], check=True)
        else:
            assert program == "comatch", f"{page}: write a command of {program} as `sh`"
            command, *words = words
            code, _, err = cli(command, *shortened(command, words))
            assert code == 0, f"comatch {command} {shlex.join(words)}: {err}"


@pages_with(programs)
def test_programs_run_as_written(page, workplace, monkeypatch):
    comparison = importlib.import_module("comatch.commands.compare")
    train, pretrain, compare = api.train, api.pretrain, comparison.compare
    small = {"steps": 2, "progress": False}

    def train_little(*data, **options):
        settings = {"batch": 10, "mu": 2, "image_size": 48}
        return train(*data, **{**options, **small, "settings": settings})

    def pretrain_little(*data, **options):
        return pretrain(*data, **options, **small, settings={"batch": 10})

    def compare_little(*data, **options):
        return compare(*data, **options, **small, settings={"batch": 10, "mu": 2})

    monkeypatch.setattr(api, "train", train_little)
    monkeypatch.setattr(api, "pretrain", pretrain_little)
    monkeypatch.setattr(comparison, "compare", compare_little)
    names = {"__name__": "page"}  # a later block goes on from those before it
    for text in programs(page):
        exec(compile(text, page, "exec"), names)


def test_the_losses_learn_in_a_loop_of_ones_own():
    example = runpy.run_path(str(ROOT / "examples" / "losses_in_your_loop.py"))
    assert example["main"](steps=120) > 0.5


def test_parts_of_the_example_are_on_its_page():
    example = (ROOT / "examples" / "losses_in_your_loop.py").read_text()
    parts = [text for _, text in blocks("docs/how-to/losses-in-your-own-loop.md", "python")]
    assert len(parts) == 3
    for text in parts:
        assert text in example


def test_the_version_is_that_of_the_package():
    assert f'version = "{comatch.__version__}"' in (ROOT / "pyproject.toml").read_text()
