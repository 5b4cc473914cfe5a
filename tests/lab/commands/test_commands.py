"""What is typed on a machine with a T4: check, plan, train, evaluate, predict, replay, export, watch, report."""

import json

import pytest
import torch

import shoestring
from shoestring.hardware.measured_file import read_measured
from shoestring.runs.check.rates import grid

SMALL = ("--set", "size=tiny", "--set", "max_updates=4", "--set", "effective_batch=64", "--set", "micro_batch=32",
         "--set", "precision=fp16")  # fmt: skip


def answer(run_command, *arguments, status=0):
    """Return the JSON that a command prints."""
    actual, out, err = run_command(*arguments, "--json")
    assert actual == status, out[-2000:] + err[-3000:]
    return json.loads(out)


def findings_of(checked):
    return {finding["name"]: finding for finding in checked["findings"]}


def test_check_finds_the_gpu_and_what_it_lacks(run_command, tmp_path):
    findings = findings_of(answer(run_command, "check", "--run", tmp_path / "run"))
    for status, names in {"pass": ("GPU", "kernels", "driver", "GPUs used"), "warn": ("bf16", "attention")}.items():
        assert {findings[name]["status"] for name in names} == {status}
    assert "1 x Tesla T4" in findings["GPU"]["said"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_check_runs_updates_on_the_gpu(run_command, tmp_path):
    findings = findings_of(answer(run_command, "check", "temporal", "--run", tmp_path / "run", *SMALL))
    assert findings["update"]["status"] == "pass" and "Tesla T4" in findings["update"]["said"]
    assert findings["memory"]["status"] == "pass" and "torch reserved" in findings["memory"]["said"]
    assert findings["evaluation"]["status"] == "pass"
    assert not (tmp_path / "run").exists()


def test_rates_of_the_gpu_are_measured(run_command, monkeypatch, tmp_path):
    monkeypatch.setattr(grid, "GPU", grid.SMALLEST)
    measured = answer(run_command, "check", "--measure", tmp_path / "rates.json")
    assert measured["device"]["title"] == "NVIDIA T4" and measured["device"]["kind"] == "cuda"
    rates = read_measured(tmp_path / "rates.json")
    assert {"fp32", "fp16"} == {row.precision for row in rates.operators}
    assert {"host to device", "host to device, pageable", "device to host"} == {row.kind for row in rates.copies}
    assert rates.host
    plan = answer(run_command, "plan", "temporal", "--on", tmp_path / "rates.json", *SMALL)
    assert "T4" in plan["device"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run in fp16 on the GPU, of which a probe has measured the plan."""
    folder = tmp_path_factory.mktemp("runs") / "temporal"
    values = {"size": "tiny", "max_updates": 4, "effective_batch": 64, "micro_batch": 32, "precision": "fp16"}
    outcome = shoestring.train("temporal", run=folder, save_every_updates=1, probe=True, **values)
    assert outcome.status == "finished" and outcome.update == 4
    return folder


def test_train_was_on_the_gpu(run):
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    progress = [event for event in events if event["event"] == "progress"]
    assert all(event["gpu_allocated_bytes"] > 0 and event["gpu_watts"] for event in progress)
    assert all(0 <= event["gpu_utilisation"] <= 1 for event in progress)


def test_its_plan_was_measured(run):
    plan = json.loads((run / "plan.json").read_text())["plan"]
    assert "T4" in plan["device"] and plan["settings"]["precision"] == "fp16"
    measured = plan["measured"]
    assert "T4" in measured["device"] and measured["updates"] > 0
    assert measured["predicted"]["low_bytes"] <= measured["peak_bytes"] <= measured["predicted"]["high_bytes"]


def test_evaluate_has_the_metrics_of_the_run(run, run_command):
    state = json.loads((run / "state.json").read_text())
    evaluated = answer(run_command, "evaluate", run)
    assert evaluated["metrics"]["test"] == state["metrics"]["test"]
    on_cpu = answer(run_command, "evaluate", run, "--on", "cpu")
    assert on_cpu["metrics"]["test"]["loss"] == pytest.approx(state["metrics"]["test"]["loss"], rel=2e-3)
    first = answer(run_command, "evaluate", run, "--first", "5")
    assert first["metrics"]["test"]["loss"] != evaluated["metrics"]["test"]["loss"]


def test_predictions_are_those_of_the_cpu(run, run_command, tmp_path):
    rows = {}
    for device in ("local", "cpu"):
        file = tmp_path / f"{device}.jsonl"
        answer(run_command, "predict", run, "--on", device, "--out", file)
        rows[device] = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(rows["local"]) == len(rows["cpu"]) > 0
    for row, other in zip(rows["local"], rows["cpu"], strict=True):
        assert row.keys() == other.keys()
        numbers = {name: value for name, value in row.items() if isinstance(value, float)}
        assert numbers == pytest.approx({name: other[name] for name in numbers}, rel=5e-3, abs=1e-3)
    loaded = shoestring.load(run)
    assert next(loaded.model.parameters()).is_cuda


def test_an_update_is_replayed_with_equal_bits(run, run_command):
    replayed = answer(run_command, "replay", run, "--update", "3")
    assert replayed["equals_checkpoint"] is True and "T4" in replayed["device"]


@pytest.mark.parametrize("to", ["safetensors", pytest.param("onnx", marks=pytest.mark.slow)])
def test_exports_of_a_run_on_the_gpu(to, run, run_command, tmp_path):
    exported = answer(run_command, "export", run, "--to", to, "--out", tmp_path / to)
    assert any((tmp_path / to).iterdir()) and exported


def test_watch_and_report_show_the_gpu(run, run_command):
    status, out, _ = run_command("watch", run, "--once")
    assert status == 0 and "session 1 on cuda: Tesla T4" in out and "peak " in out
    page = shoestring.report(run).read_text()
    assert "Tesla T4" in page and "GPU memory" in page and "no update was completed" not in page


SCRIPT = """
import torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
assert torch.cuda.get_device_name() == "NVIDIA L4"
"""


def test_a_script_is_rehearsed_on_another_gpu_than_that_of_the_machine(run_command, monkeypatch, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    rehearsed = answer(run_command, "rehearse", "train.py", "--on", "l4")
    assert rehearsed["finished"] and rehearsed["fits"] and rehearsed["updates"] == 3
    assert rehearsed["devices"][0]["capacity_bytes"] > torch.cuda.get_device_properties(0).total_memory
    assert torch.cuda.get_device_name() == "Tesla T4"
