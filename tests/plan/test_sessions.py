import pytest

from shoestring.plan.sessions import START_SECONDS, STOP_SECONDS, sessions


def plan(total, update_seconds, session_hours):
    return sessions(
        total_updates=total, updates_per_epoch=10, update_seconds=update_seconds, session_hours=session_hours
    )


def test_without_a_limit_there_is_one_session():
    (only,) = plan(100, 3.6, None)
    assert (only.updates, only.epochs) == (100, 10)
    assert only.hours == pytest.approx((100 * 3.6 / 0.98 + START_SECONDS + STOP_SECONDS) / 3600)


def test_a_long_run_takes_as_many_as_it_needs_and_loses_no_update():
    planned = plan(10_000, 98.0, 12)
    assert [session.updates for session in planned] == [430] * 23 + [110]
    assert all(session.hours <= 12 for session in planned)


def test_a_session_too_short_for_one_update_is_none_at_all():
    assert plan(100, 3600, 1) is None
    assert plan(100, 1, 0.01) is None
