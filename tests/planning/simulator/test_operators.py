"""Operators that a simulated process records, and their time. These need PyTorch's CUDA build."""

import pytest

from shoestring.hardware.catalog import DEVICES
from shoestring.planning.simulator.recorded import BACKWARD, EVALUATION, FORWARD, TRAINING, read_folder
from shoestring.planning.simulator.time import recorded_time

TRAIN = """
import ctypes, os, signal
import torch
from torch import nn

library = ctypes.CDLL(os.environ["SHOESTRING_SIMULATOR_LIBRARIES"] + "/libshoestring_torch.so")
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).cuda()
optimizer = torch.optim.AdamW(model.parameters())

def train(updates, microbatches, rows=lambda update: 16):
    for update in range(updates):
        for _ in range(microbatches):
            model(torch.zeros(rows(update), 32).cuda()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_updates_are_recorded_with_their_microbatches_and_steps(run_simulated):
    result = run_simulated(TRAIN + "train(5, 3)\nlibrary.simulator_set_phase(5)")
    (record,) = read_folder(result.records)
    # The first update creates the optimizer's states.
    assert [unit.weight for unit in record.units_of(TRAINING)] == [1, 4]
    usual = record.units_of(TRAINING)[-1]
    assert len(usual.segments) == 4
    names = {
        step: [
            record.signatures[call.signature].operator.name
            for call in record.calls_of(usual.segments[1])
            if call.step == step
        ]
        for step in (FORWARD, BACKWARD)
    }
    assert names[FORWARD].count("aten::addmm") == 2
    assert names[BACKWARD].count("aten::mm") == 3
    calls = list(record.calls_of(usual.segments[1]))
    assert not any(call.is_other_thread for call in calls if call.step == FORWARD)
    assert any(call.is_other_thread for call in calls if call.step == BACKWARD)
    assert any(call.views for call in calls)
    time = recorded_time([record], DEVICES["t4"])
    assert time is not None and time.update is not None
    assert (time.microbatches, time.updates, time.different_updates) == (3, 5, 2)
    assert 0 < time.update.low < time.update.value < time.update.high < 1


def test_killed_process_has_its_updates(run_simulated):
    code = TRAIN + "train(4, 1, rows=lambda update: update + 1)\nos.kill(os.getpid(), signal.SIGKILL)"
    result = run_simulated(code, status=-9)
    (record,) = read_folder(result.records)
    assert record.totals[TRAINING].units == 4
    assert len(record.units_of(TRAINING)) == 4


@pytest.mark.parametrize("read", ["item()", "cpu()"])
def test_evaluation_is_divided_where_values_are_read(run_simulated, read):
    code = f"""
library.simulator_set_phase(2)
with torch.no_grad():
    for _ in range(3):
        model(torch.zeros(16, 32).cuda()).sum().{read}
library.simulator_set_phase(5)
"""
    (record,) = read_folder(run_simulated(TRAIN + code).records)
    assert record.totals[EVALUATION].units == 3
    time = recorded_time([record], DEVICES["t4"])
    assert time is not None
    assert time.update is None
    assert time.evaluation.seconds > 0


def test_nothing_is_recorded_unless_asked_for(run_simulated):
    unasked = "import os\nos.environ['SHOESTRING_SIMULATOR_OPERATORS'] = '0'\n"
    result = run_simulated(unasked + TRAIN + "train(2, 1)")
    assert not list(result.records.glob("operators.*"))
