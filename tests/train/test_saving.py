import pytest

from shoestring.settings import Settings
from shoestring.train.saving import SavePolicy


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def due_at(policy, clock, until):
    times = []
    while clock.now < until:
        clock.now += 1
        if policy.due(update=1):
            times.append(clock.now)
            policy.saved(seconds=clock.cost)
    return times


@pytest.mark.parametrize(("cost", "between"), [(1.0, 50), (0.2, 10), (60.0, 600)])
def test_saving_costs_at_most_two_per_cent_and_a_kill_at_most_ten_minutes(cost, between):
    clock = Clock()
    clock.cost = cost
    policy = SavePolicy(Settings(), clock)
    policy.saved(seconds=cost)
    assert due_at(policy, clock, 2500)[:2] == [between, 2 * between]


def test_seconds_that_are_set_hold_whatever_a_save_costs():
    clock = Clock()
    clock.cost = 5
    policy = SavePolicy(Settings(save_every_seconds=30.0), clock)
    policy.saved(seconds=5)
    assert due_at(policy, clock, 90) == [30, 60, 90]


def test_updates_that_are_set_come_on_top():
    policy = SavePolicy(Settings(save_every_updates=4), Clock())
    assert [update for update in range(1, 13) if policy.due(update)] == [4, 8, 12]
