"""Files are written whole or not at all."""

import os

import pytest

from comatch import files
from comatch.errors import UserError


def test_a_failed_write_keeps_the_previous_version(tmp_path):
    path = tmp_path / "summary.json"
    files.write_json(path, {"step": 1})

    def full_disk(file):
        file.write(b"half of it")
        raise OSError(28, os.strerror(28))

    with pytest.raises(UserError, match="No space left on device; the previous version is kept"):
        files.write_file(path, full_disk)
    assert files.read_json(path) == {"step": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["summary.json"]
