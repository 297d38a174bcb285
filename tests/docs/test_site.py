"""The documentation site can be built, and no link or anchor in it is dead."""

import logging
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_site_is_built_without_a_warning(tmp_path, caplog, monkeypatch):
    pytest.importorskip("mkdocs")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    monkeypatch.chdir(ROOT)
    config = load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(tmp_path / "site"))
    with caplog.at_level(logging.WARNING):
        build(config)
    assert not [record for record in caplog.records if record.name.startswith("mkdocs")]
    for page in ("index", "tutorial/first-classifier", "reference/settings"):
        assert (tmp_path / "site" / f"{page}.html").exists()
