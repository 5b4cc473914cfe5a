"""Calibration from the recorded times of a run and the times of its plan."""

import json
from pathlib import Path
from typing import Any

import pytest

from shoestring.base.errors import UsageError
from shoestring.runs.calibrate import load_calibration
from tests.hardware.measured_files import GPU, write

SESSION = {"event": "session", "target": "kaggle-t4", "micro_batch": 8}


def progress_event(seconds: float, updates: int = 10, waiting: float = 0.0) -> dict[str, Any]:
    return {"event": "progress", "updates": updates, "seconds": seconds, "waiting_seconds": waiting}


def write_run(folder: Path, *events: dict[str, Any], predicted: float | None = 0.5, **time: float) -> Path:
    run = folder / "first"
    run.mkdir()
    plan = {
        "recipe": "legal",
        "target": "kaggle-t4",
        "device": "NVIDIA T4",
        "settings": {"micro_batch": 8},
        "time": {"update_seconds": predicted, **time},
    }
    (run / "plan.json").write_text(json.dumps({"recipe": "legal", "plan": plan}), "utf-8")
    lines = [json.dumps({"time": 0.0, "session": 1, **event}) for event in events]
    (run / "events.jsonl").write_text("\n".join([*lines, '{"torn']) + "\n", "utf-8")
    return run


def test_factor_excludes_first_line_and_waiting(tmp_path: Path) -> None:
    calibration = load_calibration(
        write_run(
            tmp_path,
            SESSION,
            progress_event(99.0),
            progress_event(6.0),
            progress_event(6.6, waiting=0.3),
            progress_event(12.0, updates=20),
        )
    )
    assert calibration.device == "NVIDIA T4" and calibration.factor == pytest.approx(1.2)
    assert (calibration.spread.low, calibration.spread.high) == pytest.approx((1.0, 1.05))
    assert calibration.input_seconds == pytest.approx(0.3 / 40)
    assert calibration.spread.source == "40 updates measured in first (legal): 1.20 times the prediction"
    assert calibration.save_rate is None


def test_spread_leaves_out_a_twentieth_at_each_end(tmp_path: Path) -> None:
    typical = [progress_event(5.0) for _ in range(38)]
    calibration = load_calibration(
        write_run(tmp_path, SESSION, progress_event(1.0), *typical, progress_event(50.0), progress_event(0.5))
    )
    assert (calibration.spread.low, calibration.factor, calibration.spread.high) == pytest.approx((1.0, 1.0, 1.0))


def test_progress_of_other_settings_does_not_count(tmp_path: Path) -> None:
    smaller_batch = {**SESSION, "micro_batch": 4}
    other_target = {**SESSION, "target": "local"}
    oom = {"event": "oom", "update": 40}
    measured = [progress_event(5.0)] * 3
    ignored = [progress_event(50.0)] * 3
    first = progress_event(1.0)
    calibration = load_calibration(
        write_run(
            tmp_path,
            *(smaller_batch, first, *ignored),
            *(other_target, first, *ignored),
            *(SESSION, first, *measured, oom, *ignored),
        )
    )
    assert calibration.factor == pytest.approx(1.0)


def test_calibration_of_the_plan_is_divided_out(tmp_path: Path) -> None:
    calibration = load_calibration(
        write_run(tmp_path, SESSION, *[progress_event(6.0)] * 4, predicted=0.6, calibration=1.2)
    )
    assert calibration.factor == pytest.approx(1.2)


def test_save_rate_comes_from_full_saves(tmp_path: Path) -> None:
    kinds = {"full": 2.0, "best": 9.0}
    saves = [{"event": "save", "kind": kind, "bytes": 10**8, "seconds": seconds} for kind, seconds in kinds.items()]
    assert load_calibration(
        write_run(tmp_path, SESSION, *[progress_event(5.0)] * 4, *saves)
    ).save_rate == pytest.approx(5e7)


@pytest.mark.parametrize(
    ("events", "predicted", "message"),
    [
        ([SESSION, progress_event(5.0), progress_event(5.0), progress_event(5.0)], 0.5, "2 usable progress lines"),
        ([SESSION, *[progress_event(5.0)] * 9], None, "predicts no time"),
    ],
)
def test_run_without_measurements_is_invalid_usage(
    tmp_path: Path, events: list[dict[str, Any]], predicted: float | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        load_calibration(write_run(tmp_path, *events, predicted=predicted))


def test_unreadable_plan_is_invalid_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"plan\.json"):
        load_calibration(tmp_path)
    (tmp_path / "plan.json").write_text("[]", "utf-8")
    with pytest.raises(UsageError, match=r"plan\.json does not contain a JSON object"):
        load_calibration(tmp_path)
    (tmp_path / "plan.json").write_text("{", "utf-8")
    with pytest.raises(UsageError, match=r"plan\.json cannot be read"):
        load_calibration(tmp_path)


def test_times_without_a_finite_factor_are_invalid_usage(tmp_path: Path) -> None:
    run = write_run(tmp_path, SESSION, *[progress_event(5.0)] * 5, predicted=1e-149)
    with pytest.raises(UsageError, match=r"first cannot calibrate: 0\.5 s per update were measured"):
        load_calibration(run)


def test_file_of_rates_calibrates_its_device(tmp_path: Path) -> None:
    path = write(tmp_path, GPU)
    calibration = load_calibration(path)
    assert (calibration.device, calibration.factor) == ("NVIDIA T4", 1.0)
    assert calibration.rates and calibration.rates.operators == GPU.operators
    assert str(path) in calibration.spread.source
    with pytest.raises(UsageError, match="cannot be read"):
        load_calibration(tmp_path / "nothing.json")
