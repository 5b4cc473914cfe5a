"""What a run's record says of its speed, held against its plan."""

import json
from pathlib import Path
from typing import Any

import pytest

from shoestring.errors import UsageError
from shoestring.runs.calibrate import calibrated

SESSION = {"event": "session", "target": "kaggle-t4", "micro_batch": 8}


def progress(seconds: float, updates: int = 10, waiting: float = 0.0) -> dict[str, Any]:
    return {"event": "progress", "updates": updates, "seconds": seconds, "waiting_seconds": waiting}


def run(folder: Path, *events: dict[str, Any], predicted: float | None = 0.5, **time: float) -> Path:
    made = folder / "first"
    made.mkdir()
    plan = {
        "recipe": "legal",
        "target": "kaggle-t4",
        "device": "NVIDIA T4",
        "settings": {"micro_batch": 8},
        "time": {"update_seconds": predicted, **time},
    }
    (made / "plan.json").write_text(json.dumps({"recipe": "legal", "plan": plan}), "utf-8")
    lines = [json.dumps({"time": 0.0, "session": 1, **event}) for event in events]
    (made / "events.jsonl").write_text("\n".join([*lines, '{"torn']) + "\n", "utf-8")
    return made


def test_measured_over_predicted_without_the_first_line_and_without_waiting(tmp_path: Path) -> None:
    found = calibrated(
        run(tmp_path, SESSION, progress(99.0), progress(6.0), progress(6.6, waiting=0.3), progress(12.0, updates=20))
    )
    assert found.device == "NVIDIA T4" and found.factor == pytest.approx(1.2)
    assert (found.spread.low, found.spread.high) == pytest.approx((1.0, 1.05))
    assert found.input_seconds == pytest.approx(0.3 / 40)
    assert found.spread.source == "40 updates measured in first (legal): 1.20 times the prediction"
    assert found.save_rate is None


def test_what_lies_outside_is_the_twentieth_at_each_end(tmp_path: Path) -> None:
    lines = [progress(5.0) for _ in range(38)]
    found = calibrated(run(tmp_path, SESSION, progress(1.0), *lines, progress(50.0), progress(0.5)))
    assert (found.spread.low, found.factor, found.spread.high) == pytest.approx((1.0, 1.0, 1.0))


def test_lines_of_other_updates_do_not_count(tmp_path: Path) -> None:
    smaller = {**SESSION, "micro_batch": 4}
    elsewhere = {**SESSION, "target": "local"}
    oom = {"event": "oom", "update": 40}
    counted = [progress(5.0)] * 3
    wrong = [progress(50.0)] * 3
    first = progress(1.0)
    found = calibrated(
        run(tmp_path, smaller, first, *wrong, elsewhere, first, *wrong, SESSION, first, *counted, oom, *wrong)
    )
    assert found.factor == pytest.approx(1.0)


def test_a_calibrated_plan_is_compared_without_its_calibration(tmp_path: Path) -> None:
    found = calibrated(run(tmp_path, SESSION, *[progress(6.0)] * 4, predicted=0.6, calibration=1.2))
    assert found.factor == pytest.approx(1.2)


def test_full_saves_tell_the_disks_rate(tmp_path: Path) -> None:
    kinds = {"full": 2.0, "best": 9.0}
    saves = [{"event": "save", "kind": kind, "bytes": 10**8, "seconds": seconds} for kind, seconds in kinds.items()]
    assert calibrated(run(tmp_path, SESSION, *[progress(5.0)] * 4, *saves)).save_rate == pytest.approx(5e7)


@pytest.mark.parametrize(
    ("events", "predicted", "words"),
    [
        ([SESSION, progress(5.0), progress(5.0), progress(5.0)], 0.5, "2 usable progress lines"),
        ([SESSION, *[progress(5.0)] * 9], None, "predicts no time"),
    ],
)
def test_a_run_that_tells_nothing_is_a_wrong_question(
    tmp_path: Path, events: list[dict[str, Any]], predicted: float | None, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        calibrated(run(tmp_path, *events, predicted=predicted))


def test_what_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"plan\.json"):
        calibrated(tmp_path)
    (tmp_path / "plan.json").write_text("[]", "utf-8")
    with pytest.raises(UsageError, match=r"plan\.json does not contain a JSON object"):
        calibrated(tmp_path)
    (tmp_path / "plan.json").write_text("{", "utf-8")
    with pytest.raises(UsageError, match=r"plan\.json cannot be read"):
        calibrated(tmp_path)
