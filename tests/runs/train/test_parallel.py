"""Sessions in several processes: what is recorded about ranks that are lost, and a run in two of them."""

import json
import sys
from types import SimpleNamespace

import pytest

import shoestring
from shoestring.base.errors import RunError, UsageError
from shoestring.base.settings import Settings
from shoestring.runs.train import agent, parallel
from shoestring.runs.train.parallel import on_available_gpus, process_count, train_in_ranks
from shoestring.runs.train.session import LaunchRequest
from shoestring.training.checkpoint.store import Store
from shoestring.training.monitor.events import Events, read
from shoestring.training.run_directory.directory import RunDirectory
from shoestring.training.session.deadline import Deadline
from shoestring.training.session.signals import StopSignals
from shoestring.training.session.stop import Stop
from tests.runs.train.test_agent import HANG, RANK

MINE = """
import os
import torch

class Mine:
    epochs, effective_batch = 2, 8

    def model(self):
        return torch.nn.Linear(4, 1)

    def batch(self, size):
        return torch.zeros(size, 4)

    def loss(self, model, batch):
        return model(batch).square().mean()

    def data(self):
        print("rank", os.environ.get("RANK"))
        return torch.randn(32, 4)
"""


def test_number_of_processes_is_that_of_the_plan_as_far_as_there_are_gpus():
    counts = [
        process_count(Settings(gpus=gpus), values, SimpleNamespace(processes=here))
        for gpus, values, here in [(None, {}, 2), (2, {}, 2), (4, {}, 3), (2, {}, 1), (4, {"gpus": "4"}, 1)]
    ]
    assert counts == [1, 2, 2, 1, 4]


@pytest.fixture
def train_fakes(tmp_path, monkeypatch):
    """Return a function that trains in two fake ranks, with the run at update 4."""
    directory = RunDirectory(tmp_path / "run")
    directory.create()
    directory.checkpoints.mkdir()
    Store(directory.checkpoints).save(4, {"model": {}})
    directory.plan_file.write_text("{}")
    directory.state_file.write_text('{"status": "running", "update": 4, "total_updates": 9}')
    with Events(directory.events_file) as events:
        events.emit("session", update=0)
    monkeypatch.setattr(agent, "_SETTLE_SECONDS", 0.3)

    def train(program, limit_seconds=None):
        code = RANK.replace('channel.job["folder"]', 'channel.job["run"]').format(program=program)
        monkeypatch.setattr(parallel, "_COMMAND", (sys.executable, "-c", code))
        request = LaunchRequest(run=directory.path, limit_seconds=limit_seconds)
        with StopSignals() as signals:
            deadline = Deadline(limit_seconds, started=request.started, margin_seconds=0)
            stop = Stop(deadline=deadline, signals=signals)
            outcome = train_in_ranks("mine.py", {}, 2, directory, request, stop, "shoestring train mine.py")
        return outcome, json.loads(directory.state_file.read_text()), list(read(directory.events_file))

    return train


STATE = (
    'if rank == 0:\n    (folder / "state.json").write_text(\'{{"status": "{status}", "update": 9, "reason": "r"}}\')\n'
)


def test_restart_is_recorded_with_its_reason(train_fakes, capsys):
    die = f"if not start:\n    os.kill(os.getpid(), signal.SIGSEGV) if rank else {HANG}\n"
    outcome, _, events = train_fakes(die + STATE.format(status="finished"))
    assert (outcome.status, outcome.update) == ("finished", 9)
    (restart,) = [event for event in events if event["event"] == "restart"]
    assert (restart["session"], restart["update"], restart["number"]) == (1, 4, 1)
    assert restart["reason"] == "process 1 of 2 was ended by SIGSEGV"
    message = "process 1 of 2 was ended by SIGSEGV: all 2 processes start again from update 4; restart 1 of at most 3"
    assert message in capsys.readouterr().err


