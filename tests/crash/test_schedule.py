"""Runs killed at scheduled and at random instants, each continued to its end."""

import json
import os
import subprocess
import sys

import pytest

from tests.by_trainer import KINDS
from tests.crash.schedule import EVERY

KILLED = {"engine": 300, "trainer": 100} if os.environ.get("SHOESTRING_SOAK") else {"engine": 15, "trainer": 6}


@pytest.mark.parametrize("kind", KINDS)
def test_whenever_it_is_killed_it_ends_in_the_same_bits_and_loses_little(tmp_path, kind):
    ended = subprocess.run(
        [sys.executable, "-m", "tests.crash.schedule", str(tmp_path), str(KILLED[kind]), "5", kind],
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    report = json.loads(ended.stdout)
    assert report["killed"] >= KILLED[kind]
    assert report["damaged"] == []
    assert report["other_bits"] == 0
    assert max(map(int, report["lost"])) <= EVERY
    assert len(report["phases"]) > min(report["kinds"] // 2, KILLED[kind] // 4)
