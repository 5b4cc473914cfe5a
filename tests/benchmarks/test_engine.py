"""The calculations of the engine comparison, and a short comparison of the hand-written loop with the engine."""

import pytest
from benchmarks.engine import compare


def make_row(name, update_seconds, **values):
    defaults = {
        "against_plain": 0.0,
        "against_plain_range": (0.0, 0.0),
        "work_against_plain": 0.0,
        "peak_bytes": 2**20,
        "saving_peak_bytes": 2**20,
        "stall_seconds": 1.0,
        "large_stall_seconds": 1.0,
        "save_costs_seconds": 1.0,
        "checkpoint_bytes": 2**20,
        "resume_seconds": 1.0,
    }
    return compare.Row(name=name, update_seconds=update_seconds, **(defaults | values))


def test_stall_is_the_extra_time_of_an_update():
    durations = [1.0] * 46
    durations[0] = 9.0  # one-time work
    for number in (15, 30, 45):
        durations[number - 1] = 3.0
        durations[number] = 1.5
    start_times = [sum(durations[:number]) for number in range(len(durations) + 1)]
    assert compare.stalls(start_times, [15, 30, 45]) == pytest.approx((2.0, 2.5))


def test_goals_are_reached_or_not():
    plain, trainer = make_row("plain", 0.020), make_row("Lightning Trainer", 0.025)
    good = make_row("shoestring", 0.0201, against_plain=0.005, stall_seconds=0.1, large_stall_seconds=0.1)
    assert all(compare.goal_results([plain, good, trainer]).values())
    bad = make_row("shoestring", 0.03, against_plain=0.5, stall_seconds=0.2, large_stall_seconds=0.2)
    assert not any(compare.goal_results([plain, bad, trainer]).values())


@pytest.mark.slow
def test_comparison_of_two_contenders(tmp_path, monkeypatch):
    monkeypatch.setattr(compare, "WARM_UP", 1)
    monkeypatch.setattr(compare, "BLOCK", 1)
    monkeypatch.setattr(compare, "SETS", 1)
    monkeypatch.setattr(compare, "RESUMES", 1)
    monkeypatch.setattr(compare, "UPDATES", 7)
    monkeypatch.setattr(compare, "SAVE_EVERY", 3)
    monkeypatch.setattr(compare, "LARGE", (4, 1024))
    monkeypatch.setattr(compare, "LARGE_UPDATES", 3)
    monkeypatch.setattr(compare, "LARGE_SAVE_EVERY", 1)
    plain, ours = compare.compare(["plain", "shoestring"], 1)
    weights = 4 * (1024 * 1024 + 1024) * 4
    assert 3 * weights < plain.checkpoint_bytes < 3.1 * weights
    assert 3 * weights < ours.checkpoint_bytes < 3.1 * weights
    assert 0 < ours.update_seconds < 30
    assert ours.resume_seconds > ours.update_seconds
    assert "shoestring" in compare.table([plain, ours])
