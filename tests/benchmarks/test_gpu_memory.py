"""The measurement of memory on a GPU, with a fake measuring function."""

import json
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from benchmarks.gpu import harness, measure, memory
from benchmarks.gpu.cases import CONFIGURATIONS, Case, cases, tiny

from shoestring.base.settings import Settings
from shoestring.hardware.catalog import DEVICES
from shoestring.recipe.installed import built_in_names

MIB = 2**20
LAYER = Case(
    model="gpt2-tiny",
    settings=Settings(micro_batch=2, precision="fp32", checkpointing="no"),
    options={"seq_len": 16},
)


class FakeMeasure:
    """Records its arguments and returns the measurement of a GPU on which `reserved` bytes are reserved."""

    def __init__(self, reserved: int, *, fits_a_t4: bool = True) -> None:
        self.limits: list[int | None] = []
        self.devices: list[str] = []
        self._reserved, self._fits = reserved, fits_a_t4

    def __call__(self, case: Case, torch_device: str, limit_bytes: int | None, seconds: float) -> dict[str, Any]:
        self.limits.append(limit_bytes)
        self.devices.append(torch_device)
        fits = self._fits or limit_bytes is None
        return {"allocated": MIB, "reserved": self._reserved, "process": None, "fits": fits}


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr(harness.probe, "gpus", lambda: (DEVICES["h200"],))
    monkeypatch.setattr(harness, "cases", lambda _: [LAYER])


@pytest.fixture
def fake_estimate(fake_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the trace, whose process takes seconds to start."""
    estimate = {"allocated": MIB, "reserved": 2 * MIB, "process": 3 * MIB, "low": MIB, "high": 3 * MIB}
    monkeypatch.setattr(memory, "_estimates", lambda *_: (estimate, True))


def run(folder: Path, measure: Any, *arguments: str) -> tuple[int, dict[str, Any]]:
    out = folder / "deep" / "out.json"
    status = memory.main(["--json", str(out), "--jobs", "1", *arguments], measure)
    return status, json.loads(out.read_text("utf-8"))


@pytest.mark.slow
def test_row_has_estimate_and_measurement(fake_gpu: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measure = FakeMeasure(reserved=100 * MIB)
    status, content = run(tmp_path, measure)
    assert status == 0 and measure.devices == ["cuda"]
    (row,) = content["rows"]
    assert row["id"] == LAYER.id and row["measured_reserved"] == 100 * MIB and row["measured_process"] is None
    # The two cuBLAS workspaces are those of training.
    assert 64 * MIB < row["allocated"] < 80 * MIB
    assert row["low"] <= row["reserved"] <= row["high"] < row["process"]
    assert content["environment"]["torch"] == version("torch")
    assert content["environment"]["device"] == DEVICES["h200"].title
    output = capsys.readouterr()
    error = abs(row["reserved"] / (100 * MIB) - 1)
    assert f"{error:.1%}" in next(line for line in output.out.splitlines() if line.startswith("reserved"))
    assert "s left" in output.err


@pytest.mark.parametrize(("fits", "false_fits"), [(True, 0), (False, 1)])
def test_large_case_runs_again_with_memory_of_a_t4(
    fake_estimate: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], fits: bool, false_fits: int
) -> None:
    measure = FakeMeasure(reserved=10_000 * MIB, fits_a_t4=fits)
    _, content = run(tmp_path, measure)
    assert measure.limits == [None, memory.LIMIT_BYTES]
    assert 14.2 < memory.LIMIT_BYTES / 2**30 < 14.56
    assert content["rows"][0]["limited"] == {"said": True, "fits": fits, "reserved": 10_000 * MIB}
    assert f"1 measured, {false_fits} estimated to fit but did not" in capsys.readouterr().out


def test_no_case_starts_after_the_time_limit(fake_estimate: None, tmp_path: Path) -> None:
    measure = FakeMeasure(reserved=MIB)
    _, content = run(tmp_path, measure, "--seconds", "10")
    assert content["rows"] == [] and measure.limits == []


def test_failed_case_is_skipped_with_its_reason(
    fake_estimate: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing_measure(*_: Any) -> dict[str, Any]:
        return {"error": "RuntimeError: no kernel image"}

    _, content = run(tmp_path, failing_measure)
    assert content["rows"][0]["skipped"] == "RuntimeError: no kernel image"
    assert f"skipped {LAYER.id}: RuntimeError: no kernel image" in capsys.readouterr().out


def test_missing_gpu_is_invalid_usage(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(harness.probe, "gpus", lambda: ())
    assert memory.main([]) == 2
    output = capsys.readouterr()
    assert "no NVIDIA GPU" in output.err and "--dry-run" in output.err and not output.out


@pytest.mark.slow
def test_dry_run_runs_the_engine_without_measuring(
    fake_estimate: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harness, "tiny", lambda: [LAYER])
    status, content = run(tmp_path, None, "--dry-run")
    assert status == 0 and content["rows"][0]["measured_reserved"] is None
    assert "not measured" in capsys.readouterr().out


def test_measured_update_is_that_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    observed_samples: list[int] = []

    def update(model: Any, optimizer: Any, loss: Any, microbatches: Any, **options: Any) -> Any:
        """Overflow three times, as random weights do in fp16: without a step there are no optimizer states."""
        observed_samples.append(options["samples"])
        assert [size for _, size in microbatches] == [2, 2]
        return SimpleNamespace(stepped=len(observed_samples) > 3)

    monkeypatch.setattr(measure, "update", update)
    assert measure.measure(LAYER, torch.device("cpu"), None)["fits"]
    assert observed_samples == [4] * (3 + measure.UPDATES)


def test_missing_library_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "transformers" else name)
    assert LAYER.missing == "transformers"
    assert Case(model="cloud", settings=LAYER.settings).missing == ""


SMALL = {"gpt2-tiny", "resnet-18", "bert-small", "gpt2-small"}
"""Configurations of dry runs and for a CPU."""


def test_the_grid_has_all_recipes_and_ten_configurations() -> None:
    all_cases = cases(("fp32", "fp16", "bf16"))
    first = {case.model for case in all_cases[: len(built_in_names()) + 10]}
    assert first == {*built_in_names(), *CONFIGURATIONS} - SMALL and len(first) == len(built_in_names()) + 10
    for name, values in (
        ("precision", {"fp32", "fp16", "bf16"}),
        ("checkpointing", {"no", "full"}),
        ("optimizer_kernel", {None, "for-loop", "foreach", "fused"} - {"foreach"}),
    ):
        assert {getattr(case.settings, name) for case in all_cases} == values
    assert any("lora.r" in case.options for case in all_cases)
    assert len({case.id for case in [*all_cases, *tiny()]}) == len(all_cases) + 3
    assert {case.settings.precision for case in cases(("fp32",))} == {"fp32"}
    assert all(Case.from_json(case.json()) == case for case in all_cases)
