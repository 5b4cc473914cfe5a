"""The script for a GPU's first ten minutes, with a fake Python, and the table of what it measured."""

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.gpu import metadata
from benchmarks.gpu.summary import RESULTS
from benchmarks.tables import gpu

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu" / "first_minutes.sh"
PYTHON = f"""#!/usr/bin/env bash
case "$2" in
  benchmarks.gpu.metadata) exec {sys.executable} "$@" ;;
  benchmarks.gpu.machine) test -e "${{PYTHONPATH%%:*}}"/shoestring-*.dist-info/entry_points.txt; exit $((2 + $?)) ;;
  benchmarks.gpu.out_of_memory) kill -ABRT $$ ;;
  benchmarks.gpu.graphs) echo '{{"environment": {{"device": "GPU", "date": "2026-11-27"}}, "rows": [{{"name": "LSTM",
    "precision": "fp16", "max_gradient_difference": 0.5, "seconds": 2.0, "graph_seconds": 1.0}}]}}' > "$4" ;;
  benchmarks.gpu.summary) exec {sys.executable} "$@" ;;
  *) exit 0 ;;
esac
"""


def test_a_part_that_fails_does_not_end_the_others(tmp_path):
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    arguments = ["--python", python, "--out", tmp_path / "out", "--seconds", "60", "machine", "out_of_memory", "graphs"]
    process = subprocess.run([SCRIPT, *arguments], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    content = json.loads((tmp_path / "out" / "first_minutes.json").read_text())
    statuses = {name: part["status"] for name, part in content["parts"].items()}
    assert statuses == {"machine": "exit status 2", "out_of_memory": "exit status 134", "graphs": "finished"}
    assert "look at: LSTM in fp16: gradients differ by 0.5" in process.stdout


def test_recipes_are_found_where_nothing_is_installed(tmp_path):
    metadata.write(tmp_path)
    (written,) = importlib.metadata.distributions(path=[str(tmp_path)])
    installed = importlib.metadata.distribution("shoestring")
    entries, expected = (
        {(entry.group, entry.name, entry.value) for entry in each.entry_points if "recipes" in entry.group}
        for each in (written, installed)
    )
    assert entries == expected and (written.name, written.version) == (installed.name, installed.version)


def test_every_part_has_a_summary():
    parts = {line.split()[1] for line in SCRIPT.read_text().splitlines() if line.lstrip().startswith("run ")}
    assert parts - {"hang", "crash"} <= set(RESULTS)


@pytest.mark.parametrize("name", ["memory", "time", "bits", "finetune", "status"])
def test_without_results_the_tables_say_so(monkeypatch, name):
    monkeypatch.setattr(gpu, "results", list)
    assert gpu.NOT_MEASURED in getattr(gpu, name)()
