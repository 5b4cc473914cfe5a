"""How far a session and a week come, when all is done, and which target is the cheapest that is done in time."""

import shlex

import pytest

from shoestring.base.settings import Settings
from shoestring.hardware import targets
from shoestring.planning.answers import answers, calendar_hours
from shoestring.planning.comparison import compare
from shoestring.planning.counts import Counts
from shoestring.planning.estimate.span import Span
from shoestring.planning.proposals.proposal import Proposal
from shoestring.planning.schedule import make_schedule
from shoestring.planning.sessions import Work, sessions, weeks
from shoestring.recipe.finding import choose

COUNTS = Counts(samples={"train": 1000}, per_epoch=1000, total=10_000, epochs=10)


def plan_sessions(update_seconds, session_hours, weekly_hours, counts=COUNTS):
    return sessions(
        Work(update={"forward": Span.exactly(update_seconds)}),
        total_updates=counts.total,
        updates_per_epoch=counts.per_epoch,
        session_hours=session_hours,
        weekly_hours=weekly_hours,
    )


def ask(update_seconds, *, on="kaggle-t4", **values):
    target = targets.find(on)
    hours = (target.platform.session_hours, target.platform.weekly_gpu_hours) if target.platform else (None, None)
    planned = plan_sessions(update_seconds, *hours)
    loaded, settings = choose("legal", values)
    result = answers(loaded, settings, target, counts=COUNTS, sessions=planned, weeks=weeks(planned, hours[1]))
    return {answer.question: (answer.answer, shlex.split(answer.command)) for answer in result}


def test_a_run_of_one_session_is_done_in_it():
    result = ask(1.0)
    assert result["in one session"] == result["in one week"]
    assert result["in one session"][0] == "all of it, in 2 h 47 min"
    assert result["all of it"][0] == "done 2 h 47 min after the start at the latest"


def test_a_long_run_has_the_part_that_a_session_and_a_week_finish():
    result = ask(20.0)  # 55.6 h: 2,157 updates in a session of 12 h
    text, command = result["in one session"]
    assert text == "2,157 of 10,000 updates, 2.1 of 10 epochs" and "epochs=2" in command
    text, command = result["in one week"]
    assert text.endswith("5.3 of 10 epochs") and "epochs=5" in command
    text, command = result["all of it"]
    assert text.startswith("done in the last of 2 weeks, 193 h")
    assert command[:4] == ["shoestring", "kaggle", "start", "legal"]


def test_less_than_an_epoch_is_a_number_of_updates():
    assert "max_updates=431" in ask(100.0)["in one session"][1]


def test_commands_of_data_that_are_not_here_ask_for_them():
    result = ask(20.0, rows=1000)
    for command in (result["in one session"][1], result["all of it"][1]):
        assert command[command.index("--data") + 1] == "OWNER/DATASET" and "rows=1000" in command


def test_what_makes_several_sessions_one_is_proposed():
    loaded, settings = choose("legal", {})
    work = Work(update={"forward": Span.exactly(5.0)})  # 13.9 h

    def ask_with(**proposed):
        proposals = [
            Proposal(name=name, values={name: 8}, changes_learning="rank" in name, fits=True, update_seconds=seconds)
            for name, seconds in proposed.items()
        ]
        schedule = make_schedule(
            loaded,
            settings,
            targets.find("kaggle-t4"),
            counts=COUNTS,
            work=work,
            with_commands=True,
            update_seconds=10.0,  # a measured plan: its update takes half of what was predicted
            proposed=proposals,
        )
        assert schedule.answers[-1].question == "all of it"
        return {answer.question: answer for answer in schedule.answers}

    answer = ask_with(lora_rank=4.0, seq_len=8.0, crop=8.1)["all in one session"]
    assert answer.answer == "seq_len (--set seq_len=8): at most 11 h 07 min, with the same training result"
    assert "seq_len=8" in answer.command
    answer = ask_with(lora_rank=4.0, seq_len=9.0)["all in one session"]
    assert answer.answer.endswith("at most 5 h 33 min, which changes the training result")
    assert "all in one session" not in ask_with(seq_len=9.0, crop=11.0)


def test_a_target_without_a_platform_has_no_week():
    result = ask(20.0, on="t4")
    assert list(result) == ["in one session", "all of it"]
    assert result["all of it"][1][:3] == ["shoestring", "train", "legal"]


def test_weeks_of_waiting_count_until_the_end():
    planned = plan_sessions(20.0, 12, 30)
    calendar = weeks(planned, 30)
    assert calendar_hours(planned, calendar) == 168 + calendar[1].hours
    assert calendar_hours(planned, []) == pytest.approx(sum(session.hours for session in planned))


@pytest.mark.slow
def test_the_cheapest_target_that_is_done_in_time():
    loaded, _ = choose("temporal", {"rows": 500_000})
    names = ["rtx4090", "kaggle-t4", "h100", "t4"]
    comparison = compare(loaded, [targets.find(name) for name in names], Settings())
    rented, free, fast, unpriced = comparison.plans
    assert comparison.cheapest is free and unpriced.cost_usd is None

    def cheapest(hours):
        return type(comparison)(plans=comparison.plans, by_hours=hours).cheapest

    in_time = min((rented, fast), key=lambda plan: plan.calendar_hours)
    assert in_time.calendar_hours < free.calendar_hours
    assert cheapest(free.calendar_hours) is free
    assert cheapest(in_time.calendar_hours) is in_time
    assert cheapest(0.001) is None
