"""Runs of which every disk operation fails in turn, once or from then on, and which continue on a working disk."""

import errno
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from torch import nn
from torch.utils.data import Subset

import shoestring
from shoestring.base.errors import ShoestringError
from shoestring.runs.train import starting
from shoestring.training.monitor.events import read
from tests.mine import Mine
from tests.sessions import final_bits
from tests.slow import slow_except
from tests.training.checkpoint.faults import Disk, failing, failing_from

ERRORS = (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO)
EVERY = 1 if os.environ.get("SHOESTRING_SOAK") else int(os.environ.get("EVERY", "53"))
"""Which of the operations fail; a prime number, so that over time all kinds of them do."""


class Small(Mine):
    epochs = 2
    effective_batch = 8
    learning_rate = 0.01

    def loss(self, model, batch):
        return nn.functional.mse_loss(model(batch), batch.sum(dim=1, keepdim=True))

    def data(self):
        inputs = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
        return {part: Subset(inputs, range(16)) for part in ("train", "validation", "test")}


def train(run):
    return shoestring.train(Small(), run=run, save_every_updates=1)


def status(run):
    """Return the status in state.json, which is valid JSON if it exists."""
    file = run / "state.json"
    return json.loads(file.read_text())["status"] if file.exists() else ""


@pytest.fixture
def folder():
    """A folder in memory, where syncing takes no time."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


@pytest.fixture
def planned(folder, monkeypatch):
    """Return the final bits of a run and its disk operations; later runs use its plan."""
    torch.set_num_threads(1)
    make_plan, plans = starting.make_plan, []

    def plan_once(*arguments, **_):
        if not plans:
            plans.append(make_plan(*arguments))
        return plans[0]

    monkeypatch.setattr(starting, "make_plan", plan_once)
    run = folder / "straight"
    train(folder / "planned")
    with Disk(run).watching() as disk:
        train(run)
    return final_bits(run), disk.operations


@pytest.mark.parametrize("strike", slow_except({"once": failing, "from then on": failing_from}, "once"))
def test_failing_operation_ends_in_one_error_and_the_same_bits(planned, folder, strike):
    bits, operations = planned
    run = folder / "run"
    for number in range(0, len(operations), EVERY):
        for error in ERRORS:
            place = f"{errno.errorcode[error]} in {operations[number]}, {number}"
            outcome, raised = None, None
            with Disk(run, strike(number, error)).watching():
                try:
                    outcome = train(run)
                except ShoestringError as caught:
                    raised = caught
            if outcome:
                assert (outcome.status, status(run)) == ("finished", "finished"), place
            else:
                assert raised.hint, place
                recorded = status(run) != "running"
                assert recorded or (strike is failing_from and "state.json could not be written" in str(raised)), place
            if status(run) != "finished":
                with suppress(FileNotFoundError):
                    assert train(run).status == "finished", place
            # Best weights that could not be written are reported, and training continues.
            unsaved = {event.get("what") for event in read(run / "events.jsonl") if event["event"] == "unsaved"}
            ignored = {"best", "metrics"} if "best" in unsaved else set()
            final = final_bits(run)
            assert [name for name in bits.keys() - ignored if final[name] != bits[name]] == [], place
            assert strike is failing_from or not list(run.glob(".*")), place  # removing may fail as well
            shutil.rmtree(run)
