"""A run in many short sessions: none ends after its limit, none loses an update that it had finished."""

import json
import os
import random

import pytest

from tests.forked import UPDATES, Server
from tests.sessions import final_bits

SESSIONS, EPOCHS = (200, 200) if os.environ.get("SHOESTRING_SOAK") else (8, 8)
MARGIN = 0.3  # seconds for a fork to leave; a real process keeps 3


@pytest.fixture(scope="module")
def server():
    with Server() as warm:
        yield warm


def test_sessions_of_random_limits(server, tmp_path):
    generator = random.Random(0)
    for _ in range(SESSIONS):
        limit = generator.uniform(0.5, 1.5)
        server.begin(tmp_path / "cut", limit=limit, margin=MARGIN, epochs=EPOCHS)
        status, seconds = server.end()
        assert status == 0, (tmp_path / "cut.log").read_text()[-2000:]
        assert seconds <= limit
    server.begin(tmp_path / "cut", slow=False, epochs=EPOCHS)
    assert server.end()[0] == 0
    lines = json.loads((tmp_path / "cut" / "ledger.json").read_text())["sessions"]
    assert [line["ended"] for line in lines] == ["paused"] * SESSIONS + ["finished"]
    assert [line["start_update"] for line in lines[1:]] == [line["reached_update"] for line in lines[:-1]]
    assert all(line["redone_updates"] == 0 for line in lines)
    assert sum(line["updates"] for line in lines) == EPOCHS * UPDATES
    assert sum(line["updates"] > 0 for line in lines) > SESSIONS * 0.9

    server.begin(tmp_path / "straight", slow=False, epochs=EPOCHS)
    assert server.end()[0] == 0
    assert final_bits(tmp_path / "cut") == final_bits(tmp_path / "straight")
