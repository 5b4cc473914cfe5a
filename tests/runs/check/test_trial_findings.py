"""Findings of a trial: of updates that run in a child process, and of invented stages."""

import math
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from shoestring.base.errors import DataError
from shoestring.base.settings import Settings
from shoestring.base.units import GIB, MIB
from shoestring.hardware.targets import find
from shoestring.planning.estimate.memory import Range
from shoestring.recipe.finding import choose
from shoestring.recipe.parts import Parts
from shoestring.runs.check import preflight, trial_findings
from shoestring.runs.check.preflight import CheckResult
from shoestring.runs.check.probe import probing
from shoestring.runs.check.probe.probing import Probe
from shoestring.runs.check.trial_findings import Trial, check_trial, run_trial, summarize_trial
from tests import contrastive
from tests.runs.check.probe import in_process
from tests.runs.check.probe.test_probing import TRAINED
from tests.runs.check.sample_facts import BUILD, DISK, T4, make_driver, make_facts, with_used_memory
from tests.training.engine.fake_cuda_graphs import use_fake_cuda_graphs

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
        settings=Settings(micro_batch=micro_batch, precision=precision, checkpointing="no", gpus=1),
        facts=SimpleNamespace(samples=None),
        memory=SimpleNamespace(allocated=memory_range, reserved=memory_range, high_bytes=memory[2]),
        time=SimpleNamespace(
            predicted=SimpleNamespace(update_seconds=seconds, total_seconds=None),
            low=duration(seconds and seconds / 2),
            high=duration(seconds and seconds * 2),
        ),
        disk=SimpleNamespace(peak_bytes=changes.get("disk", MIB)),
        target=SimpleNamespace(name=kind, device=SimpleNamespace(kind=kind, title=kind)),
    )


@pytest.fixture
def load_recipe(tmp_path):
    """A function that loads a recipe whose loss() and data() start with the given lines."""

    def load(loss="pass", data="pass"):
        path = tmp_path / "mine.py"
        path.write_text(MINE.format(loss=loss, data=data))
        return choose(str(path), {})[0]

    return load


@pytest.fixture
def here(monkeypatch):
    """Trials run in this process."""
    monkeypatch.setattr(probing, "run_child", in_process.run)


def findings_by_name(trial_result):
    return {finding.name: finding for finding in check_trial(trial_result)}


def test_trial_reports_measured_and_predicted_values(load_recipe, tmp_path, monkeypatch):
    # The child imports it from a folder of this process.
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "sizes_of_trial.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    # Without a fixed threshold, glibc keeps up to four freed buffers of 16 MiB, another number in each run.
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(MIB))
    trial_result = run_trial(make_plan(), load_recipe(loss="import sizes_of_trial"), find("cpu"))
    findings = findings_by_name(trial_result)
    assert list(findings) == ["data", "update", "random numbers", "memory", "time"]
    assert "had the same values when fetched again" in findings["random numbers"].message
    assert not trial_result.stages_named("printed")
    assert (findings["data"].status, "20 samples" in findings["data"].message) == ("pass", True)
    assert (findings["update"].status, "11 updates of 8 samples ran on cpu" in findings["update"].message) == (
        "pass",
        True,
    )
    numbers = summarize_trial(trial_result)
    # Weights, gradients and two moments of 4.2 million parameters, in fp32.
    assert 4 * 4 * 4_198_400 < numbers["memory"]["measured_bytes"] < 4 * 4 * 4_198_400 + 64 * MIB
    assert numbers["memory"]["ratio"] == numbers["memory"]["measured_bytes"] / (20 * MIB)
    assert numbers["time"]["measured_seconds"] > 0


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("raise ValueError('an error of the recipe')", r"ValueError in .*mine\.py, line 12: an error of the recipe"),
        (
            "raise torch.OutOfMemoryError('CUDA out of memory. Tried')",
            "out of memory with the smallest microbatch.*CUDA out of memory",
        ),
    ],
)
def test_error_of_an_update_is_a_finding(load_recipe, here, loss, message):
    findings = check_trial(run_trial(make_plan(), load_recipe(loss=loss), find("cpu")))
    assert [finding.name for finding in findings] == ["data", "update"]
    assert findings[1].status == "fail"
    assert re.search(message, findings[1].message), findings[1].message


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("os.kill(os.getpid(), 9)", r"after 0 updates: the system killed the process"),
        ("os._exit(3)", r"exited with status 3"),
    ],
)
def test_exit_of_the_child_process_is_a_finding(load_recipe, loss, message):
    findings = check_trial(run_trial(make_plan(), load_recipe(loss=loss), find("cpu")))
    assert [finding.name for finding in findings] == ["data", "update"]
    assert re.search(message, findings[1].message), findings[1].message


