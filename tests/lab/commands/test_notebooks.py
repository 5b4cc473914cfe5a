"""The cells of a generated notebook on a machine with a GPU."""

import json

import nbformat
import pytest
from benchmarks.notebook.run import clean_environment, execute, make_environment

import shoestring


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow")  # of jupyter_client, with Python 3.12
def test_the_cells_of_a_notebook_train_on_the_gpu(tmp_path):
    python = make_environment(tmp_path / "environment")
    out = tmp_path / "notebook"
    options = {"size": "tiny", "epochs": "1", "max_updates": "4"}
    shoestring.notebook("temporal", "kaggle-t4", out=out, user="me", **options)
    environment = clean_environment() | {"SHOESTRING_KAGGLE_ROOT": str(tmp_path / "kaggle"), "OMP_NUM_THREADS": "1"}
    content = execute(out / "notebook.ipynb", python, environment)
    outputs = [output for cell in content.cells for output in cell.get("outputs", ())]
    assert not [output for output in outputs if output.output_type == "error"]
    run = tmp_path / "kaggle" / "working" / "runs" / "temporal"
    assert json.loads((run / "state.json").read_text())["status"] == "finished"
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert all(event["gpu_allocated_bytes"] for event in events if event["event"] == "progress")
    assert "Tesla T4" in nbformat.writes(content)
