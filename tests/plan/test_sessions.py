"""Sessions, the weeks of a quota, and what goes around training."""

import pytest

from shoestring.plan.sessions import (
    DISK_BYTES_PER_SECOND,
    START_SECONDS,
    STOP_SECONDS,
    sessions,
    shortest_session_seconds,
    weeks,
)


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


def test_a_week_ends_a_session_and_what_is_left_of_it_is_used():
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


def test_a_week_shorter_than_a_session_is_its_limit():
    planned = sessions(total_updates=100, updates_per_epoch=10, update_seconds=98.0, session_hours=12, weekly_hours=1)
    assert all(session.hours <= 1 for session in planned) and len(weeks(planned, 1)) == len(planned)


def test_evaluation_and_the_last_save_take_their_time():
    plain = plan(100, 10.0, None)[0].hours
    (evaluating,) = sessions(
        total_updates=100,
        updates_per_epoch=10,
        update_seconds=10.0,
        session_hours=None,
        evaluation_seconds=98.0,
        save_bytes=int(DISK_BYTES_PER_SECOND * 30),
    )
    assert (evaluating.hours - plain) * 3600 == pytest.approx(10 * 100 + 30)


def test_a_session_that_holds_one_update_and_its_save_is_the_shortest_of_use():
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
