"""The measurement of time on a GPU, all but the measuring."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.gpu import clock, harness, time
from benchmarks.gpu.cases import Case

from shoestring.estimate.time import Seconds
from shoestring.hardware import probe
from shoestring.hardware.catalog import DEVICES
from shoestring.settings import Settings

LAYER = Case(
    model="gpt2-tiny",
    settings=Settings(micro_batch=2, precision="fp32", checkpointing="no"),
    options={"seq_len": 16},
)
SAID = Seconds(parts={"forward": 0.25, "backward": 0.25}, low=0.4, high=0.8, source="")


def measured(case: Case | None, on: str, _seconds: float) -> dict[str, Any]:
    """In the measuring function's place."""
    assert on == "cuda"
    return {"seconds": [0.7, 0.4, 0.5], "fits": True} if case else {"rates": {}}


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr(probe, "gpus", lambda: (DEVICES["h200"],))
    monkeypatch.setattr(harness, "cases", lambda _: [LAYER])


@pytest.fixture
def estimated(on_a_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the trace, whose process takes seconds to begin."""
    monkeypatch.setattr(time, "_estimate", lambda *_: SAID)


def run(folder: Path, measure: Any = measured, *arguments: str) -> dict[str, Any]:
    out = folder / "deep" / "out.json"
    assert time.main(["--json", str(out), *arguments], measure) == 0
    found: dict[str, Any] = json.loads(out.read_text("utf-8"))
    return found


def test_a_row_has_estimate_and_measurement(on_a_gpu: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = run(tmp_path)
    (row,) = content["rows"]
    assert row["id"] == LAYER.id and row["measured"] == 0.5 and row["measured_spread"] == [0.4, 0.7]
    assert 0 < row["low"] < row["estimate"] < row["high"] < 0.5
    assert sum(row["parts"].values()) == pytest.approx(row["estimate"])
    assert content["kernels"] == {"rates": {}} and content["environment"]["torch"] == torch.__version__
    said = capsys.readouterr()
    assert f"{1 - row['estimate'] / 0.5:.1%}" in said.out and "range holds what was measured in 0 of 1" in said.out
    assert "s left" in said.err


def test_nothing_is_begun_when_the_time_is_over(estimated: None, tmp_path: Path) -> None:
    assert run(tmp_path, measured, "--seconds", "10")["rows"] == []


@pytest.mark.parametrize(
    ("answer", "why"),
    [({"error": "RuntimeError: no kernel"}, "RuntimeError: no kernel"), ({"fits": False}, "more than this GPU has")],
)
def test_a_case_that_fails_says_why(
    estimated: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], answer: dict[str, Any], why: str
) -> None:
    assert run(tmp_path, lambda *_: answer)["rows"][0]["skipped"] == why
    assert f"skipped {LAYER.id}: {why}" in capsys.readouterr().out


def test_without_a_gpu_it_is_a_wrong_question(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(probe, "gpus", lambda: ())
    assert time.main([]) == 2
    said = capsys.readouterr()
    assert "no NVIDIA GPU" in said.err and "--dry-run" in said.err and not said.out


def test_the_measured_step_is_the_engines_and_warm_ones_count(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    seen: list[int] = []

    def update(model: Any, optimizer: Any, loss: Any, microbatches: Any, **named: Any) -> None:
        seen.append(named["samples"])
        assert [size for _, size in microbatches] == [2, 2]

    monkeypatch.setattr(clock, "update", update)
    monkeypatch.setattr(clock, "SECONDS", 0.0)
    found = clock.clocked(LAYER, torch.device("cpu"))
    assert seen == [4] * (clock.WARM + clock.LEAST) and len(found["seconds"]) == clock.LEAST


def test_both_scripts_start_and_a_broken_case_is_an_answer() -> None:
    answer = time.in_a_process(Case(model="nothing", settings=LAYER.settings), "cpu", 60)
    assert "nothing" in answer["error"]
