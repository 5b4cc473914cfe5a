"""Sessions, the weeks of a quota, and the overhead of a session."""

import pytest

from shoestring.plan.sessions import (
    DISK_BYTES_PER_SECOND,
    START_SECONDS,
    STOP_SECONDS,
    sessions,
    shortest_session_seconds,
    weeks,
)


def plan_sessions(total, update_seconds, session_hours):
    return sessions(
        total_updates=total, updates_per_epoch=10, update_seconds=update_seconds, session_hours=session_hours
    )


def test_machine_without_a_limit_needs_one_session():
    (session,) = plan_sessions(100, 3.6, None)
    assert (session.updates, session.epochs) == (100, 10)
    assert session.hours == pytest.approx((100 * 3.6 / 0.98 + START_SECONDS + STOP_SECONDS) / 3600)


def test_long_run_is_divided_without_losing_updates():
    planned = plan_sessions(10_000, 98.0, 12)
    assert [session.updates for session in planned] == [430] * 23 + [110]
    assert all(session.hours <= 12 for session in planned)


def test_session_too_short_for_an_update_gives_none():
    assert plan_sessions(100, 3600, 1) is None
    assert plan_sessions(100, 1, 0.01) is None


def test_sessions_use_the_remainder_of_a_weekly_quota():
    planned = sessions(
        total_updates=4000,
        updates_per_epoch=10,
        update_seconds=98.0,
        session_hours=12,
        weekly_hours=30,
    )
    assert [round(session.hours, 1) for session in planned[:4]] == [12.0, 12.0, 6.0, 12.0]
    calendar = weeks(planned, 30)
    assert all(week.hours <= 30 for week in calendar)
    assert [week.week for week in calendar] == list(range(1, len(calendar) + 1))
    assert sum(week.sessions for week in calendar) == len(planned)
    assert sum(session.updates for session in planned) == 4000
    assert weeks(planned, None) == []


def test_weekly_quota_shorter_than_a_session_limits_it():
    planned = sessions(total_updates=100, updates_per_epoch=10, update_seconds=98.0, session_hours=12, weekly_hours=1)
    assert all(session.hours <= 1 for session in planned) and len(weeks(planned, 1)) == len(planned)


def test_evaluation_and_last_save_add_their_time():
    hours_without = plan_sessions(100, 10.0, None)[0].hours
    (session,) = sessions(
        total_updates=100,
        updates_per_epoch=10,
        update_seconds=10.0,
        session_hours=None,
        evaluation_seconds=98.0,
        save_bytes=int(DISK_BYTES_PER_SECOND * 30),
    )
    assert (session.hours - hours_without) * 3600 == pytest.approx(10 * 100 + 30)


def test_shortest_session_has_one_update_and_its_save():
    seconds = shortest_session_seconds(500.0, 10**9)
    for length, expected in ((seconds + 1, 100), (seconds - 1, None)):
        planned = sessions(
            total_updates=100,
            updates_per_epoch=10,
            update_seconds=500.0,
            session_hours=length / 3600,
            save_bytes=10**9,
        )
        assert (planned and len(planned)) == expected
