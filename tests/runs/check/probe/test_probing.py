"""Probes of recipes in a child process: what they measure, and what they survive."""

import re
import signal
import subprocess
import sys
import tempfile
import time
from types import SimpleNamespace

import pytest

from shoestring.base.processes import is_running
from shoestring.base.settings import Settings
from shoestring.hardware.targets import find
from shoestring.recipe.finding import choose
from shoestring.runs.check.probe import probing
from shoestring.runs.check.probe.probing import probe
from tests.runs.check.probe import in_process

MINE = """
import os, sys, time
import torch
from torch import nn

class Mine:
    effective_batch = 8
    epochs = 2
    def model(self): return nn.Sequential(nn.Linear(64, 512), nn.Linear(512, 1))
    def batch(self, size): return torch.ones(size, 64)
    def loss(self, model, batch):
        print('{{"stage": "printed"}}')
        {loss}
        return model(batch).square().mean()
    def data(self):
        {data}
        return dict(train=torch.ones(40, 64), validation=torch.ones(20, 64))
"""


TRAINED = """
import torch
from torch import nn
from tests.by_trainer import ByTrainer

class _Mine:
    effective_batch, epochs, learning_rate = 8, 3, 0.1
    def model(self): return nn.Linear(64, 1)
    def loss(self, model, batch): return (model(batch[0]) - batch[1]).square().mean()
    def data(self):
        pairs = [(torch.ones(64), torch.ones(1)) for _ in range(32)]
        return dict(train=pairs, validation=pairs[:12])

class Trained(ByTrainer):
    def __init__(self): super().__init__(_Mine())
    def model(self): return self._recipe.model()
    def batch(self, size): return torch.ones(size, 64), torch.ones(size, 1)
    def loss(self, model, batch): return self._recipe.loss(model, batch)
"""


@pytest.fixture
def load_recipe(tmp_path):
    """A function that loads a recipe whose loss() and data() start with the given lines."""

    def load(loss="pass", data="pass", more=""):
        path = tmp_path / "mine.py"
        path.write_text(MINE.format(loss=loss, data=data) + more)
        return choose(str(path), {})[0]

    return load


def make_fake_plan(loaded, *, seconds=0.01, total=1.0, **settings):
    """A plan with only the attributes that a probe uses."""
    values = {"micro_batch": 8, "precision": "fp32", "checkpointing": "no", "gpus": 1, **settings}
    return SimpleNamespace(
        settings=Settings(**values),
        target=find("cpu"),
        time=SimpleNamespace(predicted=SimpleNamespace(update_seconds=seconds, total_seconds=total)),
    )


@pytest.fixture
def here(monkeypatch):
    """Probes run in this process, which has imported torch."""

    monkeypatch.setattr(probing, "run_child", in_process.run)


def test_probe_makes_the_first_updates_of_the_run_and_evaluates(load_recipe, tmp_path, monkeypatch):
    loaded, stages = load_recipe(), []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    measured = probe(loaded, make_fake_plan(loaded), on_stage=stages.append)
    names = [stage["stage"] for stage in stages]
    assert names == ["start", "data", "model", *["update"] * 11, "updates", "evaluation", "update", "update", "done"]
    assert [stage["number"] for stage in stages[3:14]] == [*range(10), 0]  # a run of 10 updates begins again
    assert measured.problem == "" and measured.notes == () and measured.updates == 10
    assert 0 < measured.low_update_seconds <= measured.update_seconds <= measured.high_update_seconds
    assert measured.peak_bytes == measured.host_peak_bytes > 2**27
    # Weights, and two moments of Adam with their steps.
    assert 3 * 4 * 33_793 < measured.state_bytes < 3 * 4 * 33_793 + 2**18
    assert measured.evaluated_samples == 12 and measured.evaluation_seconds_per_sample > 0
    assert measured.start_seconds > 0 and measured.seconds < 60
    assert not list(tmp_path.glob("shoestring-probe-*"))


@pytest.mark.parametrize(
    ("lines", "updates", "problem"),
    [
        ({"loss": "raise ValueError('an error')"}, 0, "an update fails: ValueError in .*mine.py, line 13: an error"),
        ({"loss": "raise torch.OutOfMemoryError('CUDA out of memory. Tried')"}, 0, "an update fails: .*memory"),
        ({"loss": "sys.exit(3)"}, 0, "an update fails: the recipe's code ended Python"),
        ({"data": "raise OSError('no such mount')"}, 0, "the start fails: OSError.*no such mount"),
        ({"loss": "if not torch.is_grad_enabled(): raise ValueError('it')"}, 10, "an evaluation fails: ValueError"),
    ],
)
def test_errors_are_problems_of_the_measurement(load_recipe, here, lines, updates, problem):
    loaded = load_recipe(**lines)
    measured = probe(loaded, make_fake_plan(loaded))
    assert measured.updates == updates
    assert re.search(problem, measured.problem), measured.problem


@pytest.mark.parametrize(
    ("loss", "problem"),
    [
        ("os.kill(os.getpid(), 9)", r"the system killed the process.* reported: model"),
        ("os._exit(3)", "exited with status 3"),
    ],
)
def test_the_end_of_the_process_is_a_problem_of_the_measurement(load_recipe, loss, problem):
    loaded = load_recipe(loss=loss)
    assert re.search(problem, probe(loaded, make_fake_plan(loaded)).problem)


