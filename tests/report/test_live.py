"""Training in the kernel of a notebook."""

import json
import os
import subprocess
import sys
from pathlib import Path

from shoestring.session.stored import StoredState

SCRIPT = Path(__file__).with_name("executed_cells.py")


def test_a_cell_shows_the_run_and_an_interrupt_pauses_it(tmp_path):
    run = tmp_path / "run"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        [sys.executable, SCRIPT, run], capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=120
    )
    assert process.returncode == 0, process.stderr
    trained, refused = json.loads(process.stdout.splitlines()[-1])
    assert StoredState.read(run / "state.json").status == "paused"
    assert [output["output_type"] for output in trained] == ["display_data", "execute_result"]  # and no error
    assert trained[-1]["data"]["text/plain"].startswith("paused at update ")
    assert "continue with: shoestring train" in trained[0]["data"]["text/plain"]
    assert refused[-1]["ename"] == "UsageError" and "epochs" in refused[-1]["evalue"]
