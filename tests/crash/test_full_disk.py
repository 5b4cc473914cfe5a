"""A complete run whose disk is full for some updates."""

import errno
import json

import pytest
import torch

from shoestring.training.monitor.events import read
from tests.by_trainer import KINDS
from tests.crash.schedule import Small
from tests.sessions import light_bits, session
from tests.training.checkpoint.faults import Disk


def last_bits(run):
    """Return the bits of the last checkpoint and light weights, without `best`, whose save may have failed."""
    newest = max((run / "checkpoints").glob("update-*"))
    return {path.name: path.read_bytes() for path in newest.glob("*.safetensors")}, light_bits(run / "light")


@pytest.mark.parametrize("kind", KINDS)
def test_training_continues_through_a_full_disk_with_same_bits(tmp_path, capsys, kind):
    torch.set_num_threads(1)
    session(Small(lambda: None), tmp_path / "straight", {"save_every_updates": 1}, kind=kind)
    started_updates = 0

    def count_update():
        nonlocal started_updates
        started_updates += 1

    def fail_write(number, name, path):
        if name == "write" and 3 <= started_updates <= 8:
            raise OSError(errno.ENOSPC, "No space left on device", path)

    run = tmp_path / "run"
    with Disk(run, fail_write).watching():
        outcome = session(Small(count_update), run, {"save_every_updates": 1}, kind=kind)
    assert (outcome.status, outcome.update) == ("finished", 12)
    assert last_bits(run) == last_bits(tmp_path / "straight")
    assert json.loads((run / "state.json").read_text())["status"] == "finished"
    events = list(read(run / "events.jsonl"))
    assert sum(event.get("lost", 0) for event in events) > 0
    assert [event for event in events if event["event"] == "save" and event["update"] == 12]
    # The best weights of the epochs that ended meanwhile could not be saved either.
    assert f"not saved: weights could not be written to {run / 'best'}" in capsys.readouterr().err
