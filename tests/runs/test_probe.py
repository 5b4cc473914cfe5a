"""The probe before a run, and in a plan for this machine."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import shoestring
from shoestring.base.processes import is_running
from shoestring.planning.measurement import Measurement
from shoestring.runs.check.probe import probing
from shoestring.training.checkpoint.store import Store
from tests.slow import slow_except

MINE = """
import os, pathlib, time
import torch
from torch import nn

HERE = pathlib.Path(__file__).parent

class Mine:
    effective_batch = 8
    epochs = 2
    def model(self): return nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.5), nn.Linear(32, 1))
    def batch(self, size): return torch.ones(size, 16)
    def loss(self, model, batch):
        if (HERE / "hang").exists():
            (HERE / "pid").write_text(str(os.getpid()))
            time.sleep(600)
        return model(batch).square().mean()
    def data(self):
        features = torch.randn(40, 16, generator=torch.Generator().manual_seed(1))
        return dict(train=features, validation=features[:10])
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def read_plan(run):
    return json.loads((run / "plan.json").read_text())["plan"]


def newest_weights(run):
    restored = Store(run / "checkpoints").load()
    return restored.update, {name: tensor.clone() for name, tensor in restored.state["model"].items()}


def test_a_run_has_the_same_bits_with_and_without_a_probe(recipe, tmp_path, capsys):
    for name in ("with", "without"):
        outcome = shoestring.train(str(recipe), run=tmp_path / name, on="cpu", probe=name == "with")
        assert outcome.status == "finished"
    messages = capsys.readouterr().err
    assert messages.count("measuring a few updates") == messages.count("measured before training") == 1
    (update, weights), (other_update, other_weights) = newest_weights(tmp_path / "with"), newest_weights(
        tmp_path / "without"
    )  # fmt: skip
    assert update == other_update == 10
    assert all(weights[name].equal(other_weights[name]) for name in weights | other_weights)
    plan = read_plan(tmp_path / "with")
    measured = Measurement.from_json(plan["measured"])
    assert measured.updates == 10 and measured.problem == "" and measured.predicted
    assert 0 < plan["time"]["update_seconds"] <= measured.update_seconds  # of later epochs, if they wait less for data
    assert sum(part["bytes"] for part in plan["memory"]["parts"]) == plan["memory"]["peak_bytes"]
    assert plan["memory"]["low_bytes"] <= measured.peak_bytes <= plan["memory"]["peak_bytes"]
    assert read_plan(tmp_path / "without")["measured"] is None
    events = [json.loads(line)["event"] for line in (tmp_path / "with" / "events.jsonl").read_text().splitlines()]
    assert events.count("session") == 1


def test_a_run_that_continues_is_not_measured(recipe, tmp_path, monkeypatch):
    shoestring.train(str(recipe), run=tmp_path / "run", on="cpu", probe=False, save_every_updates=1)
    (tmp_path / "run" / "state.json").unlink()  # as after a kill
    monkeypatch.setattr(probing, "run_child", lambda *_, **__: pytest.fail("measured"))
    assert shoestring.train(str(recipe), run=tmp_path / "run", on="cpu", probe=True).status == "finished"
    assert read_plan(tmp_path / "run")["measured"] is None


def test_a_plan_that_was_measured_is_not_measured_again(recipe, tmp_path, monkeypatch):
    plan = shoestring.plan(str(recipe), on="cpu", probe=True)
    assert plan.measured and plan.json()["measured"]["updates"] == 10
    assert "10 updates" in " ".join(str(plan).split())
    monkeypatch.setattr(probing, "run_child", lambda *_, **__: pytest.fail("measured"))
    shoestring.train(str(recipe), plan, run=tmp_path / "run", on="cpu", probe=True)
    assert read_plan(tmp_path / "run")["measured"] == plan.json()["measured"]


@pytest.mark.slow
def test_a_probe_without_time_data_or_a_file_is_left_out(recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(probing, "run_child", lambda *_, **__: pytest.fail("measured"))
    shoestring.train(str(recipe), run=tmp_path / "short", on="cpu", probe=True, limit_seconds=30)
    assert "the plan is not measured, because there are only" in capsys.readouterr().err

    class WithoutData:
        def model(self):
            import torch

            return torch.nn.Linear(4, 1)

        def batch(self, size):
            import torch

            return torch.ones(size, 4)

        def loss(self, model, batch):
            return model(batch).square().mean()

    assert shoestring.plan(WithoutData(), on="cpu", probe=True).measured is None
    assert "because the recipe exists only in this process" in capsys.readouterr().err
    shoestring.plan(str(recipe), on="kaggle-t4", probe=True)  # another machine
    assert "measured" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variable", "flags", "expected"),
    [
        pytest.param("0", [], False, marks=pytest.mark.slow),
        ("0", ["--probe"], True),
        ("1", ["--no-probe"], False),
    ],
)
def test_flags_and_the_environment_switch_the_probe(recipe, run_command, monkeypatch, variable, flags, expected):
    monkeypatch.setenv("SHOESTRING_PROBE", variable)
    failed = Measurement(device="a CPU", problem="left out by the test")
    monkeypatch.setattr(probing, "probe", lambda *_, **__: failed)
    status, output, _ = run_command("plan", recipe, "--on", "cpu", "--json", *flags)
    assert (status, json.loads(output)["measured"] is not None) == (0, expected)


def start_training(recipe, run):
    command = [sys.executable, "-m", "shoestring", "train", str(recipe), "--run", str(run), "--on", "cpu", "--probe"]
    environment = {**os.environ, "SHOESTRING_PROBE": "1"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment)
    pid_file, end = recipe.parent / "pid", time.monotonic() + 90
    while not (pid_file.exists() and pid_file.read_text()):
        assert process.poll() is None and time.monotonic() < end, process.stderr.read()
        time.sleep(0.1)
    return process, int(pid_file.read_text())


def wait_for_end(pid):
    end = time.monotonic() + 15
    while is_running(pid):
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.parametrize("number", slow_except([signal.SIGKILL, signal.SIGTERM, signal.SIGINT], signal.SIGTERM))
def test_training_begins_after_a_probe_that_was_interrupted(recipe, tmp_path, number):
    (tmp_path / "hang").touch()
    process, pid = start_training(recipe, tmp_path / "run")
    process.send_signal(number)
    _, messages = process.communicate(timeout=60)
    assert process.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 0), messages
    wait_for_end(pid)
    assert not (tmp_path / "run" / "plan.json").exists()
    if number != signal.SIGKILL:
        state = json.loads((tmp_path / "run" / "state.json").read_text())
        assert (state["status"], state["update"]) == ("paused", 0)
    (tmp_path / "hang").unlink()
    assert shoestring.train(str(recipe), run=tmp_path / "run", on="cpu", probe=False).status == "finished"
