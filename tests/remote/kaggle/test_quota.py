"""How long a session may be within the week's quota."""

import pytest

from shoestring.remote.kaggle.quota import left_text, session_seconds

HOUR = 3600.0


@pytest.mark.parametrize(
    ("used", "reserved", "total", "seconds"),
    [
        (0, 0, 30, 12 * HOUR),
        (25, 0, 30, 5 * HOUR),
        (20, 2, 30, 4 * HOUR),  # half, because another session uses the quota as well
        (29.4, 0, 30, 2160),
        (29.6, 0, 30, None),
        (31, 0, 30, None),
        (0, 0, 0, 12 * HOUR),  # no total: no limit
    ],
)
def test_session_within_the_quota(used, reserved, total, seconds):
    quota = {"used": used * HOUR, "reserved": reserved * HOUR, "total": total * HOUR}
    value = session_seconds(quota, 12 * HOUR)
    assert value == pytest.approx(seconds, abs=1) if seconds else value is None


def test_more_than_the_quota_was_used():
    assert left_text({"used": 10.0, "reserved": 0.0, "total": 5.0}) == "0 ms of the week's GPU quota are left"
