"""A whole run whose disk fills up on the way, and has room again."""

import errno
import json

import pytest
import torch

from shoestring.monitor.events import read
from tests.by_trainer import KINDS
from tests.checkpoint.faults import Disk
from tests.crash.schedule import Small
from tests.sessions import light_bits, session


def last_bits(run):
    """Without the best weights, which may be those of an epoch that nothing could be written of."""
    newest = max((run / "checkpoints").glob("update-*"))
    return {path.name: path.read_bytes() for path in newest.glob("*.safetensors")}, light_bits(run / "light")


@pytest.mark.parametrize("kind", KINDS)
def test_training_goes_on_through_a_full_disk_says_so_and_ends_in_the_same_bits(tmp_path, capsys, kind):
    torch.set_num_threads(1)
    session(Small(lambda: None), tmp_path / "straight", {"save_every_updates": 1}, kind=kind)
    begun = 0

    def started():
        nonlocal begun
        begun += 1

    def full(number, name, path):
        if name == "write" and 3 <= begun <= 8:
            raise OSError(errno.ENOSPC, "No space left on device", path)

    run = tmp_path / "run"
    with Disk(run, full).watching():
        outcome = session(Small(started), run, {"save_every_updates": 1}, kind=kind)
    assert (outcome.status, outcome.update) == ("finished", 12)
    assert last_bits(run) == last_bits(tmp_path / "straight")
    assert json.loads((run / "state.json").read_text())["status"] == "finished"
    events = list(read(run / "events.jsonl"))
    assert sum(event.get("lost", 0) for event in events) > 0
    assert [event for event in events if event["event"] == "save" and event["update"] == 12]
    # Neither could the best weights of the epochs that ended meanwhile.
    assert f"not saved: weights could not be written to {run / 'best'}" in capsys.readouterr().err
