"""Where compiled code is kept from one run to the next.

Everything that is compiled for this machine (by inductor, Triton or NVRTC) lies below one folder:
$COMATCH_CACHE, or ~/.cache/comatch. It may be deleted at any time; the next start takes longer.
"""

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path


def folder() -> Path:
    if "COMATCH_CACHE" in os.environ:
        return Path(os.environ["COMATCH_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "comatch"


def share_with_compilers() -> None:
    """Points the compilers there, unless they were told another place or nobody can write there.

    Inductor's own choice is the folder for temporary files, which a restart empties.
    """
    there = folder().absolute()
    while not there.exists():
        there = there.parent
    if there.is_dir() and os.access(there, os.W_OK):
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder() / "inductor"))
        os.environ.setdefault("TRITON_CACHE_DIR", str(folder() / "triton"))


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
