import pytest

from shoestring.monitor.bound import HELP, Spent, bound, helps, spent, told

WINDOW = {"event": "progress", "seconds": 10.0, "waiting_seconds": 1.0}


def session(*more, windows=10, **fields):
    return [*[{**WINDOW, **fields}] * windows, *more, {"event": "stop", "seconds": 150.0}]


def test_every_second_of_a_session_has_one_cause():
    saved = {"event": "save", "seconds": 9.0, "stall_seconds": 2.0}
    where = spent(session(saved, saved, {"event": "evaluation", "seconds": 16.0}))
    assert where == Spent(input=10, launches=None, arithmetic=90, saving=4, evaluating=16, starting=30)
    assert where.total == 150 and where.share("arithmetic") == pytest.approx(0.6)


def test_what_a_gpu_is_idle_for_and_not_for_data_is_launches():
    assert spent(session(gpu_utilisation=0.6)).launches == pytest.approx(100 * 0.4 - 10)
    assert spent(session(gpu_utilisation=0.95)).launches == 0.0
    half = [*session(gpu_utilisation=0.5, windows=5), *session(gpu_utilisation=None, windows=5)]
    assert spent(half, 150).launches == pytest.approx(100 * 0.5 - 10)  # the samples there are stand for the rest


def test_a_session_that_was_killed_has_no_stop_event_and_no_time_to_start():
    where = spent(session()[:-1])
    assert (where.total, where.starting) == (100, 0)


def test_a_save_that_does_not_say_how_long_it_stood_in_the_way_did_so_all_the_time():
    assert spent(session({"event": "save", "seconds": 9.0})).saving == 9


def of(**seconds):
    return Spent(**{**dict.fromkeys(HELP, 0.0), "arithmetic": 10.0, **seconds})


@pytest.mark.parametrize("cause", ["input", "launches", "saving", "evaluating", "starting"])
def test_the_bound_is_what_takes_the_most(cause):
    assert bound(of(**{cause: 11.0})) == cause
    assert bound(of(**{cause: 9.0})) == "arithmetic"


def test_help_is_for_the_bound_and_for_what_takes_more_than_is_tolerated():
    assert helps(of()) == [("arithmetic", HELP["arithmetic"])]
    assert [cause for cause, _ in helps(of(input=2.0, saving=0.5, launches=20.0))] == ["launches", "input"]


def test_before_any_update_there_is_no_bound():
    where = spent([{"event": "stop", "seconds": 3.0}])
    assert bound(where) is None and helps(where) == []
    assert told(where) == "bound by nothing yet: no update was made"


def test_in_a_line():
    said = told(of(input=30.0))
    assert said.startswith("bound by input: input 75.0%, launches 0.0%, arithmetic 25.0%, saving 0.0%")
    assert "launches among it" not in said and HELP["input"] in said
    assert "launches among it" in told(of(launches=None))


def test_numbers_that_are_none_count_nothing():
    assert spent([{"event": "progress", "seconds": "nan", "waiting_seconds": None}, {"event": "save"}]).total == 0
