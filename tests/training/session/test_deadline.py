from shoestring.training.session.deadline import Deadline, percentile_95


class FakeClock:
    now = 100.0

    def __call__(self):
        return self.now


def test_deadline_without_limit_is_never_reached():
    deadline = Deadline(None)
    assert deadline.remaining() is None
    assert not deadline.reached()


def test_deadline_reserves_the_time_to_stop():
    clock = FakeClock()
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


def test_time_before_construction_counts():
    deadline = Deadline(100, started=FakeClock.now - 60, clock=FakeClock())
    assert deadline.remaining() == 40


def test_default_margin_is_a_bounded_share_of_limit():
    assert Deadline(10).stopping_seconds() == 3
    assert Deadline(1000).stopping_seconds() == 20
    assert Deadline(12 * 3600).stopping_seconds() == 60


def test_reserve_leaves_half_of_the_remaining_time():
    clock = FakeClock()
    deadline = Deadline(100, clock=clock)
    deadline.reserve(20)
    deadline.reserve(5)
    assert deadline.stopping_seconds() == 20
    clock.now += 90
    deadline.reserve(70)
    assert deadline.stopping_seconds() == 20
    slow_start = Deadline(30, started=FakeClock.now - 20, clock=FakeClock())
    slow_start.reserve(20)
    assert slow_start.stopping_seconds() == 5


def test_measure_records_the_duration_of_its_body():
    clock = FakeClock()
    deadline = Deadline(1000, margin_seconds=0, clock=clock)
    with deadline.measure("update") as measurement:
        clock.now += 3
    assert measurement.seconds == 3
    assert deadline.stopping_seconds() == 3


def test_percentile_is_an_observed_duration():
    assert percentile_95([]) == 0
    assert percentile_95([5]) == 5
    assert percentile_95(range(1, 101)) == 96


def test_save_of_an_earlier_session_leaves_time_for_training():
    deadline = Deadline(100, margin_seconds=1, clock=FakeClock())
    deadline.expect("update", 0.5)
    deadline.expect("save", 3600)  # the machine was stopped meanwhile
    assert 30 < deadline.stopping_seconds() < 40 and not deadline.reached()