@pytest.mark.slow
def test_trial_has_a_time_limit(load_recipe):
    trial_result = run_trial(make_plan(), load_recipe(loss="time.sleep(600)"), find("cpu"), seconds=3.0)
    assert "did not finish within 6.0 s" in findings_by_name(trial_result)["update"].message


def test_error_of_reading_data_is_a_finding(load_recipe, here):
    findings = check_trial(run_trial(make_plan(), load_recipe(data="raise OSError('no such mount')"), find("cpu")))
    assert ([finding.name for finding in findings], "no such mount" in findings[0].message) == (["update"], True)


def test_recipe_without_data_is_tried_with_its_batches(tmp_path, here):
    path = tmp_path / "mine.py"
    path.write_text(MINE.format(loss="pass", data="pass").partition("    def data")[0])
    findings = findings_by_name(run_trial(make_plan(), choose(str(path), {})[0], find("cpu")))
    assert list(findings) == ["update", "memory", "time"]


def test_out_of_memory_of_a_microbatch_is_a_warning_with_the_one_that_fits(load_recipe, here):
    loss = "if len(batch) > 2: raise torch.OutOfMemoryError('CUDA out of memory. Tried')"
    finding = findings_by_name(run_trial(make_plan(), load_recipe(loss=loss), find("cpu")))["update"]
    assert (finding.status, "micro_batch 2 fitted" in finding.message) == ("warn", True)
    assert "micro_batch=2" in finding.hint


def test_evaluation_is_tried_as_well(load_recipe, here):
    path = load_recipe().path
    text = path.read_text().replace(
        "return torch.ones(20, 1024)", "return dict.fromkeys(('train', 'validation'), torch.ones(20, 1024))"
    )
    path.write_text(text)
    finding = findings_by_name(run_trial(make_plan(), choose(str(path), {})[0], find("cpu")))["evaluation"]
    assert (finding.status, "per sample of the validation part" in finding.message) == ("pass", True)
    path.write_text(text + "    def evaluate(self, model, batches): raise ValueError('an error of the metrics')\n")
    findings = findings_by_name(run_trial(make_plan(), choose(str(path), {})[0], find("cpu")))
    assert [finding.status for finding in findings.values()][:2] == ["pass", "pass"]
    assert (findings["evaluation"].status, "an error of the metrics" in findings["evaluation"].message) == (
        "fail",
        True,
    )


def make_trial(plan, *, peak_bytes=20 * MIB, seconds=(9.0, 0.1, 0.1, 0.1), loss=1.5, stages=(), trainer=None):
    facts = {"loss_stage": 0, "purpose": "", "samples": 8, "waiting_seconds": 0.0, "length": None}
    facts["disturbed_share"] = 0.0
    made = [
        {"stage": "update", "number": number, "seconds": duration, "loss": loss, "bytes": 1, "host_bytes": 1, **facts}
        for number, duration in enumerate(seconds)
    ]
    ended = {
        "stage": "updates", "growth_bytes": peak_bytes, "state_bytes": 1, "device": "cuda: Tesla T4", "micro_batch": 4,
        "loss": None,
    }  # fmt: skip
    started = {"stage": "model", "seconds": 1.0, "stages": 1, "total_updates": 9, "mean_length": None}
    probe = Probe(
        stages=(*stages, started, *made, ended, {"stage": "done"}), exit_reason="", samples=8, scale=1.0, seconds=1.0
    )
    loaded = SimpleNamespace(effective_batch=8, parts=Parts.from_recipe(SimpleNamespace(trainer=trainer)))
    return Trial(plan=plan, loaded=loaded, probe=probe)


