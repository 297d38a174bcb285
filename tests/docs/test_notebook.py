"""The notebook runs from its first cell to its last, with few steps."""

import json
import re
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "scikit_learn.ipynb"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_notebook_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            source = re.sub(r"steps=\d+", "steps=4", "".join(cell["source"]))
            exec(compile(source, NOTEBOOK.name, "exec"), names)
    assert names["features"].shape[0] == len(names["images"])
    assert (tmp_path / "digits-classifier" / "model.safetensors").exists()
