"""Source files that the explanation pages name exist."""

import re

import pytest
from doc_tables import ROOT

PAGES = sorted((ROOT / "docs" / "explanation").rglob("*.md"))
NAMED = re.compile(r"`((?:[\w-]+/)*[\w-]+\.(?:py|cu|csv))`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_that_a_page_names_exist(page):
    for name in NAMED.findall(page.read_text()):
        if "/" not in name and name.endswith(".csv"):
            continue  # a file of a user
        assert any((root / name).exists() for root in (ROOT, ROOT / "src" / "comatch")), name