@pytest.mark.parametrize(
    ("kind", "peak_bytes", "status"),
    [("cuda", 40 * MIB, "pass"), ("cuda", 41 * MIB, "warn"), ("cpu", 41 * MIB, "pass"), ("cpu", 361 * MIB, "warn")],
)
def test_more_memory_than_predicted_is_a_warning(kind, peak_bytes, status):
    finding = findings_by_name(make_trial(make_plan(kind=kind), peak_bytes=peak_bytes))["memory"]
    assert finding.status == status
    ratio = f"ratio {peak_bytes / (20 * MIB):.2f}"
    is_small = kind == "cpu" and status == "pass"  # less memory than what belongs to no tensor
    assert ("too small to compare" if is_small else ratio) in finding.message


def test_modules_of_a_trainer_are_no_tensors():
    trial = make_trial(make_plan(), peak_bytes=300 * MIB, trainer=print)
    assert findings_by_name(trial)["memory"].status == "pass"


@pytest.mark.parametrize(("seconds", "status"), [(0.04, "warn"), (0.1, "pass"), (0.3, "warn")])
def test_time_outside_of_the_predicted_range_is_a_warning(seconds, status):
    """The first update of 9 s does not count."""
    finding = findings_by_name(make_trial(make_plan(), seconds=(9.0, seconds, seconds, seconds)))["time"]
    assert finding.status == status


def test_a_single_update_passes_without_a_time_to_compare():
    trial = make_trial(make_plan(), seconds=(9.0,))
    findings = findings_by_name(trial)
    assert (findings["update"].status, "1 update of 8 samples" in findings["update"].message) == ("pass", True)
    assert (findings["time"].status, "9.0 s" in findings["time"].message) == ("pass", True)
    assert summarize_trial(trial) is None


def test_device_without_known_rates_has_a_measured_time():
    assert "100 ms" in findings_by_name(make_trial(make_plan(seconds=None)))["time"].message
    assert summarize_trial(make_trial(make_plan(seconds=None)))["time"]["ratio"] is None


def test_nan_loss_fails():
    assert findings_by_name(make_trial(make_plan(), loss=math.nan))["update"].status == "fail"


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


def test_loss_over_the_batch_is_a_warning(here):
    trial_results = {}
    for name in ("InfoNCE", "Whole"):
        loaded = choose(f"{contrastive.__file__}:{name}", {"effective_batch": 8})[0]
        trial_results[name] = run_trial(make_plan(micro_batch=8), loaded, find("cpu"))
    finding = findings_by_name(trial_results["InfoNCE"])["microbatches"]
    assert finding.status == "warn" and "two halves" in finding.message and "whole_batch" in finding.message
    assert "microbatches" not in findings_by_name(trial_results["Whole"])


def test_cuda_graphs_are_used_if_requested(monkeypatch, here):
    stand_ins = use_fake_cuda_graphs(monkeypatch)
    loaded = choose("temporal", {"architecture": "mlp", "size": "tiny", "dropout": 0.0})[0]
    plan = make_plan(micro_batch=4)
    plan.settings = plan.settings.replace(compile="graphs")
    assert findings_by_name(run_trial(plan, loaded, find("cpu")))["update"].status == "pass"
    assert stand_ins[0].replays


def test_updates_of_a_library_are_tried(tmp_path, here):
    path = tmp_path / "trained.py"
    path.write_text(TRAINED)
    findings = findings_by_name(run_trial(make_plan(), choose(f"{path}:Trained", {})[0], find("cpu")))
    findings.pop("time")
    assert {finding.status for finding in findings.values()} == {"pass"}, findings
    assert list(findings) == ["data", "update", "memory", "evaluation"]
    assert "the first loss is" in findings["update"].message