@pytest.mark.slow
def test_probe_that_does_not_end_is_killed_with_its_processes(load_recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(probing, "_GRACE_SECONDS", 1.0)
    pid_file = tmp_path / "pid"
    sleep = f"import subprocess; open({str(pid_file)!r}, 'w').write(str(subprocess.Popen(['sleep', '600']).pid))"
    loaded = load_recipe(loss=f"{sleep}; time.sleep(600)")
    started = time.monotonic()
    measured = probe(loaded, make_fake_plan(loaded), seconds=14.0)
    assert time.monotonic() - started < 25
    assert "did not finish within 15.0 s" in measured.problem
    assert measured.start_seconds is not None  # what was measured until then remains
    assert not is_running(int(pid_file.read_text()))


@pytest.mark.slow
def test_probe_ends_with_its_parent(load_recipe, tmp_path):
    loaded = load_recipe(loss=f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)")
    code = (
        "from shoestring.recipe.finding import choose\n"
        "from tests.runs.check.probe.test_probing import make_fake_plan, probe\n"
        f"loaded = choose({loaded.reference!r}, {{}})[0]\n"
        "probe(loaded, make_fake_plan(loaded))\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    pid_file, end = tmp_path / "pid", time.monotonic() + 60
    while not (pid_file.exists() and pid_file.read_text()):
        assert parent.poll() is None and time.monotonic() < end
        time.sleep(0.1)
    pid = int(pid_file.read_text())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    end = time.monotonic() + 10
    while is_running(pid):
        assert time.monotonic() < end
        time.sleep(0.1)


def test_slow_updates_are_measured_with_fewer_samples(load_recipe, here):
    loaded = load_recipe()
    measured = probe(loaded, make_fake_plan(loaded, seconds=15.0, micro_batch=2))
    assert measured.notes == ("the updates had 2 samples, and the times are scaled to 8",)
    assert measured.micro_batch == 2
    assert measured.update_seconds == pytest.approx(4 * 0.001, abs=1.0)


def test_budget_is_half_a_minute_or_a_share_of_the_run(load_recipe):
    loaded = load_recipe()
    assert probing.budget_seconds(make_fake_plan(loaded)) == 30
    assert probing.budget_seconds(make_fake_plan(loaded, total=100_000.0)) == 2000


def test_a_share_of_several_processes_is_measured_in_one(load_recipe, here):
    loaded = load_recipe()
    measured = probe(loaded, make_fake_plan(loaded, gpus=2, logical_shards=2, micro_batch=4))
    assert measured.notes == ("one process made the share of one of 2, without exchanging gradients",)
    assert measured.processes == 1 and measured.update_seconds > 0


def test_a_share_that_the_options_forbid_is_measured_with_more_samples():
    """Two GPUs share a group of four completions; a probe in one process makes all of them."""
    loaded, _ = choose("chart", {"size": "tiny", "effective_batch": 4, "generations": 4})
    assert probing._with_batch(loaded, 2) is loaded
    larger = loaded.replace(effective_batch=16)
    assert [probing._with_batch(larger, samples).effective_batch for samples in (1, 4, 5, 16)] == [4, 4, 8, 16]


def test_stages_of_the_loss_take_turns_although_the_run_has_them_one_after_the_other(load_recipe, here):
    more = "    stages = ('a', 'b')\n    def stage(self, update, *_): return 'b' if update > 6 else 'a'\n"
    loaded = load_recipe(more=more)
    path = loaded.path
    path.write_text(path.read_text().replace("loss(self, model, batch)", "loss(self, model, batch, stage='a')"))
    stages = []
    probe(choose(str(path), {})[0], make_fake_plan(loaded), on_stage=stages.append)
    made = [(stage["number"], stage["loss_stage"]) for stage in stages if stage["stage"] == "update"]
    assert made[:4] == [(0, 0), (7, 1), (1, 0), (8, 1)], stages


def test_the_update_with_the_longest_sample_is_made_for_its_memory(load_recipe, here):
    more = "    def length(self, data, index): return 100 if index == 17 else 10\n"
    loaded, stages = load_recipe(more=more), []
    probe(loaded, make_fake_plan(loaded), on_stage=stages.append)
    made = [stage for stage in stages if stage["stage"] == "update"]
    assert [stage["purpose"] for stage in made] == ["", "", "longest", *[""] * 8, "later", "later"]
    lengths = {stage["number"]: stage["length"] for stage in made}
    assert sorted(set(lengths.values())) == [80.0, 800.0] and made[2]["length"] == 800.0
    (model,) = [stage for stage in stages if stage["stage"] == "model"]
    assert model["mean_length"] == (4 * 80 + 800) / 5


def test_updates_of_a_library_trainer_are_its_own(tmp_path, here):
    (tmp_path / "trained.py").write_text(TRAINED)
    loaded, stages = choose(f"{tmp_path / 'trained.py'}:Trained", {})[0], []
    measured = probe(loaded, make_fake_plan(loaded, micro_batch=4), on_stage=stages.append)
    assert measured.problem == "", measured
    assert measured.updates == 10 and measured.waiting_seconds is None
    assert measured.evaluated_samples and measured.peak_bytes
    (updates,) = [stage for stage in stages if stage["stage"] == "updates"]
    assert updates["loss"] > 0  # that of the trainer's log
