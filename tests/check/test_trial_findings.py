"""Findings of a trial: of updates that run in a child process, and of invented stages."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from shoestring.check import preflight, trial, trial_findings
from shoestring.check.preflight import CheckResult
from shoestring.check.trial_findings import Trial, check_trial, choose_batch_sizes, run_trial, summarize_trial
from shoestring.errors import DataError
from shoestring.estimate.memory import Range
from shoestring.hardware.targets import find
from shoestring.recipe.finding import choose
from shoestring.settings import Settings
from shoestring.units import GIB, MIB
from tests import contrastive
from tests.check.sample_facts import BUILD, DISK, T4, make_driver, make_facts, with_used_memory

MINE = """
import os, sys, time
import torch
from torch import nn

class Mine:
    effective_batch = 8
    def model(self): return nn.Sequential(nn.Linear(1024, 4096), nn.Linear(4096, 1))
    def batch(self, size): return torch.ones(size, 1024)
    def loss(self, model, batch):
        print('{{"stage": "printed"}}')
        {loss}
        return model(batch).square().mean()
    def data(self):
        {data}
        return torch.ones(20, 1024)
"""


def make_plan(
    *, seconds=0.1, micro_batch=4, precision="fp32", memory=(10 * MIB, 20 * MIB, 40 * MIB), kind="cpu", **changes
):
    """A plan with only the attributes that a trial uses."""
    duration = lambda value: SimpleNamespace(update_seconds=value)  # noqa: E731
    memory_range = Range(*memory)
    return SimpleNamespace(
        settings=Settings(micro_batch=micro_batch, precision=precision, checkpointing="no"),
        facts=SimpleNamespace(batch_norm=changes.get("batch_norm", False)),
        memory=SimpleNamespace(allocated=memory_range, reserved=memory_range, high_bytes=memory[2]),
        time=SimpleNamespace(
            predicted=duration(seconds),
            low=duration(seconds and seconds / 2),
            high=duration(seconds and seconds * 2),
        ),
        disk=SimpleNamespace(peak_bytes=changes.get("disk", MIB)),
        target=SimpleNamespace(device=SimpleNamespace(kind=kind)),
    )


@pytest.fixture
def load_recipe(tmp_path):
    """A function that loads a recipe whose loss() and data() start with the given lines."""

    def load(loss="pass", data="pass"):
        path = tmp_path / "mine.py"
        path.write_text(MINE.format(loss=loss, data=data))
        return choose(str(path), {})[0]

    return load


def run_trial_here(plan, loaded, sizes=(4, 4)):
    """Run a trial as `run_trial` does, but in this process."""
    stages = []
    request = {
        "reference": loaded.reference,
        "options": dict(loaded.options),
        "settings": plan.settings.json(),
        "microbatches": list(sizes),
        "device": "cpu",
    }
    trial.run_trial(request, stages.append)
    return Trial(plan=plan, loaded=loaded, stages=tuple(stages))


def findings_by_name(trial_result):
    return {finding.name: finding for finding in check_trial(trial_result)}


def test_trial_reports_measured_and_predicted_values(load_recipe, tmp_path, monkeypatch):
    # The child imports it from a folder of this process.
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "sizes_of_trial.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    trial_result = run_trial(make_plan(), load_recipe(loss="import sizes_of_trial"), find("cpu"))
    findings = findings_by_name(trial_result)
    assert list(findings) == ["data", "update", "memory", "time"]
    assert not trial_result.stages_named("printed")
    assert (findings["data"].status, "20 samples" in findings["data"].message) == ("pass", True)
    assert (findings["update"].status, "4 updates of 8 samples ran on cpu" in findings["update"].message) == (
        "pass",
        True,
    )
    numbers = summarize_trial(trial_result)
    # Weights, gradients and two moments of 4.2 million parameters, in fp32.
    assert 4 * 4 * 4_198_400 < numbers["memory"]["measured_bytes"] < 4 * 4 * 4_198_400 + 96 * MIB
    assert numbers["memory"]["ratio"] == numbers["memory"]["measured_bytes"] / (20 * MIB)
    assert numbers["time"]["measured_seconds"] > 0


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("raise ValueError('an error of the recipe')", r"ValueError in .*mine\.py, line 12: an error of the recipe"),
        ("raise torch.OutOfMemoryError('CUDA out of memory. Tried')", "out of memory: CUDA out of memory"),
    ],
)
def test_error_of_an_update_is_a_finding(load_recipe, loss, message):
    findings = check_trial(run_trial_here(make_plan(), load_recipe(loss=loss)))
    assert [finding.name for finding in findings] == ["data", "update"]
    assert findings[1].status == "fail"
    assert re.search(message, findings[1].message), findings[1].message


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("os.kill(os.getpid(), 9)", r"after 0 updates \(last stage: model\): the system killed the process"),
        ("sys.exit(3)", r"exited with status 3"),
    ],
)
def test_exit_of_the_child_process_is_a_finding(load_recipe, loss, message):
    findings = check_trial(run_trial(make_plan(), load_recipe(loss=loss), find("cpu")))
    assert [finding.name for finding in findings] == ["data", "update"]
    assert re.search(message, findings[1].message), findings[1].message


def test_each_declared_stage_is_tried(load_recipe):
    path = load_recipe().path
    text = path.read_text().replace("loss(self, model, batch)", "loss(self, model, batch, stage)")
    path.write_text(text + "    stages = (0, 1, 2)\n    def stage(self, update, *_): return update % 3\n")
    result = run_trial_here(make_plan(), choose(str(path), {})[0])
    assert len(result.stages_named("update")) == 6, result.stages
    times = [{"stage": "update", "seconds": seconds, "loss": "1"} for seconds in (9, 9, 9, 9, 1, 3, 5)]
    stages = ({"stage": "model", "stages": 3}, *times, *result.stages_named("done"))
    assert summarize_trial(replace(result, stages=stages))["time"]["measured_seconds"] == 3


def test_trial_has_a_time_limit(load_recipe):
    trial_result = run_trial(make_plan(), load_recipe(loss="time.sleep(600)"), find("cpu"), seconds=3.0)
    assert "did not finish within 3.0 s" in findings_by_name(trial_result)["update"].message


def test_slow_machine_runs_two_updates(load_recipe, monkeypatch):
    monkeypatch.setattr(trial, "ENOUGH_SECONDS", 0.0)
    findings = findings_by_name(run_trial_here(make_plan(), load_recipe()))
    assert "2 updates of 8 samples" in findings["update"].message


def test_error_of_reading_data_is_a_finding(load_recipe):
    findings = check_trial(run_trial_here(make_plan(), load_recipe(data="raise OSError('no such mount')")))
    assert ([finding.name for finding in findings], "no such mount" in findings[0].message) == (["update"], True)


@pytest.mark.parametrize(
    ("seconds", "batch_norm", "expected"),
    [
        (0.1, False, (64, 16)),
        (5.0, False, (64, 16)),
        (50.0, False, (6, 6)),
        (10.0, False, (32, 16)),
        (5000.0, False, (1, 1)),
        (5000.0, True, (2, 2)),  # batch normalization needs two samples
        (None, False, (16, 16)),
    ],
)
def test_slow_updates_are_tried_with_fewer_samples(seconds, batch_norm, expected):
    loaded = SimpleNamespace(effective_batch=64)
    assert choose_batch_sizes(make_plan(seconds=seconds, micro_batch=16, batch_norm=batch_norm), loaded) == expected


def make_trial(plan, *, peak_bytes=20 * MIB, seconds=(9.0, 0.1, 0.1, 0.1), loss="1.5"):
    stages = [{"stage": "model"}]
    stages += [{"stage": "update", "seconds": duration, "loss": loss} for duration in seconds]
    stages.append({"stage": "done", "bytes": peak_bytes, "device": "cuda: Tesla T4"})
    return Trial(plan=plan, loaded=SimpleNamespace(effective_batch=8), stages=tuple(stages))


@pytest.mark.parametrize(
    ("kind", "peak_bytes", "status"),
    [("cuda", 40 * MIB, "pass"), ("cuda", 41 * MIB, "warn"), ("cpu", 41 * MIB, "pass"), ("cpu", 105 * MIB, "warn")],
)
def test_more_memory_than_predicted_is_a_warning(kind, peak_bytes, status):
    finding = findings_by_name(make_trial(make_plan(kind=kind), peak_bytes=peak_bytes))["memory"]
    assert finding.status == status
    assert f"ratio {peak_bytes / (20 * MIB):.2f}" in finding.message


@pytest.mark.parametrize(("seconds", "status"), [(0.04, "warn"), (0.1, "pass"), (0.3, "warn")])
def test_time_outside_of_the_predicted_range_is_a_warning(seconds, status):
    """The first update of 9 s does not count."""
    finding = findings_by_name(make_trial(make_plan(), seconds=(9.0, seconds, seconds, seconds)))["time"]
    assert finding.status == status


def test_device_without_known_rates_has_a_measured_time():
    assert "100 ms" in findings_by_name(make_trial(make_plan(seconds=None)))["time"].message
    assert summarize_trial(make_trial(make_plan(seconds=None)))["time"]["ratio"] is None


def test_nan_loss_fails():
    assert findings_by_name(make_trial(make_plan(), loss="nan"))["update"].status == "fail"


def test_capacity_of_disk_and_gpu_is_checked():
    def statuses(findings):
        return {finding.name: finding.status for finding in findings}

    large_plan = make_plan(kind="cuda", memory=(GIB, 8 * GIB, 9 * GIB), disk=10 * GIB)
    assert statuses(trial_findings.check_capacity(large_plan, make_facts())) == {"room on disk": "pass"}
    full_machine = make_facts(
        disk=replace(DISK, free_bytes=9 * GIB), driver=make_driver(with_used_memory(T4, 7 * GIB, 4))
    )
    assert statuses(trial_findings.check_capacity(large_plan, full_machine)) == {
        "room on disk": "fail",
        "room on the GPU": "fail",
    }
    # The present files of the run count as free.
    assert statuses(
        trial_findings.check_capacity(
            large_plan, make_facts(disk=replace(DISK, free_bytes=9 * GIB, used_bytes=2 * GIB))
        )
    ) == {"room on disk": "pass"}


def set_facts(monkeypatch, facts):
    monkeypatch.setattr(preflight, "collect_facts", lambda *_: facts)


def test_nothing_is_tried_after_a_failed_prerequisite(monkeypatch, load_recipe, tmp_path):
    set_facts(monkeypatch, make_facts(on="local", driver=make_driver(T4), build=replace(BUILD, cuda=None, gpus=())))
    monkeypatch.setattr(trial_findings, "make_plan", lambda *_: pytest.fail("planned"))
    result = preflight.preflight("local", tmp_path, load_recipe(), Settings())
    assert result.status == "fail"
    assert "not tried, because these checks failed: kernels" in result.findings[-1].message


def test_planning_error_is_a_finding_with_its_problems(monkeypatch, load_recipe, tmp_path):
    def fail(*_):
        raise DataError("bars.csv cannot be used", problems=["line 7: no number"], hint="fix line 7")

    set_facts(monkeypatch, make_facts(on="local", driver=None, build=replace(BUILD, gpus=())))
    monkeypatch.setattr(trial_findings, "make_plan", fail)
    finding = preflight.preflight("local", tmp_path, load_recipe(), Settings()).findings[-1]
    assert (finding.name, finding.status, finding.hint) == ("plan", "fail", "fix line 7")
    assert "line 7" in finding.message


def test_plan_that_does_not_fit_is_not_tried(monkeypatch, load_recipe, tmp_path):
    set_facts(monkeypatch, make_facts(on="local", driver=None, build=replace(BUILD, gpus=())))
    monkeypatch.setattr(
        trial_findings, "make_plan", lambda *_: SimpleNamespace(fits=False, reasons=["memory: too much"])
    )
    monkeypatch.setattr(trial_findings, "run_trial", lambda *_: pytest.fail("tried"))
    finding = preflight.preflight("local", tmp_path, load_recipe(), Settings()).findings[-1]
    assert (finding.name, finding.status, finding.message) == ("plan", "fail", "memory: too much")


def test_status_is_the_worst_finding():
    passed, warned, failed = (SimpleNamespace(status=status) for status in ("pass", "warn", "fail"))

    def status(*findings):
        return CheckResult(target="local", recipe="", findings=findings).status

    assert [status(passed), status(passed, warned), status(warned, failed, passed)] == ["pass", "warn", "fail"]


def test_loss_over_the_batch_is_a_warning(tmp_path):
    trial_results = {}
    for name in ("InfoNCE", "Whole"):
        loaded = choose(f"{contrastive.__file__}:{name}", {"effective_batch": 8})[0]
        trial_results[name] = run_trial_here(make_plan(micro_batch=8), loaded, sizes=[8])
    finding = findings_by_name(trial_results["InfoNCE"])["microbatches"]
    assert finding.status == "warn" and "two halves" in finding.message and "whole_batch" in finding.message
    assert "microbatches" not in findings_by_name(trial_results["Whole"])
