import pytest

from shoestring.answers.watch.status import status


@pytest.mark.parametrize(
    ("stored", "is_holder_alive", "seconds", "gap", "expected"),
    [
        ("running", True, 9e9, 1, "running"),
        ("running", False, 0, 1, "killed"),
        ("running", None, 100, 1, "running"),
        ("running", None, 130, 1, "silent"),
        ("running", None, 130, 100, "running"),
        ("running", None, 310, 100, "silent"),
        ("paused", False, 9e9, 1, "paused"),
        ("finished", None, 9e9, 1, "finished"),
        ("", True, 0, 0, "starting"),
        ("", None, 0, 0, "unknown"),
    ],
)
def test_status(stored, is_holder_alive, seconds, gap, expected):
    state = {"status": stored} if stored else {}
    assert expected == status(state, is_holder_alive=is_holder_alive, seconds_since_event=seconds, longest_gap=gap)
