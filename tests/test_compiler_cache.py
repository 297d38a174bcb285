"""Where compiled code is kept: one folder, that may be any_rank, missing or read-only."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from comatch import compiler_cache as cache

VARIABLES = (
    "COMATCH_CACHE",
    "XDG_CACHE_HOME",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "TRITON_PTXAS_PATH",
)


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    """Nothing is set but a home."""
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that what a test sets is gone after it
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


def test_folder(monkeypatch, tmp_path):
    assert cache.folder() == tmp_path / ".cache" / "comatch"
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache.folder() == Path("/somewhere/comatch")
    monkeypatch.setenv("COMATCH_CACHE", "/here")
    assert cache.folder() == Path("/here")


@pytest.fixture
def homeless(monkeypatch):
    """A user that the system does not know, as in some containers."""

    def home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)


@pytest.mark.usefixtures("homeless")
def test_a_user_without_a_home_can_name_a_folder(monkeypatch):
    monkeypatch.setenv("COMATCH_CACHE", "/here")
    assert cache.folder() == Path("/here")


@pytest.mark.usefixtures("homeless")
def test_without_a_home_the_cache_is_not_where_one_happens_to_be():
    assert cache.folder().is_absolute()


def test_an_empty_variable_is_none(monkeypatch, tmp_path):
    for name in ("COMATCH_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "")
    assert cache.folder() == tmp_path / ".cache" / "comatch"


def test_a_home_that_may_not_be_entered(monkeypatch, tmp_path):
    """That of somebody else, say: HOME=/root after changing the user."""
    stat = os.stat

    def locked(path, *args, **options):
        if str(path).startswith(f"{tmp_path}/"):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, *args, **options)

    monkeypatch.setattr(os, "stat", locked)
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).startswith(str(tmp_path)))
    cache.share_with_compilers()
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ


def test_compilers_share_it_unless_told_otherwise(monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", "/mine")
    cache.share_with_compilers()
    assert os.environ["TRITON_CACHE_DIR"] == "/mine"
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(cache.folder() / "inductor")


def test_all_starts_have_the_same_assembler(monkeypatch, tmp_path):
    monkeypatch.setattr(cache, "torch_folder", lambda: tmp_path)
    cache.share_with_compilers()
    assert "TRITON_PTXAS_PATH" not in os.environ, "not every PyTorch brings one"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ptxas").touch(mode=0o755)
    cache.share_with_compilers()
    assert os.environ["TRITON_PTXAS_PATH"] == str(tmp_path / "bin" / "ptxas")
    monkeypatch.setenv("TRITON_PTXAS_PATH", "/mine")
    cache.share_with_compilers()
    assert os.environ["TRITON_PTXAS_PATH"] == "/mine"


def python(code, **variables):
    clean = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    return subprocess.run(
        [sys.executable, "-c", code], env={**clean, **variables}, capture_output=True, text=True
    )


def test_importing_comatch_is_enough(tmp_path):
    code = "import comatch, os; print(os.environ['TORCHINDUCTOR_CACHE_DIR'])"
    ours = python(code, COMATCH_CACHE=str(tmp_path / "cache"))
    assert ours.stdout.strip() == str(tmp_path / "cache" / "inductor")
    theirs = python(code, TORCHINDUCTOR_CACHE_DIR="/mine")
    assert theirs.stdout.strip() == "/mine"


@pytest.mark.slow
def test_a_home_that_cannot_be_written_does_not_stop_the_compiler(tmp_path):
    (tmp_path / "file").touch()
    code = "import comatch, torch; print(torch.compile(torch.sin)(torch.zeros(3)).sum().item())"
    run = python(code, COMATCH_CACHE=str(tmp_path / "file" / "cache"))
    assert run.stdout.strip() == "0.0", run.stderr


def test_made_once_for_each_key():
    calls = []

    def make(value):
        return lambda: calls.append(value) or value

    assert cache.remembered("a", make(b"1")) == b"1"
    assert cache.remembered("a", make(b"2")) == b"1"
    assert cache.remembered("b", make(b"3")) == b"3"
    assert calls == [b"1", b"3"]


def test_without_a_place_to_write_it_is_made_each_time(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("COMATCH_CACHE", str(tmp_path / "file" / "below"))
    assert cache.remembered("a", lambda: b"1") == b"1"
    assert cache.remembered("a", lambda: b"2") == b"2"


def test_a_failure_to_make_is_not_kept():
    def fail():
        raise RuntimeError("does not compile")

    with pytest.raises(RuntimeError, match="does not compile"):
        cache.remembered("a", fail)
    assert cache.remembered("a", lambda: b"1") == b"1"


def test_a_file_appears_when_it_is_whole(monkeypatch):
    replace, moved = os.replace, []

    def watched(source, target):
        assert not Path(target).exists()
        moved.append(Path(source).read_bytes())
        replace(source, target)

    monkeypatch.setattr(os, "replace", watched)
    cache.remembered("key", lambda: b"x" * 100_000)
    assert moved == [b"x" * 100_000]


def test_two_writers_at_once():
    """Both have looked, both make and both write; one whole file is left."""
    together = threading.Barrier(2, timeout=10)
    values = []

    def make():
        together.wait()
        return b"x" * 100_000

    def work():
        values.append(cache.remembered("key", make))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values == [b"x" * 100_000] * 2
    (file,) = (cache.folder() / "nvrtc").iterdir()
    assert file.read_bytes() == values[0]


def test_a_full_disk_leaves_nothing_behind(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert cache.remembered("key", lambda: b"1") == b"1"
    assert list((cache.folder() / "nvrtc").iterdir()) == []


@pytest.mark.parametrize("compiled", [True, False])
def test_bytecode_is_kept_where_torch_came_without(tmp_path, compiled):
    torch = tmp_path / "packages" / "torch"
    (torch / "__pycache__").mkdir(parents=True) if compiled else torch.mkdir(parents=True)
    (torch / "__init__.py").write_text("value = 1")
    code = "import comatch; comatch.cache.keep_bytecode(); import torch; print(torch.__file__)"
    home = tmp_path / "cache"
    for _ in range(2):  # what was kept is no reason not to use it
        run = python(
            code,
            COMATCH_CACHE=str(home),
            PYTHONDONTWRITEBYTECODE="1",
            PYTHONPATH=f"{torch.parent}{os.pathsep}{Path(cache.__file__).parents[1]}",
        )
        assert run.stdout.strip() == str(torch / "__init__.py"), run.stderr
        kept = list((home / "python").rglob("torch/__init__*.pyc"))
        assert len(kept) == (0 if compiled else 1)
    assert not compiled or not list((torch / "__pycache__").iterdir()), "what was asked for"
