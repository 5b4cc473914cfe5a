"""The comparison's arithmetic, and the hand-written loop beside the engine in a few updates."""

import pytest
from benchmarks.engine import compare


def row(name, update, **more):
    values = {
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
    return compare.Row(name=name, update_seconds=update, **(values | more))


def test_a_stall_is_what_the_update_with_a_save_takes_longer():
    took = [1.0] * 46
    took[0] = 9.0  # what happens once
    for number in (15, 30, 45):
        took[number - 1] = 3.0
        took[number] = 1.5
    stamps = [sum(took[:number]) for number in range(len(took) + 1)]
    assert compare.stalls(stamps, [15, 30, 45]) == pytest.approx((2.0, 2.5))


def test_goals_are_held_or_not():
    plain, other = row("plain", 0.020), row("Lightning Trainer", 0.025)
    good = row("shoestring", 0.0201, against_plain=0.005, stall_seconds=0.1, large_stall_seconds=0.1)
    assert all(compare.held([plain, good, other]).values())
    bad = row("shoestring", 0.03, against_plain=0.5, stall_seconds=0.2, large_stall_seconds=0.2)
    assert not any(compare.held([plain, bad, other]).values())


def test_two_contenders_side_by_side(tmp_path, monkeypatch):
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
