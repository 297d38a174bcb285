"""What the setting `data` may be. It is checked before PyTorch is loaded, which takes seconds."""

import difflib
from collections.abc import Iterable
from pathlib import Path

from comatch.errors import UserError

DATA_SETS = ("digits", "cifar10", "stl10")


def check_data(data: str) -> None:
    """Raise an error if `data` is neither the name of a data set nor an existing path."""
    if data in DATA_SETS or Path(data).expanduser().exists():
        return
    near = difflib.get_close_matches(data.lower(), DATA_SETS, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise UserError(
        f"{data!r} is neither a folder nor a known source{hint}: "
        f"give the path of a folder of images or one of {', '.join(DATA_SETS)}"
    )


def check_images(paths: Iterable[Path]) -> None:
    """Raise an error if one of these files and folders does not exist."""
    for path in paths:
        if not path.exists():
            raise UserError(f"{path} does not exist: give images or folders of images")
