"""A run that was stopped, however and wherever, ends in the bits of one that was not."""

import json
import os
import subprocess
import sys

import pytest

from tests.sessions import final_bits, session

ARCHITECTURES = ("lstm", "transformer", "mlp")
# 11 updates an epoch: twice within the first, then in the last update of the second, whose epoch is evaluated in the
# session that follows. Counted in microbatches of the session at hand.
STOPS = (3, 4, 15)
SOAK = bool(os.environ.get("SHOESTRING_SOAK"))
SIZE = "full" if SOAK else "tiny"


def values(architecture):
    return {
        "architecture": architecture,
        "size": SIZE,
        "epochs": 3,
        "effective_batch": 64,
        "micro_batch": 64,
        "save_every_updates": 2,
    }


@pytest.fixture(scope="module", params=ARCHITECTURES)
def straight(request, tmp_path_factory):
    """The architecture, and the bits of a run that was never stopped."""
    run = tmp_path_factory.mktemp(request.param)
    outcome = session("temporal", run, values(request.param))
    assert (outcome.status, outcome.update) == ("finished", outcome.total_updates)
    return request.param, final_bits(run)


@pytest.mark.parametrize("stop", ["limit", "SIGTERM"])
def test_paused_three_times(straight, stop, tmp_path):
    architecture, bits = straight
    reached = []
    for at in STOPS:
        outcome = session("temporal", tmp_path, values(architecture), stop=stop, at=at)
        assert outcome.status == "paused"
        assert json.loads((tmp_path / "state.json").read_text())["status"] == "paused"
        reached.append(outcome.update)
    assert reached == [3, 7, 22]
    assert session("temporal", tmp_path, values(architecture)).status == "finished"
    assert final_bits(tmp_path) == bits


@pytest.mark.parametrize("straight", ARCHITECTURES if SOAK else ARCHITECTURES[:1], indirect=True)
def test_killed_three_times(straight, tmp_path):
    """In processes of their own; in short of one architecture, as what is lost and found again is the engine's."""
    architecture, bits = straight
    for at in STOPS:
        question = {
            "recipe": "temporal", "run": str(tmp_path), "values": values(architecture), "stop": "SIGKILL", "at": at
        }  # fmt: skip
        ended = subprocess.run([sys.executable, "-m", "tests.sessions", json.dumps(question)], capture_output=True)
        assert ended.returncode == -9, ended.stderr.decode()
        assert json.loads((tmp_path / "state.json").read_text())["status"] == "running"
    assert session("temporal", tmp_path, values(architecture)).status == "finished"
    assert final_bits(tmp_path) == bits


def test_the_bits_do_depend_on_the_seed(straight, tmp_path):
    """The comparison can fail."""
    architecture, bits = straight
    session("temporal", tmp_path, values(architecture) | {"seed": 43})
    other = final_bits(tmp_path)
    assert other["model"] != bits["model"]
    assert other["optimizer"] != bits["optimizer"]
