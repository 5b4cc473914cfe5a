"""Host memory of saving and loading, measured as the peak resident size of a separate process."""

import json
import subprocess
import sys

import pytest

MEASURE = """
import json, sys
from pathlib import Path
import torch
from torch import nn
from shoestring.training.checkpoint.snapshot import HostCopy
from shoestring.training.checkpoint.store import Store
from shoestring.training.engine.precision import mixed_precision
from shoestring.training.engine.state import TrainingState

def peak():
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))

def build():
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(16)))  # 64 MiB
    return TrainingState(model=model, optimizer=torch.optim.AdamW(model.parameters()),
        mixed_precision=mixed_precision("fp32", torch.device("cpu")), learning_rates=[1e-3])

torch.set_num_threads(1)
action, store = sys.argv[1], Store(Path(sys.argv[2]))
state = build()
warm = nn.Linear(2, 2)  # one-time allocations of autograd and the optimizer
optimizer = torch.optim.AdamW(warm.parameters())
warm(torch.zeros(1, 2)).sum().backward()
optimizer.step()
before = peak()
if action == "train":
    copy = HostCopy()
    state.model(torch.ones(1, 1024)).sum().backward()
    state.optimizer.step()
    trained = peak()
    store.write(1, copy.take(state.pack()))
    print(json.dumps({"trained": trained - before, "saved": peak() - before}))
else:
    state.restore(store.load().state)
    print(json.dumps({"loaded": peak() - before}))
"""

WEIGHTS_BYTES = 64 << 20


def measure(action, folder):
    process = subprocess.run([sys.executable, "-c", MEASURE, action, str(folder)], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


@pytest.mark.slow
def test_memory_of_saving_and_loading(tmp_path):
    peaks = measure("train", tmp_path)
    state_bytes = 3 * WEIGHTS_BYTES
    assert peaks["saved"] - peaks["trained"] <= 1.1 * state_bytes
    assert (
        peaks["trained"] >= 2.5 * WEIGHTS_BYTES
    )  # gradients and two moments: shows that the measurement includes them
    peaks |= measure("load", tmp_path)
    # Two moments, and the mapped pages of the file that they are copied from, which the system may reclaim.
    assert peaks["loaded"] <= 4.2 * WEIGHTS_BYTES
    assert peaks["loaded"] <= peaks["saved"]
