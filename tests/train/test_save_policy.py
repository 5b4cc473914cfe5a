"""When saves begin, and that a kill at any instant costs at most one interval."""

import random
from itertools import pairwise

import pytest

from shoestring.settings import Settings
from shoestring.train.interval import SavePolicy


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Training:
    """Training as the loop does it, on a clock of its own: updates, and saves that are written beside them."""

    def __init__(self, settings, *, writing, update=lambda: 1.0, cost=0.0):
        self.clock = Clock()
        self.policy = SavePolicy(settings, self.clock)
        self.writing, self.update, self.cost = writing, update, cost
        self.done, self.whole, self.begun = 0, (0.0, 0), []
        self.ends, self.stood, self.state = None, 0.0, (0.0, 0)
        self.lost_seconds, self.lost_updates = 0.0, 0

    def trained(self):
        return self.clock.now - self.stood

    def learn(self):
        """What became of the save under way, once it has ended."""
        if self.ends is not None and self.clock.now >= self.ends:
            self.ends, self.whole = None, self.state
            self.policy.saved(cost=self.cost, writing=self.took)

    def wait(self):
        seconds = max(0.0, self.ends - self.clock.now)
        self.clock.now += seconds
        self.stood += seconds
        self.policy.stood(seconds)
        self.learn()

    def step(self):
        before = self.clock.now
        self.clock.now += self.update()
        # The worst instant: just before the update, or the save under way, has ended.
        whole = self.state if self.ends is not None and before < self.ends <= self.clock.now else self.whole
        until = min(self.clock.now, self.ends) if whole is not self.whole else self.clock.now
        self.lost_seconds = max(self.lost_seconds, until - self.stood - self.whole[0])
        self.lost_updates = max(self.lost_updates, self.done + 1 - self.whole[1])
        self.done += 1
        if self.ends is not None and (self.clock.now >= self.ends or self.policy.must_wait(self.done)):
            self.wait()
        if self.policy.due(self.done):
            if self.ends is not None:
                self.wait()
            self.policy.began(self.done)
            self.state, self.took = (self.trained(), self.done), self.writing()
            self.ends = self.clock.now + self.took
            self.begun.append((self.clock.now, self.done))
            if self.policy.must_wait(self.done):
                self.wait()

    def run(self, updates):
        for _ in range(updates):
            self.step()
        return self


@pytest.mark.parametrize("writing", [0.1, 3.0, 17.0, 40.0, 300.0])
@pytest.mark.parametrize("most", [10.0, 60.0])
def test_a_kill_costs_at_most_the_seconds_that_were_asked_for(most, writing):
    random.seed(0)
    training = Training(
        Settings(save_every_seconds=most), writing=lambda: writing * random.uniform(0.3, 3), update=lambda: 1.0
    ).run(2000)
    assert training.lost_seconds <= most + 1e-6
    assert len(training.begun) >= 2000 / most - 1


@pytest.mark.parametrize("writing", [0.01, 0.8, 3.0, 30.0])
@pytest.mark.parametrize("most", [1, 2, 7, 40])
def test_a_kill_costs_at_most_the_updates_that_were_asked_for(most, writing):
    random.seed(0)
    training = Training(
        Settings(save_every_updates=most),
        writing=lambda: writing * random.uniform(0.3, 3),
        update=lambda: random.uniform(0.5, 2),
    ).run(1000)
    assert training.lost_updates <= most
    assert training.trained() == pytest.approx(training.clock.now - training.stood)


def test_a_save_that_takes_little_begins_late_in_the_interval_and_none_waits_for_it():
    training = Training(Settings(save_every_seconds=60.0), writing=lambda: 4.0).run(1000)
    assert training.stood == 0
    spacing = {after - before for (before, _), (after, _) in pairwise(training.begun[1:])}
    assert spacing == {54.0}  # 60, less 4 of writing and the two updates that it may begin and end in


def test_updates_that_are_set_come_as_late_as_keeps_training_from_waiting():
    training = Training(Settings(save_every_updates=40), writing=lambda: 4.0, cost=5.0).run(400)
    assert training.stood == 0
    updates = [update for _, update in training.begun]
    assert updates[0] == 20  # how long writing takes is not known yet
    assert {after - before for before, after in pairwise(updates)} == {34}


@pytest.mark.parametrize(("cost", "writing", "between"), [(1, 0.5, 50), (0.2, 3, 10), (1, 2, 50), (60, 100, 498)])
def test_saving_costs_at_most_two_per_cent_and_a_kill_at_most_ten_minutes(cost, writing, between):
    training = Training(Settings(), writing=lambda: writing, cost=cost).run(3000)
    first, second = training.begun[1:3]
    assert second[0] - first[0] == between
    assert training.lost_seconds <= 600
    assert training.stood == 0


def test_where_writing_takes_longer_than_half_of_the_interval_training_waits():
    training = Training(Settings(), writing=lambda: 450.0, cost=30).run(3000)
    assert training.lost_seconds <= 600
    assert 0 < training.stood <= 0.5 * training.clock.now


def test_an_update_longer_than_the_interval_is_saved_before_the_next():
    training = Training(Settings(save_every_seconds=5.0), writing=lambda: 2.0, update=lambda: 30.0).run(20)
    assert training.lost_updates == 1


def test_an_evaluation_is_not_taken_for_a_long_update():
    clock = Clock()
    policy = SavePolicy(Settings(save_every_seconds=100.0), clock)
    policy.saved(cost=0, writing=1.0)
    clock.now = 1.0
    assert not policy.due(1)
    clock.now = 40.0  # 39 of them evaluating
    assert not policy.due(1)
    clock.now = 50.0
    assert not policy.due(2)
    clock.now = 79.0
    assert policy.due(2)  # 21 left, of which 1 is for writing and two updates of 10 may come before and after


def test_what_could_not_be_written_is_tried_again_more_and_more_seldom():
    clock = Clock()
    policy = SavePolicy(Settings(save_every_seconds=1.0), clock)
    times, update = [], 0
    while clock.now < 100:
        clock.now, update = clock.now + 1, update + 1
        if policy.due(update):
            times.append(clock.now)
            policy.began(update)
            policy.failed()
    assert times == [1, 11, 31, 71]
    policy.saved(cost=0)
    policy.failed()
    clock.now += 10
    assert policy.due(update + 1)


def test_without_settings_too_it_is_tried_again_soon_and_not_after_a_whole_interval():
    clock = Clock()
    policy = SavePolicy(Settings(), clock)
    clock.now = 400.0
    assert policy.due(4)
    policy.began(4)
    policy.failed()
    clock.now = 411.0
    assert policy.due(5)
