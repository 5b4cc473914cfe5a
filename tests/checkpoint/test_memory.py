"""What saving and loading take of host memory, measured as the system counts it in a process of its own."""

import json
import subprocess
import sys

MEASURE = """
import json, sys
from pathlib import Path
import torch
from torch import nn
from shoestring.checkpoint.snapshot import HostCopy
from shoestring.checkpoint.store import Store
from shoestring.engine.precision import arithmetic
from shoestring.engine.state import TrainingState

def peak():
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))

def build():
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(16)))  # 64 MiB
    return TrainingState(model=model, optimizer=torch.optim.AdamW(model.parameters()),
        arithmetic=arithmetic("fp32", torch.device("cpu")), learning_rates=[1e-3])

torch.set_num_threads(1)
what, store = sys.argv[1], Store(Path(sys.argv[2]))
state = build()
warm = nn.Linear(2, 2)  # what autograd and the optimizer need for themselves
optimizer = torch.optim.AdamW(warm.parameters())
warm(torch.zeros(1, 2)).sum().backward()
optimizer.step()
before = peak()
if what == "train":
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

WEIGHTS = 64 << 20


def measured(what, folder):
    ended = subprocess.run([sys.executable, "-c", MEASURE, what, str(folder)], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_saving_takes_one_copy_of_the_state_and_loading_no_more_than_training(tmp_path):
    found = measured("train", tmp_path)
    state = 3 * WEIGHTS
    assert found["saved"] - found["trained"] <= 1.1 * state
    assert found["trained"] >= 2.5 * WEIGHTS  # gradients and two moments: the measurement sees them
    found |= measured("load", tmp_path)
    # Two moments, and the pages of the file that they are copied from, which the system may take back.
    assert found["loaded"] <= 4.2 * WEIGHTS
    assert found["loaded"] <= found["saved"]
