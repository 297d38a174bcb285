"""MkDocs hook: links from a page to files of the repository outside `docs`.

On a forge such a link opens the file. The site has only the pages, so there a picture is copied
and a link becomes plain text. A link to a file that does not exist stays, and fails a strict build.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<path>\.\./[^)#\s]+)(?:#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for page in list(files.documentation_pages()):
        if page.abs_src_path is None:  # generated
            continue

        def add(link: re.Match[str], path: Path) -> str:
            if link["image"] and files.get_file_from_path(copied(path, config)) is None:
                files.append(File.generated(config, copied(path, config), abs_src_path=str(path)))
            return ""

        each_outside(Path(page.abs_src_path).read_text(), page.src_uri, config, add)
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    def rewritten(link: re.Match[str], path: Path) -> str:
        if not link["image"]:
            return link["text"]
        here = os.path.relpath(copied(path, config), os.path.dirname(page.file.src_uri))
        return f"![{link['text']}]({here})"

    return each_outside(markdown, page.file.src_uri, config, rewritten)


def each_outside(
    text: str,
    page: str,
    config: MkDocsConfig,
    replace: Callable[[re.Match[str], Path], str],
) -> str:
    """The text with every link to an existing file outside `docs` replaced."""
    docs = Path(config.docs_dir)

    def one(link: re.Match[str]) -> str:
        path = Path(os.path.normpath(docs / os.path.dirname(page) / link["path"]))
        outside = path.exists() and docs not in path.parents
        return replace(link, path) if outside else link[0]

    return LINK.sub(one, text)


def copied(path: Path, config: MkDocsConfig) -> str:
    """Where the site has a picture from outside."""
    return f"outside/{path.relative_to(Path(config.docs_dir).parent).as_posix()}"
