"""Training in the kernel of a notebook."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import shoestring
from shoestring.answers import live
from shoestring.runs.train.session import LaunchRequest
from shoestring.training.run_directory.stored import StoredState

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


def test_the_child_gets_everything_that_train_was_called_with(tmp_path):
    request = LaunchRequest(
        run=tmp_path,
        on="kaggle-t4x2",
        limit_seconds=90.0,
        disk_bytes=1000,
        allow_inexact=True,
        log=("csv",),
        backup="/copies",
        from_url="s3://bucket/run",
    )
    values = {"epochs": 5, "cudnn_benchmark": True, "data": None}
    text = " ".join(live.arguments("temporal", values, request, None))
    assert text == (
        f"train temporal --run {tmp_path} --on kaggle-t4x2 --set epochs=5 --set cudnn_benchmark=true --set data=none "
        "--limit 90s --disk 1000 --backup /copies --from s3://bucket/run --log csv --allow-inexact"
    )


@pytest.mark.slow
def test_the_child_trains_with_a_plan_of_its_device(tmp_path):
    plan = shoestring.plan("temporal", on="cpu", size="tiny", micro_batch=32)
    request = LaunchRequest(run=tmp_path, on="cpu")
    assert {"size=tiny", "micro_batch=32"} <= set(live.arguments("temporal", {}, request, plan))
    assert "micro_batch=8" in live.arguments("temporal", {"micro_batch": 8}, request, plan)
    other = shoestring.plan("temporal", on="t4", size="tiny", micro_batch=32)
    given = live.arguments("temporal", {}, request, other)
    assert "size=tiny" in given and "micro_batch=32" not in given
