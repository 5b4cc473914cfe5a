"""Runs killed at scheduled and at random instants, each continued to its end."""

import json
import os
import subprocess
import sys

from tests.crash.schedule import EVERY

KILLED = 300 if os.environ.get("SHOESTRING_SOAK") else 15


def test_whenever_it_is_killed_it_ends_in_the_same_bits_and_loses_little(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-m", "tests.crash.schedule", str(tmp_path), str(KILLED), "5"], capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    report = json.loads(ended.stdout)
    assert report["killed"] >= KILLED
    assert report["damaged"] == []
    assert report["other_bits"] == 0
    assert max(map(int, report["lost"])) <= EVERY
    assert len(report["phases"]) > min(report["kinds"] // 2, KILLED // 4)
