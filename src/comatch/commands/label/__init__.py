"""`comatch label`: a local page to label pictures on. Nothing here loads PyTorch but `worker`."""

import importlib.util

from comatch.errors import UserError

NEEDED = ("starlette", "uvicorn")


def check_installed() -> None:
    """Raise an error if the libraries of the server are missing."""
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise UserError(f'label needs {", ".join(missing)}: pip install "comatch[web]"')
