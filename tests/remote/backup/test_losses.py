"""A machine is lost with its disk; another one goes on from the copies, to the same bits."""

import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
from benchmarks.backup import losses

from shoestring.training.monitor import events
from tests.remote.backup.example_runs import RUN_ID, copier, save
from tests.slow import slow_except

RECIPE = """
import time
import torch


class Mine:
    epochs, effective_batch = 2, 4

    def model(self):
        return torch.nn.Linear(8, 1)

    def batch(self, size):
        return torch.zeros(size, 8)

    def loss(self, model, batch):
        time.sleep(0.02)
        return (model(batch) - 1).square().mean()

    def data(self):
        return torch.randn(120, 8, generator=torch.Generator().manual_seed(0))
"""
ARGUMENTS = ["--set", "save_every_updates=4"]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """The folder of a recipe, of a run that was never stopped and could not be copied, of its plan and its messages."""
    folder = tmp_path_factory.mktemp("losses")
    (folder / "mine.py").write_text(RECIPE)
    (folder / "file").write_text("no folder")
    options = ["--backup", str(folder / "file")]
    process = losses.train(folder / "unbroken", *options, recipe=str(folder / "mine.py"), arguments=ARGUMENTS)
    lines = []
    for line in process.stderr:
        lines.append(line.decode())
        if "is waited for" in lines[-1]:
            process.send_signal(signal.SIGINT)  # the last copy is given up
            break
    (folder / "messages").write_text("".join(lines) + losses.finish(process))
    (folder / "plan").mkdir()
    shutil.copy(folder / "unbroken" / "plan.json", folder / "plan")
    return folder


@pytest.mark.parametrize("place", slow_except(["folder", "s3"], "folder"))
def test_lost_machine(unbroken, tmp_path, monkeypatch, place):
    for name in ("AWS_ENDPOINT_URL", "AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "")
    how = {"recipe": str(unbroken / "mine.py"), "arguments": ARGUMENTS}
    run = tmp_path / "run"
    if place == "folder":
        rows = losses.chain(str(tmp_path / "copies"), unbroken / "plan", run, random.Random(1), 1, **how)
    else:
        with losses.object_store():
            rows = losses.chain("s3://runs/one", unbroken / "plan", run, random.Random(1), 1, **how)
    assert len(rows) == 1
    assert losses.bits(run) == losses.bits(unbroken / "unbroken")
    kinds = [event["event"] for event in events.read(run / "events.jsonl")]
    assert "backup" in kinds and "backup_failed" not in kinds


def test_a_place_that_fails_does_not_end_training(unbroken):
    failures = [
        event for event in events.read(unbroken / "unbroken" / "events.jsonl") if event["event"] == "backup_failed"
    ]
    assert failures and "Not a directory" in failures[0]["why"]
    messages = (unbroken / "messages").read_text()
    assert "it is tried again" in messages and "the last copy to" in messages and "was given up" in messages


def test_a_killed_session_leaves_no_process(unbroken, tmp_path):
    """The process of the backup ends with the one that started it."""
    run = tmp_path / "run"
    shutil.copytree(unbroken / "plan", run)
    command = [sys.executable, "-P", "-m", "shoestring.remote.backup", "copy", str(run), str(tmp_path / "c"), "1" * 32]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdin
        assert b"ready" in process.stdout.readline()
        started = time.monotonic()
        process.stdin.close()
        assert process.wait(5) == 1
        assert time.monotonic() - started < 2


def test_a_machine_that_another_one_has_replaced_stops_copying(tmp_path):
    run, copies = save(tmp_path / "run", 1), tmp_path / "copies"
    command = [sys.executable, "-P", "-m", "shoestring.remote.backup", "copy", str(run.path), str(copies), RUN_ID]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert b"ready" in process.stdout.readline() and b'"copied": 1' in process.stdout.readline()
        for update in (2, 3, 4):
            copier(save(tmp_path / "other", update), copies).copy()
            save(run.path, update)
            time.sleep(0.8)
        process.stdin.write(b"end 5\n")
        process.stdin.close()
        assert process.wait(5) == 0
        messages = process.stderr.read().decode()
    assert messages.count("another machine copies this run") == 2  # when it is noticed, and at the end
    assert "copies nothing more" in messages and "hint: stop one of the two" in messages
    failures = [event for event in events.read(run.events_file) if event["event"] == "backup_failed"]
    copies_made = [event["update"] for event in events.read(run.events_file) if event["event"] == "backup"]
    assert len(failures) == 2 and copies_made == [1]
