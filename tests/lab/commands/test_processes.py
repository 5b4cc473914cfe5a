"""Real commands on a machine with a GPU: Ctrl-C, a kill, a limit, two GPUs, the cells of a notebook."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import shoestring
from shoestring.training.monitor.events import read
from tests.sessions import final_checkpoint

VALUES = {"size": "tiny", "max_updates": 40, "effective_batch": 64, "micro_batch": 32, "precision": "fp16",
          "save_every_updates": 1}  # fmt: skip


def command(run, *arguments, **values):
    options = (part for name, value in (VALUES | values).items() for part in ("--set", f"{name}={value}"))
    return [sys.executable, "-m", "shoestring", "train", "temporal", "--run", str(run), *options, *arguments]


def end_when_it_trains(arguments, run, number, updates):
    """Start a command, send it a signal when `updates` were made, and return its status and its stderr."""
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + 300
    while process.poll() is None and _updates(run) < updates:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=120)
    return process.returncode, stderr


def _updates(run):
    file = run / "events.jsonl"
    events = read(file) if file.exists() else ()
    return max((event["update"] for event in events if event["event"] in ("progress", "save")), default=0)


@pytest.mark.slow
def test_interrupted_and_killed_commands_end_in_the_bits_of_one_process(tmp_path):
    run = tmp_path / "run"
    status, stderr = end_when_it_trains(command(run), run, signal.SIGINT, 3)
    assert status == 0, stderr
    state = json.loads((run / "state.json").read_text())
    assert (state["status"], state["reason"]) == ("paused", "SIGINT")
    end_when_it_trains(command(run), run, signal.SIGKILL, state["update"] + 3)
    limited = subprocess.run(command(run, "--limit", "1s"), check=False, capture_output=True, text=True)
    assert limited.returncode == 0 and json.loads((run / "state.json").read_text())["status"] == "paused", (
        limited.stderr
    )
    finished = subprocess.run(command(run), check=False, capture_output=True, text=True)
    assert finished.returncode == 0 and "finished" in finished.stdout + finished.stderr
    shoestring.train("temporal", run=tmp_path / "whole", **VALUES)
    whole = final_checkpoint(tmp_path / "whole")
    assert all(final_checkpoint(run)[part] == whole[part] for part in ("model", "optimizer", "metrics"))


TWO_GPUS = """
import json, torch
from shoestring import api
from shoestring.runs.check.build import _test_link
from shoestring.runs.check.rates import grid
grid.GPU = grid.SMALLEST
findings = {finding.name: finding for finding in api.check(on="kaggle-t4x2", run="run").findings}
measured = api.measure("rates.json")
torch.cuda.empty_cache()
torch.cuda.set_per_process_memory_fraction(0.002, 1)
print(json.dumps({
    "link": [findings["GPU link"].status, findings["GPU link"].message],
    "used": findings["GPUs used"].message,
    "gpus": measured.device.gpus,
    "copies": sorted({copy.kind for copy in measured.copies}),
    "link to a full GPU": _test_link(torch, 2)["error"],
}))
"""


def test_two_gpus_exchange_gradients_in_checks_and_measurements(run_simulated):
    answer = json.loads(run_simulated(TWO_GPUS, on="kaggle-t4x2").lines[-1])
    assert answer["link"][0] in ("pass", "warn") and "2 GPUs exchange" in answer["link"][1]
    assert answer["used"].startswith("2 visible") and answer["gpus"] == 2
    assert "all-reduce" in answer["copies"]
    assert "CUDA out of memory" in answer["link to a full GPU"] and "GPU 1" in answer["link to a full GPU"]


BF16 = """
import json, sys, torch
from pathlib import Path
from tests.lab.commands.test_recipes import trained
losses = {name: trained("finetune", Path(name), *where) for name, where in
          {"cpu": ("fp32", "cpu"), "gpu": ("bf16", "cuda")}.items()}
print(json.dumps(losses))
"""


@pytest.mark.slow
def test_bf16_on_a_gpu_that_has_it(run_simulated):
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH"))))
    losses = json.loads(run_simulated(BF16, on="l4", PYTHONPATH=path).lines[-1])
    assert losses["gpu"] == pytest.approx(losses["cpu"], rel=2e-2)
    assert losses["gpu"] != pytest.approx(losses["cpu"], rel=1e-6)
