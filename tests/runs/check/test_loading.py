"""The time of loading in a trial, and in the time of the plan."""

import time

import pytest

from shoestring.recipe.finding import choose
from shoestring.runs.check import preflight
from shoestring.runs.check.loading import check_loading, measured_loading
from tests.runs.check.test_trial_findings import make_plan, make_trial

SLOW = """
import time
import torch
from torch import nn

class Samples:
    def __len__(self): return 40
    def __getitem__(self, index):
        time.sleep(0.02)
        return torch.ones(4)

class Slow:
    effective_batch = 8
    epochs = 2
    def model(self): return nn.Linear(4, 1)
    def batch(self, size): return torch.ones(size, 4)
    def loss(self, model, batch): return model(batch).square().mean()
    def data(self): return Samples()
"""


def make_loading(*, sample_seconds, update_seconds=0.1, cores=4, workers=None):
    plan = make_plan(seconds=0.001)  # the measurement counts, not the prediction
    plan.settings = plan.settings.replace(workers=workers)
    stages = (
        {"stage": "data", "samples": 803, "seconds": 1.0},
        {"stage": "loading", "samples": 50, "seconds": 50 * sample_seconds},
    )
    trial = make_trial(plan, seconds=(9.0, *[update_seconds] * 3), stages=stages)
    trial.loaded.total_updates = lambda per_epoch: 5 * per_epoch
    return measured_loading(trial, plan, effective_batch=8, cores=cores)


@pytest.mark.parametrize(
    ("sample_seconds", "cores", "workers", "expected"),
    [
        (0.0005, 4, None, (0, 0.104)),
        (0.01, 4, None, (1, 0.1)),
        (0.02, 4, None, (2, 0.1)),
        (0.2, 4, None, (4, 0.4)),
        (0.2, 1, None, (2, 0.8)),
        (0.01, 4, 0, (0, 0.18)),
    ],
)
def test_an_update_waits_for_what_workers_cannot_load_meanwhile(sample_seconds, cores, workers, expected):
    loading = make_loading(sample_seconds=sample_seconds, cores=cores, workers=workers)
    assert (loading.workers, loading.update_seconds) == (expected[0], pytest.approx(expected[1]))
    assert loading.json()["epoch_seconds"] == pytest.approx(101 * expected[1])
    assert loading.json()["total_seconds"] == pytest.approx(505 * expected[1])


def test_waiting_is_a_warning():
    assert check_loading(make_loading(sample_seconds=0.01)).status == "pass"
    finding = check_loading(make_loading(sample_seconds=0.2))
    assert finding.status == "warn" and "75% of it is waiting for data" in finding.message
    assert "200 ms per sample in one process (50 samples loaded)" in finding.message


@pytest.mark.slow
def test_check_measures_the_loading_of_real_samples(tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    loaded, settings = choose(str(tmp_path / "slow.py"), {})
    started = time.monotonic()
    result = preflight.preflight("cpu", tmp_path / "runs", loaded, settings)
    assert time.monotonic() - started < 60
    (finding,) = [finding for finding in result.findings if finding.name == "loading"]
    loading = result.json()["tried"]["loading"]
    assert loading["samples"] == 32  # all updates of the epoch but the first
    assert 0.02 <= loading["sample_seconds"] < 0.04
    assert loading["loading_seconds"] == pytest.approx(8 * loading["sample_seconds"])
    assert loading["epoch_seconds"] == pytest.approx(5 * loading["update_seconds"])
    assert "per sample" in finding.message
