"""Runs of the real command, killed from outside at random times."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.sessions import final_bits

KILLS = 30 if os.environ.get("SHOESTRING_SOAK") else 2
COMMAND = [sys.executable, "-m", "shoestring", "train", "temporal"]
OPTIONS = {"size": "tiny", "epochs": 4 if KILLS == 2 else 8, "effective_batch": 16, "micro_batch": 8, "patience": 1000}


def train(run: Path, *arguments: str, **options: int) -> subprocess.Popen:
    options = {**OPTIONS, "save_every_seconds": 0.05, **options}
    settings = [part for key, value in options.items() for part in ("--set", f"{key}={value}")]
    return subprocess.Popen(
        [*COMMAND, "--run", str(run), *settings, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The bits and the seconds of an uninterrupted run."""
    run = tmp_path_factory.mktemp("uninterrupted")
    start = time.monotonic()
    assert train(run).wait(120) == 0
    return final_bits(run), time.monotonic() - start


def wait_until_training(run: Path, process: subprocess.Popen, sessions: int) -> None:
    events = run / "events.jsonl"
    while process.poll() is None:
        if events.exists() and events.read_text().count('"event": "session"') > sessions:
            return
        time.sleep(0.01)


def test_killed_and_stopped_run_ends_in_same_bits(uninterrupted, tmp_path):
    bits, _ = uninterrupted
    generator = random.Random(5)
    killed = 0
    for number in range(KILLS):
        process = train(tmp_path)
        wait_until_training(tmp_path, process, number)
        time.sleep(generator.uniform(0, 0.6))
        process.kill()
        killed += process.wait(60) == -signal.SIGKILL
    assert killed >= KILLS // 2
    for number, (stop_signal, times) in enumerate([(signal.SIGTERM, 1), (signal.SIGINT, 2), (signal.SIGHUP, 1)]):
        process = train(tmp_path)
        wait_until_training(tmp_path, process, KILLS + number)
        for _ in range(times):  # a terminal and a launcher may both send a signal
            process.send_signal(stop_signal)
            time.sleep(0.05)
        assert process.wait(60) == 0
        state = json.loads((tmp_path / "state.json").read_text())
        assert (state["status"], state["reason"]) == ("paused", stop_signal.name)
    assert train(tmp_path).wait(120) == 0
    assert final_bits(tmp_path) == bits


def test_run_pauses_before_its_limit(uninterrupted, tmp_path):
    """The time includes starting and exiting Python, as on a platform's clock. The limit is after the first evaluation,
    because a session cannot predict the time of its imports."""
    _, seconds = uninterrupted
    limit = 3 + 1.2 * seconds
    start = time.monotonic()
    process = train(tmp_path, "--limit", f"{limit:g}s", epochs=100_000)
    assert process.wait(limit + 60) == 0
    assert time.monotonic() - start < limit
    state = json.loads((tmp_path / "state.json").read_text())
    assert state["status"] == "paused"
    # The limit may be reached in an update or in an evaluation.
    assert state["reason"].startswith("session limit of ")
    assert state["update"] > 0
