"""Where compiled code is kept from one run to the next.

Everything that is compiled for this machine (by inductor, Triton or NVRTC) lies below one folder:
$COMATCH_CACHE, or ~/.cache/comatch. It may be deleted at any time; the next start takes longer.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("COMATCH_CACHE") or Path(home) / "comatch")


def share_with_compilers() -> None:
    """Points the compilers there, unless they were told another place.

    Inductor's own choice is the folder for temporary files, which a restart empties.
    """
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder() / "inductor"))
    os.environ.setdefault("TRITON_CACHE_DIR", str(folder() / "triton"))


def remembered(key: str, make: Callable[[], bytes]) -> bytes:
    """What `make` gave the last time for this key, or gives now; without a disk it just works."""
    path = folder() / "nvrtc" / hashlib.sha256(key.encode()).hexdigest()
    try:
        return path.read_bytes()
    except OSError:
        pass
    value = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(value)
        os.replace(file.name, path)
    except OSError:
        pass
    return value
