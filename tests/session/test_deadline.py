from shoestring.session.deadline import Deadline, percentile_95


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_without_a_limit_it_is_never_reached():
    deadline = Deadline(None)
    assert deadline.remaining() is None
    assert not deadline.reached()


def test_it_is_reached_before_the_limit_by_what_stopping_takes():
    clock = Clock()
    deadline = Deadline(100, margin_seconds=2, clock=clock)
    for seconds in [1.0] * 99 + [30.0]:
        deadline.observe("update", seconds)
    deadline.observe("save", 7)
    assert deadline.stopping_seconds() == 2 + 1 + 7  # the one slow update is beyond the 95th percentile
    clock.now += 89.9
    assert not deadline.reached()
    clock.now += 0.1
    assert deadline.reached()
    assert deadline.remaining() == 10


def test_what_was_spent_before_counts():
    deadline = Deadline(100, started=Clock.now - 60, clock=Clock())
    assert deadline.remaining() == 40


def test_the_margin_is_a_share_of_the_limit_within_bounds():
    assert Deadline(10).stopping_seconds() == 3
    assert Deadline(1000).stopping_seconds() == 20
    assert Deadline(12 * 3600).stopping_seconds() == 60


def test_measuring_observes_how_long_its_body_took():
    clock = Clock()
    deadline = Deadline(1000, margin_seconds=0, clock=clock)
    with deadline.measure("update") as measured:
        clock.now += 3
    assert measured.seconds == 3
    assert deadline.stopping_seconds() == 3


def test_the_percentile_is_one_that_was_seen():
    assert percentile_95([]) == 0
    assert percentile_95([5]) == 5
    assert percentile_95(range(1, 101)) == 96
