"""Every table in README and docs is the one that its command makes from the recorded results."""

import doc_tables
import pytest

TABLES = [
    pytest.param(command, table, id=f"{page.stem}: {command}")
    for page, command, table in doc_tables.tables()
]


@pytest.mark.parametrize(("command", "table"), TABLES)
def test_a_table_is_what_its_command_makes(command, table):
    assert doc_tables.make(command) == table


def test_every_mark_is_closed():
    for page in doc_tables.pages():
        text = page.read_text()
        marks = text.count("<!-- table:")
        assert marks == text.count("<!-- end -->") == len(doc_tables.MARKED.findall(text)), page
