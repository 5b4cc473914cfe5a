"""A sink that fills the disk on which the run is."""

import subprocess
import time

import pytest
import torch

from shoestring.training.monitor.events import read
from shoestring.training.monitor.sinks import processes
from tests.crash.schedule import Small
from tests.crash.small_disk import SmallDisk
from tests.sessions import final_bits, session
from tests.training.monitor.sinks.test_processes import ODD


@pytest.fixture
def disk(tmp_path):
    disk = SmallDisk(tmp_path / "disk")
    if not disk.is_mounted:
        pytest.skip("only root can mount a small filesystem")
    yield disk
    # Lazily, because this process still has files of the run open.
    subprocess.run(["umount", "--lazy", str(disk.path)], check=True)


def test_training_continues_through_a_disk_that_a_sink_has_filled(disk, tmp_path, monkeypatch, capfd):
    torch.set_num_threads(1)
    monkeypatch.setattr(processes, "_COMMAND", ODD)
    run = disk.path / "run"
    updates = 0

    def wait_for_the_sink():
        nonlocal updates
        updates += 1
        deadline = time.monotonic() + 30
        while updates == 6 and "FillingTheDisk is not written any more" not in capfd.readouterr().err:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        # It reports the error before it frees the disk.
        while updates == 6 and (run / "logs" / "FillingTheDisk").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    session(Small(lambda: None), tmp_path / "straight", {"save_every_updates": 1})
    with processes.writing_logs(run / "events.jsonl", run / "logs", ["FillingTheDisk"]):
        outcome = session(Small(wait_for_the_sink), run, {"save_every_updates": 1})
    assert (outcome.status, outcome.update) == ("finished", 12)
    assert final_bits(run) == final_bits(tmp_path / "straight")
    assert not (run / "logs" / "FillingTheDisk").exists()
    assert [event for event in read(run / "events.jsonl") if event["event"] == "save" and event["update"] == 12]
