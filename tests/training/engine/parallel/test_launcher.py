"""The processes that a launcher of another program has started."""

import os

import pytest

from shoestring.base.errors import UsageError
from shoestring.training.engine.parallel import launcher
from shoestring.training.engine.parallel.launcher import Launcher

TORCHRUN = {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1", "MASTER_ADDR": "host", "MASTER_PORT": "29500"}


def test_one_process_has_no_launcher():
    assert [Launcher.find({"WORLD_SIZE": size}) for size in ("", "1", "many")] == [None] * 3
    assert Launcher.find({}) is None


def test_launcher_has_the_place_of_this_process():
    launcher = Launcher.find(TORCHRUN)
    assert launcher == Launcher(rank=3, size=4)
    launcher.require_complete()


def test_incomplete_environment_is_an_error_before_training():
    launcher = Launcher.find({"WORLD_SIZE": "2", "LOCAL_RANK": "7", "MASTER_ADDR": "host"})
    with pytest.raises(UsageError, match="cannot find the others") as raised:
        launcher.require_complete()
    assert raised.value.problems == (
        "RANK=: expected a number less than WORLD_SIZE=2",
        "LOCAL_RANK=7: expected a number less than WORLD_SIZE=2",
        "MASTER_PORT is not set",
    )


def test_number_of_processes_is_the_launchers():
    launcher = Launcher(rank=0, size=2)
    assert launcher.with_gpus({"epochs": 1}) == {"epochs": 1, "gpus": 2}
    assert launcher.with_gpus({"gpus": "2"}) == {"gpus": 2}
    with pytest.raises(UsageError, match=r"gpus=4, but the launcher has started 2 processes"):
        launcher.with_gpus({"gpus": 4})


@pytest.mark.parametrize("has_agent", [True, False])
def test_process_ends_with_the_agent_that_has_started_it(monkeypatch, has_agent):
    parents = []
    monkeypatch.setattr(launcher, "exit_with_parent", parents.append)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    if has_agent:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    launcher.end_with_agent()
    assert parents == [os.getppid()] * has_agent
