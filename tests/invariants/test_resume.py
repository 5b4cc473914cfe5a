"""A run that was stopped at any point in any way ends in the bits of one that was not."""

import json
import os
import subprocess
import sys

import pytest

from tests.sessions import final_bits, session
from tests.slow import slow_except

ARCHITECTURES = ("lstm", "transformer", "mlp")
# An epoch has 11 updates: two stops in the first one, then one in the last update of the second, which the next session
# evaluates. Counted in microbatches of the respective session.
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
        **({"ema": 0.9} if architecture == "lstm" else {}),
    }


@pytest.fixture(scope="module", params=slow_except(ARCHITECTURES, "lstm"))
def straight(request, tmp_path_factory):
    """Return the architecture and the bits of a run that was never stopped."""
    run = tmp_path_factory.mktemp(request.param)
    outcome = session("temporal", run, values(request.param))
    assert (outcome.status, outcome.update) == ("finished", outcome.total_updates)
    return request.param, final_bits(run)


@pytest.mark.parametrize("stop", ["limit", "SIGTERM"])
def test_run_paused_three_times(straight, stop, tmp_path):
    architecture, bits = straight
    updates = []
    for loss_count in STOPS:
        outcome = session("temporal", tmp_path, values(architecture), stop=stop, at=loss_count)
        assert outcome.status == "paused"
        assert json.loads((tmp_path / "state.json").read_text())["status"] == "paused"
        updates.append(outcome.update)
    assert updates == [3, 7, 22]
    assert session("temporal", tmp_path, values(architecture)).status == "finished"
    assert final_bits(tmp_path) == bits


@pytest.mark.parametrize("straight", ARCHITECTURES if SOAK else ARCHITECTURES[:1], indirect=True)
def test_run_killed_three_times(straight, tmp_path):
    """In separate processes; by default for one architecture, since recovery does not depend on it."""
    architecture, bits = straight
    for loss_count in STOPS:
        arguments = {
            "recipe": "temporal", "run": str(tmp_path), "values": values(architecture), "stop": "SIGKILL",
            "at": loss_count,
        }  # fmt: skip
        process = subprocess.run([sys.executable, "-m", "tests.sessions", json.dumps(arguments)], capture_output=True)
        assert process.returncode == -9, process.stderr.decode()
        assert json.loads((tmp_path / "state.json").read_text())["status"] == "running"
    assert session("temporal", tmp_path, values(architecture)).status == "finished"
    assert final_bits(tmp_path) == bits


def test_bits_depend_on_the_seed(straight, tmp_path):
    """Shows that the comparison can fail."""
    architecture, bits = straight
    session("temporal", tmp_path, values(architecture) | {"seed": 43})
    other = final_bits(tmp_path)
    assert other["model"] != bits["model"]
    assert other["optimizer"] != bits["optimizer"]
