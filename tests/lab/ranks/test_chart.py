"""The recipe chart on two GPUs, its divided weights in host memory: kills change no bit, its memory is predicted."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.ranks import chart_runs
from tests.recipes.chart.test_divided import tensors

VALUES = {
    "size": "tiny", "prompt_len": 300, "completion_len": 4, "weights": "fp32", "effective_batch": 8, "generations": 2,
    "micro_batch": 4, "precision": "fp16", "learning_rate": 0.01, "epochs": 2, "gpus": 2, "sharding": "zero3",
    "offload": "parameters", "save_every_updates": 1,
}  # fmt: skip

ESTIMATE = """
import dataclasses, json, sys
from shoestring.hardware.targets import find
from shoestring.planning.estimate.memory import memory
from shoestring.planning.trace import Tracer
from shoestring.recipe.finding import choose

loaded, settings = choose("chart", json.loads(sys.argv[1]))
settings = settings.replace(checkpointing="no", memory_format="contiguous", logical_shards=2)
device = find("kaggle-t4x2").device
with Tracer(loaded) as tracer:
    breakdown = memory(tracer.trace(settings, accumulate=1, device=device, gpus=2), device, gpus=2)
print(json.dumps({"allocated": breakdown.allocated.value, "reserved": breakdown.reserved.value}))
"""


def estimate(values):
    """Return the predicted peaks, of a process that does not see the simulated GPU."""
    command = [sys.executable, "-c", ESTIMATE, json.dumps(values)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.slow
def test_chart_is_trained_and_estimated_with_both_offloads(ranks_on, tmp_path):
    driver = ranks_on("kaggle-t4x2")
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    results = driver.run(2, chart_runs.train_measured, run=str(straight), values=VALUES, seconds=300)
    arguments = {"run": str(killed), "values": VALUES, "seconds": 300}
    answers = driver.call(2, chart_runs.train_measured, **arguments, killed_in=chart_runs.REWARDS_OF_AN_UPDATE + 2)
    assert answers.statuses[1] == -9 and answers.statuses[0] != 0
    driver.run(2, chart_runs.train_measured, **arguments)
    assert tensors(killed) == tensors(straight) and len(tensors(straight)) == 4
    predicted = estimate(VALUES)
    for result in results:
        assert result["update"] == 2
        assert [result[name] for name in predicted] == pytest.approx(list(predicted.values()), rel=0.03)
