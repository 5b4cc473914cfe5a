"""The measurement of time on a GPU, with a fake measuring function."""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.gpu import clock, harness, time
from benchmarks.gpu.cases import Case

from shoestring.base.settings import Settings
from shoestring.hardware import probe
from shoestring.hardware.catalog import DEVICES
from shoestring.hardware.measured_file import read_measured
from shoestring.planning.estimate.time import Seconds
from tests.hardware.measured_files import GPU

LAYER = Case(
    model="gpt2-tiny",
    settings=Settings(micro_batch=2, precision="fp32", checkpointing="no"),
    options={"seq_len": 16},
)
ESTIMATE = Seconds(parts={"forward": 0.25, "backward": 0.25}, low=0.4, high=0.8, source="")


def fake_measure(case: Case | None, torch_device: str, _seconds: float) -> dict[str, Any]:
    """Return constant measurements."""
    assert torch_device == "cuda"
    return {"seconds": [0.7, 0.4, 0.5], "fits": True} if case else {"rates": {}}


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr(probe, "gpus", lambda: (DEVICES["h200"],))
    monkeypatch.setattr(harness, "cases", lambda _: [LAYER])


@pytest.fixture
def fake_estimate(fake_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the trace, whose process takes seconds to start."""
    monkeypatch.setattr(time, "_estimate", lambda *_: (None, ESTIMATE))


def run(folder: Path, measure: Any = fake_measure, *arguments: str) -> dict[str, Any]:
    out = folder / "deep" / "out.json"
    assert time.main(["--json", str(out), *arguments], measure) == 0
    content: dict[str, Any] = json.loads(out.read_text("utf-8"))
    return content


def test_row_has_estimate_and_measurement(fake_gpu: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = run(tmp_path)
    (row,) = content["rows"]
    assert row["id"] == LAYER.id and row["measured"] == 0.5 and row["measured_spread"] == [0.4, 0.7]
    assert 0 < row["low"] < row["estimate"] < row["high"] < 0.5
    assert sum(row["parts"].values()) == pytest.approx(row["estimate"])
    assert content["kernels"] == {"rates": {}} and content["environment"]["torch"] == version("torch")
    output = capsys.readouterr()
    assert f"{1 - row['estimate'] / 0.5:.1%}" in output.out
    assert "the range contains the measured time in 0 of 1 cases" in output.out
    assert "s left" in output.err


def test_no_case_starts_after_the_time_limit(fake_estimate: None, tmp_path: Path) -> None:
    assert run(tmp_path, fake_measure, "--seconds", "10")["rows"] == []


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"error": "RuntimeError: no kernel"}, "RuntimeError: no kernel"),
        ({"fits": False}, "more memory than this GPU has"),
    ],
)
def test_failed_case_is_skipped_with_its_reason(
    fake_estimate: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], answer: dict[str, Any], reason: str
) -> None:
    assert run(tmp_path, lambda *_: answer)["rows"][0]["skipped"] == reason
    assert f"skipped {LAYER.id}: {reason}" in capsys.readouterr().out


def test_missing_gpu_is_invalid_usage(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(probe, "gpus", lambda: ())
    assert time.main([]) == 2
    output = capsys.readouterr()
    assert "no NVIDIA GPU" in output.err and "--dry-run" in output.err and not output.out


def test_warm_updates_of_the_engine_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    observed_samples: list[int] = []

    def update(model: Any, optimizer: Any, loss: Any, microbatches: Any, **options: Any) -> None:
        observed_samples.append(options["samples"])
        assert [size for _, size in microbatches] == [2, 2]

    monkeypatch.setattr(clock, "update", update)
    monkeypatch.setattr(clock, "MIN_SECONDS", 0.0)
    answer = clock.time_updates(LAYER, torch.device("cpu"))
    assert observed_samples == [4] * (clock.WARM_UP + clock.MIN_UPDATES)
    assert len(answer["seconds"]) == clock.MIN_UPDATES


@pytest.mark.slow
def test_script_answers_with_the_error_of_a_case() -> None:
    answer = time.measure_in_process(Case(model="nothing", settings=LAYER.settings), "cpu", 60)
    assert "nothing" in answer["error"]


def test_kernels_have_the_content_of_a_file_of_rates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(clock, "measure_rates", lambda target, grid: GPU)
    path = tmp_path / "rates.json"
    path.write_text(json.dumps(clock.time_kernels(probe.local_cpu())["rates"]))
    assert read_measured(path).operators == GPU.operators
