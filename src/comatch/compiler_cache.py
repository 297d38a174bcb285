"""The folder that keeps compiled code between runs.

Inductor, Triton and NVRTC keep their output below one folder, and so does Python where nothing
else keeps its bytecode: $COMATCH_CACHE, or ~/.cache/comatch. It may be deleted at any time; the
next start then takes longer.
"""

import contextlib
import hashlib
import importlib.util
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path


def folder() -> Path:
    if os.environ.get("COMATCH_CACHE"):
        return Path(os.environ["COMATCH_CACHE"])
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if home.startswith("~"):  # the system does not know this user
        home = tempfile.gettempdir()
    return Path(home) / "comatch"


def share_with_compilers() -> None:
    """Set the compilers' cache folders, unless they are set already or cannot be written.

    Inductor's own default is the folder for temporary files, which a reboot empties.
    """
    if writable(folder().absolute()):
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder() / "inductor"))
        os.environ.setdefault("TRITON_CACHE_DIR", str(folder() / "triton"))
    # Inductor sets this too, but only when it finds a kernel in its cache. The second start would
    # then use another assembler than the first, and compile our kernels again.
    assembler = torch_folder() / "bin" / "ptxas"
    if os.access(assembler, os.X_OK):
        os.environ.setdefault("TRITON_PTXAS_PATH", str(assembler))


def torch_folder() -> Path:
    """The folder that PyTorch is installed in, found without importing it."""
    found = importlib.util.find_spec("torch")
    return Path(found.origin).parent if found and found.origin else Path("nowhere")


def keep_bytecode() -> None:
    """Let Python keep its bytecode here, if PyTorch was installed without and none is written.

    Container images are often made so; each start then compiles two thousand files again.
    """
    compiled = (torch_folder() / "__pycache__").exists()
    wanted = sys.dont_write_bytecode and not sys.pycache_prefix and not compiled
    if wanted and writable(folder().absolute()):
        sys.dont_write_bytecode, sys.pycache_prefix = False, str(folder().absolute() / "python")
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix  # for the compilers too
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def writable(path: Path) -> bool:
    """Whether a folder can be written or made."""
    try:
        while not path.exists():
            path = path.parent
        return path.is_dir() and os.access(path, os.W_OK)
    except OSError:
        return False


def cached(key: str, make: Callable[[], bytes]) -> bytes:
    """The bytes that `make` returns for this key, kept on disk if that is possible."""
    path = folder() / "nvrtc" / hashlib.sha256(key.encode()).hexdigest()
    with contextlib.suppress(OSError):
        return path.read_bytes()
    value = make()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            part.write_bytes(value)
            os.replace(part, path)  # atomic: another process may be reading it
        finally:
            part.unlink(missing_ok=True)
    return value
