"""The tables between marks in README and docs: find them, and make them again.

    <!-- table: comatch report --markdown results/digits-40/* -->
    | data | method | ...
    <!-- end -->

A command that begins with `benchmarks/` runs that script.
`python tests/docs/doc_tables.py` writes every table anew, for example after a result was added.
"""

import contextlib
import io
import re
import runpy
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
MARKED = re.compile(
    r"(<!-- table: ((?:comatch|benchmarks/).+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL
)


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def tables() -> Iterator[tuple[Path, str, str]]:
    """Page, command and table of every pair of marks."""
    for page in pages():
        for _, command, table, _ in MARKED.findall(page.read_text()):
            yield page, command, table.strip()


def make(command: str) -> str:
    """The Markdown table that a command makes, run in the root of the repository."""
    words = [path for word in command.split() for path in expand(word)]
    printed = io.StringIO()
    with contextlib.chdir(ROOT), tempfile.TemporaryDirectory() as folder:
        if words[0].endswith(".py"):
            with contextlib.redirect_stdout(printed):
                run_script(words)
            return printed.getvalue().strip()
        words = words[1:]
        if words[0] != "reproduce":
            with contextlib.redirect_stdout(printed):
                run(words)
            return printed.getvalue().strip()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            run([*words, "--out", folder])
        (written,) = Path(folder).glob("*.md")
        lines = written.read_text().splitlines()
        return "\n".join(line for line in lines if line.startswith("|"))


def expand(word: str) -> list[str]:
    """A pattern as the paths that match it, as a shell does."""
    if "*" not in word:
        return [word]
    found = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(word))
    if not found:
        raise FileNotFoundError(f"nothing matches {word}")
    return found


def run(words: list[str]) -> None:
    from comatch.cli import app

    app(words, standalone_mode=False)


def run_script(words: list[str]) -> None:
    before, sys.argv = sys.argv, words
    try:
        runpy.run_path(words[0], run_name="__main__")
    finally:
        sys.argv = before


if __name__ == "__main__":
    for page in pages():
        text = page.read_text()
        new = MARKED.sub(lambda m: f"{m[1]}{make(m[2])}\n{m[4]}", text)
        if new != text:
            page.write_text(new)
            print(page.relative_to(ROOT), file=sys.stderr)
