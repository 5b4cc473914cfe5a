"""A run in many short sessions: none ends after its limit, and none loses a completed update."""

import json
import os
import random

import pytest

from tests.forked import UPDATES, Server
from tests.sessions import final_bits

SESSIONS, EPOCHS = (200, 200) if os.environ.get("SHOESTRING_SOAK") else (8, 8)
MARGIN = 0.3  # seconds for a fork to exit; a real process reserves 3


@pytest.fixture(scope="module")
def server():
    with Server() as warm:
        yield warm


def test_sessions_of_random_limits(server, tmp_path):
    generator = random.Random(0)
    for _ in range(SESSIONS):
        limit = generator.uniform(0.5, 1.5)
        server.begin(tmp_path / "short", limit=limit, margin=MARGIN, epochs=EPOCHS)
        status, seconds = server.end()
        assert status == 0, (tmp_path / "short.log").read_text()[-2000:]
        assert seconds <= limit
    server.begin(tmp_path / "short", slow=False, epochs=EPOCHS)
    assert server.end()[0] == 0
    ledger_sessions = json.loads((tmp_path / "short" / "ledger.json").read_text())["sessions"]
    assert [entry["ended"] for entry in ledger_sessions] == ["paused"] * SESSIONS + ["finished"]
    assert [entry["start_update"] for entry in ledger_sessions[1:]] == [
        entry["reached_update"] for entry in ledger_sessions[:-1]
    ]
    assert all(entry["redone_updates"] == 0 for entry in ledger_sessions)
    assert sum(entry["updates"] for entry in ledger_sessions) == EPOCHS * UPDATES
    assert sum(entry["updates"] > 0 for entry in ledger_sessions) > SESSIONS * 0.9

    server.begin(tmp_path / "straight", slow=False, epochs=EPOCHS)
    assert server.end()[0] == 0
    assert final_bits(tmp_path / "short") == final_bits(tmp_path / "straight")
