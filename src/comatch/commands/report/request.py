"""What `comatch report --html` is asked for, checked before PyTorch is loaded."""

from pathlib import Path

from comatch.commands.report.runs import find
from comatch.errors import UserError
from comatch.files import check_run_folder


def check(runs: list[Path], path: Path, overwrite: bool) -> Path:
    """The run of a report that can be written. Several runs, or a file that exists, are errors."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--html {path}: give a name that ends in .html")
    if len(runs) != 1:
        raise UserError(f"--html takes one run folder, not {len(runs)}")
    check_run_folder(runs[0])
    if (found := find(runs[0])) != runs:
        raise UserError(f"--html takes one run folder: {runs[0]} has {len(found)} below it")
    if path.exists() and not overwrite:
        raise UserError(f"{path} exists: add --overwrite, or choose another --html")
    return runs[0]
