"""`comatch report RUN --html FILE`: one run as a page in one file, and as a model card."""

from pathlib import Path
from typing import NamedTuple

from comatch.commands.report.page import card, facts, page
from comatch.errors import UserError
from comatch.files import atomic_writer


class Written(NamedTuple):
    """The files of a report."""

    page: Path
    card: Path | None  # None: there was one already
    notes: list[str]  # what the page does not show, and why


def write(run: Path, path: Path, overwrite: bool = False, device: str = "auto") -> Written:
    """Write the page, and model_card.md in the run folder unless one is there already."""
    found = facts.read(run, device)
    write_text(path, page.render(found))
    model_card = run / card.NAME
    if model_card.exists() and not overwrite:
        return Written(path, None, found.notes)
    write_text(model_card, card.render(found))
    return Written(path, model_card, found.notes)


def write_text(path: Path, text: str) -> None:
    try:
        with atomic_writer(path) as file:
            file.write(text.encode(errors="replace"))
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
