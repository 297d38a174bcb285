"""Where compiled code is kept from one run to the next.

AllImages that is compiled for this machine (by inductor, Triton, NVRTC or Python itself, if
nobody else keeps that) lies below one folder:
$COMATCH_CACHE, or ~/.cache/comatch. It may be deleted at any time; the next start takes longer.
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
    if home.startswith("~"):  # a user that the system does not know
        home = tempfile.gettempdir()
    return Path(home) / "comatch"


def share_with_compilers() -> None:
    """Points the compilers there, unless they were told another place or nobody can write there.

    Inductor's own choice is the folder for temporary files, which a restart empties.
    """
    if writable(folder().absolute()):
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder() / "inductor"))
        os.environ.setdefault("TRITON_CACHE_DIR", str(folder() / "triton"))
    # Inductor sets this too, but only once it meets a kernel that it need not compile: the second
    # start would then have another assembler than the first, and compile all of ours again.
    assembler = torch_folder() / "bin" / "ptxas"
    if os.access(assembler, os.X_OK):
        os.environ.setdefault("TRITON_PTXAS_PATH", str(assembler))


def torch_folder() -> Path:
    """Where PyTorch lies, found without importing it."""
    found = importlib.util.find_spec("torch")
    return Path(found.origin).parent if found and found.origin else Path("nowhere")


def keep_bytecode() -> None:
    """Keeps what Python compiles, where PyTorch was installed without it and nobody writes it.

    Images of containers are often made so; then every start compiles two thousand files again.
    """
    compiled = (torch_folder() / "__pycache__").exists()
    wanted = sys.dont_write_bytecode and not sys.pycache_prefix and not compiled
    if wanted and writable(folder().absolute()):
        sys.dont_write_bytecode, sys.pycache_prefix = False, str(folder().absolute() / "python")
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix  # for the compilers' helpers
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def writable(path: Path) -> bool:
    """Whether a folder is there or could be made."""
    try:
        while not path.exists():
            path = path.parent
        return path.is_dir() and os.access(path, os.W_OK)
    except OSError:
        return False


def remembered(key: str, make: Callable[[], bytes]) -> bytes:
    """What `make` gave the last time for this key, or gives now; without a disk it just works."""
    path = folder() / "nvrtc" / hashlib.sha256(key.encode()).hexdigest()
    with contextlib.suppress(OSError):
        return path.read_bytes()
    value = make()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            part.write_bytes(value)
            os.replace(part, path)  # at once: another process may be reading
        finally:
            part.unlink(missing_ok=True)
    return value
