"""The folder of compiled code: it may be anywhere, missing or read-only."""

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
    """No variable is set but the home."""
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that the test's own value is removed after it
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


def test_the_folder_follows_the_variables(monkeypatch, tmp_path):
    assert cache.folder() == tmp_path / ".cache" / "comatch"
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache.folder() == Path("/somewhere/comatch")
    monkeypatch.setenv("COMATCH_CACHE", "/here")
    assert cache.folder() == Path("/here")


@pytest.fixture
def homeless(monkeypatch):
    """A user without a home, as in some containers."""

    def home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)


@pytest.mark.usefixtures("homeless")
def test_a_user_without_a_home_can_name_a_folder(monkeypatch):
    monkeypatch.setenv("COMATCH_CACHE", "/here")
    assert cache.folder() == Path("/here")


@pytest.mark.usefixtures("homeless")
def test_without_a_home_the_folder_is_not_relative():
    assert cache.folder().is_absolute()


def test_an_empty_variable_counts_as_unset(monkeypatch, tmp_path):
    for name in ("COMATCH_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "")
    assert cache.folder() == tmp_path / ".cache" / "comatch"


def test_a_home_without_permission(monkeypatch, tmp_path):
    """For example HOME=/root for another user."""
    stat = os.stat

    def locked(path, *args, **options):
        if str(path).startswith(f"{tmp_path}/"):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, *args, **options)

    monkeypatch.setattr(os, "stat", locked)
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).startswith(str(tmp_path)))
    cache.share_with_compilers()
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ


def test_a_folder_that_the_user_set_is_kept(monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", "/mine")
    cache.share_with_compilers()
    assert os.environ["TRITON_CACHE_DIR"] == "/mine"
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(cache.folder() / "inductor")


def test_every_start_uses_the_same_assembler(monkeypatch, tmp_path):
    monkeypatch.setattr(cache, "torch_folder", lambda: tmp_path)
    cache.share_with_compilers()
    assert "TRITON_PTXAS_PATH" not in os.environ, "not every PyTorch has one"
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


def test_importing_comatch_sets_the_folders(tmp_path):
    code = "import comatch, os; print(os.environ['TORCHINDUCTOR_CACHE_DIR'])"
    ours = python(code, COMATCH_CACHE=str(tmp_path / "cache"))
    assert ours.stdout.strip() == str(tmp_path / "cache" / "inductor")
    theirs = python(code, TORCHINDUCTOR_CACHE_DIR="/mine")
    assert theirs.stdout.strip() == "/mine"


@pytest.mark.slow
def test_the_compiler_works_without_a_writable_folder(tmp_path):
    (tmp_path / "file").touch()
    code = "import comatch, torch; print(torch.compile(torch.sin)(torch.zeros(3)).sum().item())"
    run = python(code, COMATCH_CACHE=str(tmp_path / "file" / "cache"))
    assert run.stdout.strip() == "0.0", run.stderr


def test_a_value_is_made_once_for_each_key():
    calls = []

    def make(value):
        return lambda: calls.append(value) or value

    assert cache.cached("a", make(b"1")) == b"1"
    assert cache.cached("a", make(b"2")) == b"1"
    assert cache.cached("b", make(b"3")) == b"3"
    assert calls == [b"1", b"3"]


def test_without_a_writable_folder_a_value_is_made_each_time(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("COMATCH_CACHE", str(tmp_path / "file" / "below"))
    assert cache.cached("a", lambda: b"1") == b"1"
    assert cache.cached("a", lambda: b"2") == b"2"


def test_an_error_is_not_kept():
    def fail():
        raise RuntimeError("does not compile")

    with pytest.raises(RuntimeError, match="does not compile"):
        cache.cached("a", fail)
    assert cache.cached("a", lambda: b"1") == b"1"


def test_a_file_is_written_before_it_gets_its_name(monkeypatch):
    replace, moved = os.replace, []

    def watched(source, target):
        assert not Path(target).exists()
        moved.append(Path(source).read_bytes())
        replace(source, target)

    monkeypatch.setattr(os, "replace", watched)
    cache.cached("key", lambda: b"x" * 100_000)
    assert moved == [b"x" * 100_000]


def test_two_writers_at_once():
    """Both miss the cache, make the value and write it; one complete file is left."""
    together = threading.Barrier(2, timeout=10)
    values = []

    def make():
        together.wait()
        return b"x" * 100_000

    def work():
        values.append(cache.cached("key", make))

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
    assert cache.cached("key", lambda: b"1") == b"1"
    assert list((cache.folder() / "nvrtc").iterdir()) == []


@pytest.mark.parametrize("compiled", [True, False])
def test_bytecode_is_kept_if_torch_was_installed_without(tmp_path, compiled):
    torch = tmp_path / "packages" / "torch"
    (torch / "__pycache__").mkdir(parents=True) if compiled else torch.mkdir(parents=True)
    (torch / "__init__.py").write_text("value = 1")
    code = "import comatch.compiler_cache as cache; cache.keep_bytecode()"
    code += "; import torch; print(torch.__file__)"
    home = tmp_path / "cache"
    for _ in range(2):  # the second start finds the bytecode of the first
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