def test_ranks_that_are_lost_again_and_again_are_an_error(train_fakes):
    with pytest.raises(RunError, match="ended by SIGSEGV, after 3 restarts in this session") as raised:
        train_fakes("os.kill(os.getpid(), signal.SIGSEGV) if rank else time.sleep(600)")
    assert raised.value.hint == "train again to continue from update 4: shoestring train mine.py"


def test_rank_that_leaves_python_without_an_error_is_an_error(train_fakes):
    for rank in (0, 1):
        with pytest.raises(RunError) as raised:
            train_fakes(f"os._exit(0 if rank == {rank} else 75)")
        assert raised.value.message.startswith(f"process {rank} of 2 left Python without an error (status 0) before")
        assert "os._exit" in raised.value.hint


def test_ranks_that_are_lost_at_the_end_of_the_session_pause_it(train_fakes):
    outcome, state, events = train_fakes("time.sleep(0.3); os.kill(os.getpid(), signal.SIGKILL)", limit_seconds=0.1)
    assert (outcome.status, outcome.update) == ("paused", 4)
    assert state["reason"].startswith("session limit of 100 ms; process ")
    assert [event["event"] for event in events] == ["session", "stop"]


def test_error_that_rank_0_does_not_record_is_the_runs(train_fakes, tmp_path):
    report = 'from shoestring.base.errors import UsageError; channel.report(UsageError("no data")); sys.exit(2)'
    with pytest.raises(UsageError, match="no data"):
        train_fakes(f"if rank:\n    {report}\n{HANG}")
    state = json.loads((tmp_path / "run" / "state.json").read_text())
    assert (state["status"], state["reason"], state["update"]) == ("failed", "no data", 4)


def test_recipe_of_this_process_cannot_be_trained_in_others(tmp_path):
    with pytest.raises(UsageError, match="an object of this Python process") as raised:
        shoestring.train(object(), run=tmp_path / "run", gpus=2)
    assert "torchrun --nproc-per-node 2" in raised.value.hint
    assert not (tmp_path / "run").exists()


def test_two_processes_end_in_the_bits_of_one(tmp_path, capfd, monkeypatch):
    recipe = tmp_path / "mine.py"
    # The ranks import it from a folder of this process.
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "sizes_of_rank.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    recipe.write_text(f"import sizes_of_rank\n{MINE}")
    weights = []
    for gpus in (2, 1):
        run = tmp_path / f"run-{gpus}"
        outcome = shoestring.train(str(recipe), run=run, on="cpu", gpus=gpus, logical_shards=2)
        assert (outcome.status, outcome.update) == ("finished", 8)
        weights.append((run / "checkpoints" / "update-00000008" / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]
    output, messages = capfd.readouterr()
    assert "rank 0" in output and "rank 1" not in output
    assert "session 1: begins at update 0 of 8, 5 parameters, 2 processes (ddp), no time limit" in messages
    assert "session 1: begins at update 0 of 8, 5 parameters, no time limit" in messages
    with pytest.raises(
        UsageError, match="gpus=4: the run was planned with 2 logical shards, and each process"
    ) as raised:
        shoestring.train(str(recipe), run=tmp_path / "run-1", on="cpu", gpus=4)
    assert raised.value.hint.startswith("continue it with gpus=1 or 2, ")


def test_a_model_divided_by_blocks_is_one_process_and_on_one_gpu_without_a_second():
    settings = Settings(sharding="pipeline", gpus=2, logical_shards=1)
    pair, single = (SimpleNamespace(gpus=count, processes=count) for count in (2, 1))
    assert process_count(settings, {"gpus": 2}, pair) == process_count(settings, {}, pair) == 1
    assert on_available_gpus(settings, pair) == settings
    assert on_available_gpus(settings, single) == settings.replace(gpus=1)
    assert on_available_gpus(Settings(gpus=2), single) == Settings(gpus=2)
    with pytest.raises(UsageError, match="a launcher has started several processes"):
        on_available_gpus(settings, pair, joins=True)
