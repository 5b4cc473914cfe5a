"""The measurement on a GPU, all but the measuring."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.gpu import harness, measure, memory
from benchmarks.gpu.cases import CONFIGURATIONS, Case, cases, tiny

from shoestring.hardware.catalog import DEVICES
from shoestring.recipe.finding import BUILT_IN
from shoestring.settings import Settings

MIB = 2**20
LAYER = Case(
    model="gpt2-tiny",
    settings=Settings(micro_batch=2, precision="fp32", checkpointing="no"),
    options={"seq_len": 16},
)


class Measured:
    """In the measuring function's place: what it was asked, and answers of a GPU that takes `reserved` bytes."""

    def __init__(self, reserved: int, *, fits_a_t4: bool = True) -> None:
        self.limits: list[int | None] = []
        self.devices: list[str] = []
        self._reserved, self._fits = reserved, fits_a_t4

    def __call__(self, case: Case, on: str, limit_bytes: int | None, seconds: float) -> dict[str, Any]:
        self.limits.append(limit_bytes)
        self.devices.append(on)
        fits = self._fits or limit_bytes is None
        return {"allocated": MIB, "reserved": self._reserved, "process": None, "fits": fits}


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr(harness.probe, "gpus", lambda: (DEVICES["h200"],))
    monkeypatch.setattr(harness, "cases", lambda _: [LAYER])


@pytest.fixture
def estimated(on_a_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the trace, whose process takes seconds to begin."""
    said = {"allocated": MIB, "reserved": 2 * MIB, "process": 3 * MIB, "low": MIB, "high": 3 * MIB}
    monkeypatch.setattr(memory, "_estimates", lambda *_: (said, True))


def run(folder: Path, measured: Any, *arguments: str) -> tuple[int, dict[str, Any]]:
    out = folder / "deep" / "out.json"
    status = memory.main(["--json", str(out), "--jobs", "1", *arguments], measured)
    return status, json.loads(out.read_text("utf-8"))


def test_a_row_has_estimate_and_measurement(on_a_gpu: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured = Measured(reserved=40 * MIB)
    status, content = run(tmp_path, measured)
    assert status == 0 and measured.devices == ["cuda"]
    (row,) = content["rows"]
    assert row["id"] == LAYER.id and row["measured_reserved"] == 40 * MIB and row["measured_process"] is None
    # cuBLAS's workspaces are the two that were set for the GPU, not Hopper's own, which are of 32 MiB.
    assert 16 * MIB < row["allocated"] < 32 * MIB
    assert row["low"] <= row["reserved"] <= row["high"] < row["process"]
    assert content["environment"]["torch"] == torch.__version__
    assert content["environment"]["device"] == DEVICES["h200"].title
    said = capsys.readouterr()
    error = abs(row["reserved"] / (40 * MIB) - 1)
    assert f"{error:.1%}" in next(line for line in said.out.splitlines() if line.startswith("reserved"))
    assert "s left" in said.err


@pytest.mark.parametrize(("fits", "wrong"), [(True, 0), (False, 1)])
def test_a_large_case_is_run_again_with_the_memory_of_a_t4(
    estimated: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], fits: bool, wrong: int
) -> None:
    measured = Measured(reserved=10_000 * MIB, fits_a_t4=fits)
    _, content = run(tmp_path, measured)
    assert measured.limits == [None, memory.LIMIT_BYTES]
    assert 14.2 < memory.LIMIT_BYTES / 2**30 < 14.56
    assert content["rows"][0]["limited"] == {"said": True, "fits": fits, "reserved": 10_000 * MIB}
    assert f"1 tried, {wrong} said to fit that did not" in capsys.readouterr().out


def test_nothing_is_begun_when_the_time_is_over(estimated: None, tmp_path: Path) -> None:
    measured = Measured(reserved=MIB)
    _, content = run(tmp_path, measured, "--seconds", "10")
    assert content["rows"] == [] and measured.limits == []


def test_a_case_that_fails_says_why(estimated: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def failing(*_: Any) -> dict[str, Any]:
        return {"error": "RuntimeError: no kernel image"}

    _, content = run(tmp_path, failing)
    assert content["rows"][0]["skipped"] == "RuntimeError: no kernel image"
    assert f"skipped {LAYER.id}: RuntimeError: no kernel image" in capsys.readouterr().out


def test_without_a_gpu_it_is_a_wrong_question(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harness.probe, "gpus", lambda: ())
    assert memory.main([]) == 2
    said = capsys.readouterr()
    assert "no NVIDIA GPU" in said.err and "--dry-run" in said.err and not said.out


def test_a_dry_run_runs_the_engine_and_measures_nothing(
    estimated: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harness, "tiny", lambda: [LAYER])
    status, content = run(tmp_path, None, "--dry-run")
    assert status == 0 and content["rows"][0]["measured_reserved"] is None
    assert "not measured" in capsys.readouterr().out


def test_the_measured_step_is_the_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    seen: list[int] = []

    def update(model: Any, optimizer: Any, loss: Any, microbatches: Any, **named: Any) -> None:
        seen.append(named["samples"])
        assert [size for _, size in microbatches] == [2, 2]

    monkeypatch.setattr(measure, "update", update)
    assert measure.measure(LAYER, torch.device("cpu"), None)["fits"]
    assert seen == [4] * measure.UPDATES


def test_a_missing_library_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "transformers" else name)
    assert LAYER.missing == "transformers"
    assert Case(model="cloud", settings=LAYER.settings).missing == ""


def test_the_grid_has_all_recipes_and_ten_configurations() -> None:
    every = cases(("fp32", "fp16", "bf16"))
    first = {case.model for case in every[: len(BUILT_IN) + 10]}
    assert first == {*BUILT_IN, *CONFIGURATIONS} - {"gpt2-tiny"} and len(first) == len(BUILT_IN) + 10
    for name, values in (
        ("precision", {"fp32", "fp16", "bf16"}),
        ("checkpointing", {"no", "full"}),
        ("optimizer_kernel", {None, "for-loop", "foreach", "fused"} - {"foreach"}),
    ):
        assert {getattr(case.settings, name) for case in every} == values
    assert any("lora.r" in case.options for case in every)
    assert len({case.id for case in [*every, *tiny()]}) == len(every) + 3
    assert {case.settings.precision for case in cases(("fp32",))} == {"fp32"}
    assert all(Case.from_json(case.json()) == case for case in every)
