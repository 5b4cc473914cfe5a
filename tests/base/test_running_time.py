from shoestring.base import running_time
from shoestring.base.running_time import RunningTime


def test_time_in_which_the_process_was_stopped_does_not_count(monkeypatch):
    seconds = 50.0
    monkeypatch.setattr(running_time.time, "monotonic", lambda: seconds)
    clock = RunningTime()
    for step, sum_of_steps in ((0.5, 0.5), (0.25, 0.75), (3600.0, 1.75), (0.25, 2.0)):
        seconds += step
        assert clock() == sum_of_steps
