"""Runs killed at scheduled and at random times, each continued to its end."""

import json
import os
import subprocess
import sys

import pytest

from tests.by_trainer import KINDS
from tests.crash.schedule import UPDATES_BETWEEN_SAVES
from tests.slow import slow_except

KILLS = {"engine": 300, "trainer": 100} if os.environ.get("SHOESTRING_SOAK") else {"engine": 8, "trainer": 6}


@pytest.mark.parametrize("kind", slow_except(KINDS, "engine"))
def test_killed_run_ends_in_same_bits(tmp_path, kind):
    process = subprocess.run(
        [sys.executable, "-m", "tests.crash.schedule", str(tmp_path), str(KILLS[kind]), "5", kind],
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr[-2000:]
    report = json.loads(process.stdout)
    assert report["killed"] >= KILLS[kind]
    assert report["damaged"] == []
    assert report["other_bits"] == 0
    assert max(map(int, report["lost"])) <= UPDATES_BETWEEN_SAVES
    assert len(report["phases"]) > min(report["kinds"] // 2, KILLS[kind] // 4)
