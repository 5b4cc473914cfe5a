"""Machines with a GPU that cannot be used, or not as a T4 is: what `check`, a measurement and a run say and do."""

import json

import pytest
import torch

from shoestring.base.errors import RunError
from shoestring.hardware import probe
from shoestring.runs.check.rates.writing import measure_to_file
from shoestring.training.monitor.sampling import _nvml_device, read_load
from tests.lab.commands.test_commands import answer, findings_of

UNUSABLE = {
    "without CUDA's driver": (
        {"SHOESTRING_SIMULATOR_GPUS": "0"}, "kernels", "cannot use the GPU: No CUDA GPUs are available"
    ),
    "hidden": ({"CUDA_VISIBLE_DEVICES": ""}, "GPU", "CUDA_VISIBLE_DEVICES='' hides 1 x Tesla T4"),
}  # fmt: skip
"""What a machine has in the environment of its processes, and the finding that fails: the driver shows its GPU."""


@pytest.fixture
def uncached():
    """The GPUs of this machine are looked up, before and after the test."""
    functions = (probe.local, probe.gpus)
    for function in functions:
        function.cache_clear()
    yield
    for function in functions:
        function.cache_clear()


@pytest.mark.usefixtures("uncached")
@pytest.mark.parametrize("state", UNUSABLE)
def test_check_finds_a_gpu_that_cannot_be_used(state, run_command, monkeypatch, tmp_path):
    variables, name, message = UNUSABLE[state]
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    findings = findings_of(answer(run_command, "check", "--run", tmp_path / "run", status=1))
    assert findings[name]["status"] == "fail" and message in findings[name]["said"]
    assert ("kernels" in findings) == (state != "hidden")


def test_check_finds_a_gpu_whose_memory_is_used_up(run_command, tmp_path):
    """By this process, so that another one has no space for a context."""
    block = torch.cuda.caching_allocator_alloc(torch.cuda.mem_get_info()[0] // 2**21 * 2**21)
    try:
        findings = findings_of(answer(run_command, "check", "--run", tmp_path / "run", status=1))
    finally:
        torch.cuda.caching_allocator_delete(block)
    assert findings["kernels"]["status"] == findings["GPU memory"]["status"] == "fail"
    assert "a test computation on Tesla T4 failed: CUDA" in findings["kernels"]["said"]
    assert "out of memory" in findings["kernels"]["said"]


OLD_GPU = """
import json, os
os.environ |= {"SHOESTRING_SIMULATOR_NAME": "NVIDIA GeForce GTX 1080 Ti", "SHOESTRING_SIMULATOR_CAPABILITY": "6.1"}
import torch
from shoestring import api
from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings
from shoestring.hardware import probe
from shoestring.techniques.compiled import require
findings = {finding.name: [finding.status, finding.message] for finding in api.check(on="local", run="run").findings}
try:
    require(Settings(compile="yes"), torch.device("cuda"))
except UsageError as error:
    refusal = error.message
device = probe.local().device.json()
print(json.dumps({"findings": findings, "refusal": refusal, "device": device}))
"""


@pytest.mark.slow
def test_an_old_gpu_that_the_catalogue_does_not_have(run_simulated):
    result = json.loads(run_simulated(OLD_GPU, on="kaggle-t4").lines[-1])
    status, message = result["findings"]["kernels"]
    assert status == "fail" and "no kernels for NVIDIA GeForce GTX 1080 Ti (sm_61), only for sm_70" in message
    assert result["findings"]["attention"][0] == "warn"
    assert "Triton needs compute capability 7.0" in result["refusal"] and "has 6.1" in result["refusal"]
    device = result["device"]
    assert device["name"] == "nvidia-geforce-gtx-1080-ti" and device["compute_capability"] == [6, 1]
    assert device["fp32_flops"] is None and device["precisions"] == ["fp32", "fp16"]
    assert len(device["lacks"]) == 4 and device["memory_bytes"] > 14 * 2**30


EXPANDABLE = """
import json, sys
import shoestring
values = {"size": "tiny", "max_updates": 2, "effective_batch": 32, "micro_batch": 32, "precision": "fp16"}
outcome = shoestring.train("temporal", run="run", allocator="expandable", probe=False, **values)
import torch
segments = [segment["is_expandable"] for segment in torch.cuda.memory_snapshot()]
print(json.dumps([outcome.status, segments]))
"""


@pytest.mark.slow
def test_a_run_with_expandable_segments_has_no_others(run_simulated):
    status, segments = json.loads(
        run_simulated(EXPANDABLE, PYTORCH_CUDA_ALLOC_CONF="", PYTORCH_ALLOC_CONF="").lines[-1]
    )
    assert status == "finished" and segments and all(segments)


def test_a_gpu_that_others_have_filled_cannot_be_measured(failing_segments, tmp_path):
    file = tmp_path / "rates.json"
    with (
        failing_segments(1, 10**6),
        pytest.raises(RunError, match="NVIDIA T4 cannot be measured: CUDA out of memory") as raised,
    ):
        measure_to_file(file, "local", overwrite=False, progress=lambda share: None)
    assert "end other processes" in raised.value.hint and not file.exists()


def test_what_the_driver_does_not_know():
    assert read_load(_nvml_device("of no GPU")) == (None, None)
    with pytest.raises(RunError, match="does not respond"), probe.nvidia_driver() as nvml:
        nvml.nvmlDeviceGetHandleByIndex(1)


GROWING = """
import torch
from torch import nn

class Mine:
    effective_batch = 16
    def model(self): return nn.Linear(256, 2048)
    def batch(self, size): return torch.ones(size, 256)
    def loss(self, model, batch):
        if len(batch) > 8:
            torch.empty(20 * 2**30, dtype=torch.uint8, device=batch.device)
        loss = model(batch).square().mean()
        return loss if loss.item() > 0 else -loss
"""


GROW = """
import json, sys, torch
from shoestring.base.settings import Settings
from shoestring.runs.check import attempts

settings = Settings(micro_batch=16, precision="fp16", checkpointing="no")
request = {
    "reference": sys.argv[1], "options": {}, "settings": settings.json(), "sizes": [4, 8, 16],
    "device": "cuda", "seconds": 60.0,
}
stages = []
attempts.try_sizes(request, stages.append)
print(json.dumps([stages, torch.cuda.max_memory_reserved()]))
"""


def test_microbatches_grow_until_one_does_not_fit(run_simulated, tmp_path):
    """What `check` tries for a recipe whose memory cannot be predicted, in a process of its own as there."""
    (tmp_path / "growing.py").write_text(GROWING)
    code = GROW.replace("sys.argv[1]", repr(str(tmp_path / "growing.py")))
    stages, reserved_bytes = json.loads(run_simulated(code, on="kaggle-t4", values="all").lines[-1])
    sizes = [(stage["stage"], stage.get("micro_batch")) for stage in stages]
    assert sizes == [("size", 4), ("disk", None), ("size", 8), ("full", 16)]
    weights = (256 + 1) * 2048 * 4
    assert 4 * weights < stages[0]["bytes"] <= reserved_bytes < 100 * 2**20
    assert "20.00 GiB" in stages[-1]["message"]
