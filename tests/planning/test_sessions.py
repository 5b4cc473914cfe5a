"""Sessions, the weeks of a quota, and the overhead of a session."""

import math

import pytest

from shoestring.base.run_limits import stop_seconds
from shoestring.planning.estimate.span import Span, total
from shoestring.planning.sessions import (
    Work,
    session_parts,
    sessions,
    shortest_session_seconds,
    weeks,
)


def exactly(**seconds):
    return {name: Span.exactly(value) for name, value in seconds.items()}


def make_work(update_seconds, **parts):
    return Work(update=exactly(forward=update_seconds), start=exactly(starting=60), **parts)


def plan_sessions(total_updates, update_seconds, session_hours, weekly_hours=None, max_sessions=math.inf, **parts):
    return sessions(
        make_work(update_seconds, **parts),
        total_updates=total_updates,
        updates_per_epoch=10,
        session_hours=session_hours,
        weekly_hours=weekly_hours,
        max_sessions=max_sessions,
    )


def test_durations_are_read_from_what_was_written():
    work = make_work(3.0, epoch_end=exactly(evaluation=5), saving_share=Span(0.01, 0.0, 0.02))
    assert Work.from_json(work.json()) == work
    for values in ({}, {**work.json(), "update": [{"name": "forward", "seconds": "3"}]}, {**work.json(), "start": 3}):
        with pytest.raises(ValueError, match="duration"):
            Work.from_json(values)


def test_more_sessions_than_wanted_are_not_computed():
    count = len(plan_sessions(10**5, 3.6, 5.0))
    assert count > 5 and plan_sessions(10**5, 3.6, 5.0, max_sessions=count - 1) is None
    assert len(plan_sessions(10**5, 3.6, 5.0, max_sessions=count)) == count


def test_machine_without_a_limit_needs_one_session():
    (session,) = plan_sessions(100, 3.6, None, saving_share=Span.exactly(0.02))
    assert (session.updates, session.epochs) == (100, 10)
    assert session.hours == pytest.approx((100 * 3.6 * 1.02 + 60) / 3600)


def test_long_run_is_divided_without_losing_updates():
    planned = plan_sessions(10_000, 100.0, 12)
    assert [session.updates for session in planned] == [430] * 23 + [110]
    assert all(session.hours <= 12 for session in planned)


def test_session_too_short_for_an_update_gives_none():
    assert plan_sessions(100, 3600, 1) is None
    assert plan_sessions(100, 1, 0.01) is None


def test_sessions_use_the_remainder_of_a_weekly_quota():
    planned = plan_sessions(4000, 100.0, 12, 30)
    assert [round(session.hours, 1) for session in planned[:4]] == [12.0, 12.0, 6.0, 12.0]
    calendar = weeks(planned, 30)
    assert all(week.hours <= 30 for week in calendar)
    assert [week.week for week in calendar] == list(range(1, len(calendar) + 1))
    assert sum(week.sessions for week in calendar) == len(planned)
    assert sum(session.updates for session in planned) == 4000
    assert weeks(planned, None) == []


def test_weekly_quota_shorter_than_a_session_limits_it():
    planned = plan_sessions(100, 100.0, 12, 1)
    assert all(session.hours <= 1 for session in planned) and len(weeks(planned, 1)) == len(planned)


def test_a_session_has_everything_that_it_does_as_parts():
    (session,) = plan_sessions(
        100,
        10.0,
        None,
        first=exactly(answers=7),
        epoch_end=exactly(evaluation=20, answers=3),
        last=exactly(evaluation=40),
        stop=exactly(saving=30),
    )
    seconds = {name: span.seconds for name, span in session.parts.items()}
    assert seconds == {"starting": 60, "answers": 37, "forward": 1000, "evaluation": 240, "saving": 30}
    assert session.hours * 3600 == pytest.approx(sum(seconds.values()))


def test_later_sessions_load_the_checkpoint_and_the_last_one_evaluates_the_test_data():
    planned = plan_sessions(
        600, 100.0, 12, first=exactly(answers=7), restart=exactly(loading=30), last=exactly(evaluation=40)
    )
    names = [set(session.parts) for session in planned]
    assert names == [{"starting", "answers", "forward"}, {"starting", "loading", "forward", "evaluation"}]


def test_an_evaluation_that_does_not_fit_into_the_session_of_the_last_update_has_one_of_its_own():
    hour = plan_sessions(34, 100.0, 1, last=exactly(evaluation=600))
    assert [(session.updates, "evaluation" in session.parts) for session in hour] == [(34, False), (0, True)]


def test_ranges_of_parts_are_those_of_their_durations():
    work = Work(update={"forward": Span(2.0, 1.0, 4.0)}, saving_share=Span(0.1, 0.0, 0.5))
    parts = session_parts(work, 10, 1)
    assert parts == {"forward": Span(20.0, 10.0, 40.0), "saving": Span(2.0, 0.0, 20.0)}
    assert total(parts.values()) == Span(22.0, 10.0, 60.0)


def test_shortest_session_has_one_update_and_its_save():
    parts = {"stop": exactly(saving=10), "restart": exactly(loading=20)}
    seconds = shortest_session_seconds(make_work(500.0, **parts), 10, 3600)
    assert seconds == 60 + 20 + 500 + 10 + stop_seconds(3600)
    for length, expected in ((620, 100), (590, None)):
        planned = plan_sessions(100, 500.0, length / 3600, **parts)
        assert (planned and len(planned)) == expected
