import pytest

from shoestring.training.monitor.speed import Speed


def test_unknown_until_a_second_measurement():
    speed = Speed()
    assert speed.samples_per_second() is None and speed.seconds_for(1) is None and speed.update_seconds() is None
    speed.add(updates=1, samples=32, seconds=30.0)
    assert speed.samples_per_second() is None
    speed.add(updates=2, samples=64, seconds=4.0)
    assert speed.samples_per_second() == pytest.approx(16)
    assert speed.seconds_for(10) == pytest.approx(20)
    assert speed.update_seconds() == pytest.approx(2)


def test_old_measurements_lose_weight():
    speed = Speed(memory_seconds=10)
    for seconds in (1.0, *[1.0] * 100, *[2.0] * 50):
        speed.add(updates=1, samples=10, seconds=seconds)
    assert speed.samples_per_second() == pytest.approx(5, rel=0.01)


def test_speed_does_not_depend_on_measurement_length():
    coarse, fine = Speed(), Speed()
    for _ in range(40):
        coarse.add(updates=10, samples=100, seconds=5.0)
        for _ in range(10):
            fine.add(updates=1, samples=10, seconds=0.5)
    assert coarse.seconds_for(100) == pytest.approx(fine.seconds_for(100))


def test_remaining_time_includes_saves_and_evaluations():
    speed = Speed()
    speed.add(updates=1, samples=1, seconds=1.0, other_seconds=100.0)
    for number in range(10):
        speed.add(updates=1, samples=1, seconds=1.0, other_seconds=5.0 if number == 3 else 0.0)
    assert speed.seconds_for(20) == pytest.approx(30)
    assert speed.samples_per_second() == pytest.approx(1)
