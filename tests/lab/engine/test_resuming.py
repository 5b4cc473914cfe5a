"""A run on a GPU that is killed continues in the same bits; on another device it continues only with permission."""

import json
import os
from pathlib import Path

import pytest

from shoestring.base.errors import UsageError
from tests.lab.engine.networks import Classifier
from tests.lab.engine.trained import CPU, CUDA, largest_difference, train
from tests.sessions import final_bits, session

ROOT = Path(__file__).parents[3]
VALUES = {"size": "tiny", "effective_batch": 64, "micro_batch": 32, "save_every_updates": 2, "precision": "fp16"}
CASES = [
    ({"architecture": "mlp", "epochs": 1}, 9),
    pytest.param({"architecture": "lstm", "epochs": 2, "ema": 0.9}, 13, marks=pytest.mark.slow),
    pytest.param({"architecture": "lstm", "epochs": 2, "compile": "graphs"}, 5, marks=pytest.mark.slow),
]
"""Values, and the loss in which the run is killed. Losses of graphs are computed in their captures alone."""


@pytest.mark.parametrize(("values", "at"), CASES, ids=str)
def test_a_killed_run_continues_in_the_same_bits(run_simulated, tmp_path, values, at):
    """A recipe whose data is on the GPU, with dropout and a loss scale."""
    values = {**VALUES, **values}
    session("temporal", tmp_path / "straight", values, device=CUDA)
    arguments = {"recipe": "temporal", "run": str(tmp_path / "killed"), "values": values, "device": "cuda"}
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    killed = ["-m", "tests.sessions", json.dumps({**arguments, "stop": "SIGKILL", "at": at})]
    run_simulated(killed, status=-9, PYTHONPATH=path)
    assert json.loads((tmp_path / "killed" / "state.json").read_text())["status"] == "running"
    session("temporal", tmp_path / "killed", values, device=CUDA)
    assert final_bits(tmp_path / "killed") == final_bits(tmp_path / "straight")


@pytest.mark.slow
def test_expandable_segments_change_no_bit(run_simulated, tmp_path):
    """`allocator=expandable` sets this variable for the processes of a run."""
    values = {**VALUES, "architecture": "mlp", "epochs": 1}
    session("temporal", tmp_path / "segments", values, device=CUDA)
    arguments = {"recipe": "temporal", "run": str(tmp_path / "expandable"), "values": values, "device": "cuda"}
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    run_simulated(
        ["-m", "tests.sessions", json.dumps({**arguments, "stop": "", "at": 0})],
        PYTHONPATH=path,
        PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True",
    )
    assert final_bits(tmp_path / "expandable") == final_bits(tmp_path / "segments")


@pytest.mark.parametrize("first", [CPU, CUDA], ids=str)
def test_a_run_continues_on_another_device_only_if_it_may_be_inexact(tmp_path, first):
    other = CPU if first == CUDA else CUDA
    recipe, values = Classifier(network="attending"), {"optimizer_kernel": "foreach"}
    straight = train(tmp_path / "straight", recipe, values, device=first)
    train(tmp_path / "run", recipe, values, device=first, stop="limit", at=7, status="paused")
    with pytest.raises(UsageError, match="not continue bit for bit") as raised:
        train(tmp_path / "run", recipe, values, device=other)
    names = {"cpu": "cpu", "cuda": "cuda: Tesla T4"}
    assert f"device: saved with {names[first.type]}, now {names[other.type]}" in raised.value.problems
    moved = train(tmp_path / "run", recipe, values, device=other, allow_inexact=True)
    assert 0 < largest_difference(moved, straight) < 5e-6
    assert [event["device"] for event in moved.of_kind("session")][-1] == names[other.type]
