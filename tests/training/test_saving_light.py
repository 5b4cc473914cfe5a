"""The weights of epochs: only the newest are retained, and a full disk removes them before a full checkpoint."""

import errno

import pytest
import torch

from shoestring.training.checkpoint.light import load_light
from shoestring.training.monitor.events import read
from tests.by_trainer import KINDS
from tests.crash.schedule import Small
from tests.sessions import final_bits, session
from tests.training.checkpoint.faults import Disk


def epochs(run):
    return sorted(path.name for path in (run / "light").glob("update-*"))


@pytest.mark.parametrize("kind", KINDS)
def test_newest_epochs_are_retained(tmp_path, kind):
    torch.set_num_threads(1)
    session(Small(lambda: None), tmp_path / "none", {}, kind=kind)
    assert epochs(tmp_path / "none") == []
    session(Small(lambda: None), tmp_path / "run", {"keep_light": 2}, kind=kind)
    assert epochs(tmp_path / "run") == ["update-00000009", "update-00000012"]
    assert final_bits(tmp_path / "run")["light"] == final_bits(tmp_path / "none")["light"]
    model = Small(lambda: None).model()
    facts = load_light(tmp_path / "run" / "light" / "update-00000009", model)
    assert facts["update"] == 9 and "loss" in facts["metrics"]
    saves = [event for event in read(tmp_path / "run" / "events.jsonl") if event["event"] == "save"]
    assert [event["update"] for event in saves if event["kind"] == "epoch"] == [3, 6, 9, 12]


@pytest.mark.parametrize("kind", KINDS)
def test_full_disk_removes_the_oldest_epoch_with_a_note(tmp_path, kind):
    torch.set_num_threads(1)
    run = tmp_path / "run"
    first = run / "light" / "update-00000003" / "model.safetensors"

    def raise_disk_full(number, name, path):
        if name == "write" and "checkpoints" in path and first.is_file():
            raise OSError(errno.ENOSPC, "No space left on device", path)

    with Disk(run, raise_disk_full).watching():
        session(Small(lambda: None), run, {"keep_light": 3, "save_every_updates": 2}, kind=kind)
    assert epochs(run) == ["update-00000006", "update-00000009", "update-00000012"]
    events = list(read(run / "events.jsonl"))
    assert [event for event in events if event["event"] == "unsaved"] == []
    (message,) = [
        event["message"] for event in events if event["event"] == "note" and "disk is full" in event["message"]
    ]
    assert "update-00000003 was removed to make space for update-0000000" in message
