"""When saves start, and that a kill at any moment costs at most one interval."""

import random
from itertools import pairwise

import pytest

from shoestring.base.settings import Settings
from shoestring.training.save_policy import SavePolicy


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Training:
    """Simulates the training loop on a clock of its own: updates, and saves that are written in the background."""

    def __init__(self, settings, *, writing, update=lambda: 1.0, cost=0.0):
        self.clock = Clock()
        self.policy = SavePolicy(settings, self.clock)
        self.writing, self.update, self.cost = writing, update, cost
        self.updates, self.saved, self.save_starts = 0, (0.0, 0), []
        self.save_end, self.stalled_seconds, self.pending = None, 0.0, (0.0, 0)
        self.lost_seconds, self.lost_updates = 0.0, 0

    def training_seconds(self):
        return self.clock.now - self.stalled_seconds

    def finish_pending(self):
        """Report the pending save to the policy, once it is complete."""
        if self.save_end is not None and self.clock.now >= self.save_end:
            self.save_end, self.saved = None, self.pending
            self.policy.save_completed(cost=self.cost, write_seconds=self.write_seconds)

    def wait(self):
        seconds = max(0.0, self.save_end - self.clock.now)
        self.clock.now += seconds
        self.stalled_seconds += seconds
        self.policy.add_stall(seconds)
        self.finish_pending()

    def step(self):
        before = self.clock.now
        self.clock.now += self.update()
        # The worst moment for a kill: just before the end of the update, or of the pending save.
        completes = self.save_end is not None and before < self.save_end <= self.clock.now
        saved = self.pending if completes else self.saved
        until = min(self.clock.now, self.save_end) if saved is not self.saved else self.clock.now
        self.lost_seconds = max(self.lost_seconds, until - self.stalled_seconds - self.saved[0])
        self.lost_updates = max(self.lost_updates, self.updates + 1 - self.saved[1])
        self.updates += 1
        if self.save_end is not None and (self.clock.now >= self.save_end or self.policy.must_wait(self.updates)):
            self.wait()
        if self.policy.is_due(self.updates):
            if self.save_end is not None:
                self.wait()
            self.policy.save_started(self.updates)
            self.pending, self.write_seconds = (self.training_seconds(), self.updates), self.writing()
            self.save_end = self.clock.now + self.write_seconds
            self.save_starts.append((self.clock.now, self.updates))
            if self.policy.must_wait(self.updates):
                self.wait()

    def run(self, updates):
        for _ in range(updates):
            self.step()
        return self


@pytest.mark.parametrize("writing", [0.1, 3.0, 17.0, 40.0, 300.0])
@pytest.mark.parametrize("limit", [10.0, 60.0])
def test_kill_costs_at_most_the_requested_seconds(limit, writing):
    random.seed(0)
    training = Training(
        Settings(save_every_seconds=limit), writing=lambda: writing * random.uniform(0.3, 3), update=lambda: 1.0
    ).run(2000)
    assert training.lost_seconds <= limit + 1e-6
    assert len(training.save_starts) >= 2000 / limit - 1


@pytest.mark.parametrize("writing", [0.01, 0.8, 3.0, 30.0])
@pytest.mark.parametrize("limit", [1, 2, 7, 40])
def test_kill_costs_at_most_the_requested_updates(limit, writing):
    random.seed(0)
    training = Training(
        Settings(save_every_updates=limit),
        writing=lambda: writing * random.uniform(0.3, 3),
        update=lambda: random.uniform(0.5, 2),
    ).run(1000)
    assert training.lost_updates <= limit
    assert training.training_seconds() == pytest.approx(training.clock.now - training.stalled_seconds)


def test_short_save_starts_late_without_a_stall():
    training = Training(Settings(save_every_seconds=60.0), writing=lambda: 4.0).run(1000)
    assert training.stalled_seconds == 0
    spacing = {after - before for (before, _), (after, _) in pairwise(training.save_starts[1:])}
    assert spacing == {54.0}  # 60, minus 4 for writing and the two updates during which the save may start and end


def test_save_every_updates_saves_late_without_a_stall():
    training = Training(Settings(save_every_updates=40), writing=lambda: 4.0, cost=5.0).run(400)
    assert training.stalled_seconds == 0
    updates = [update for _, update in training.save_starts]
    assert updates[0] == 20  # the write time is unknown yet
    assert {after - before for before, after in pairwise(updates)} == {34}


@pytest.mark.parametrize(("cost", "writing", "between"), [(1, 0.5, 50), (0.2, 3, 10), (1, 2, 50), (60, 100, 498)])
def test_default_costs_two_percent_and_ten_minutes(cost, writing, between):
    training = Training(Settings(), writing=lambda: writing, cost=cost).run(3000)
    first, second = training.save_starts[1:3]
    assert second[0] - first[0] == between
    assert training.lost_seconds <= 600
    assert training.stalled_seconds == 0


def test_training_waits_for_slow_writing():
    training = Training(Settings(), writing=lambda: 450.0, cost=30).run(3000)
    assert training.lost_seconds <= 600
    assert 0 < training.stalled_seconds <= 0.5 * training.clock.now


def test_update_longer_than_the_interval_is_saved():
    training = Training(Settings(save_every_seconds=5.0), writing=lambda: 2.0, update=lambda: 30.0).run(20)
    assert training.lost_updates == 1


def test_evaluation_does_not_count_as_a_long_update():
    clock = Clock()
    policy = SavePolicy(Settings(save_every_seconds=100.0), clock)
    policy.save_completed(cost=0, write_seconds=1.0)
    clock.now = 1.0
    assert not policy.is_due(1)
    clock.now = 40.0  # including 39 s of evaluation
    assert not policy.is_due(1)
    clock.now = 50.0
    assert not policy.is_due(2)
    clock.now = 79.0
    assert policy.is_due(2)  # 21 s are left: 1 s for writing and two updates of 10 s, before and after


def test_failed_saves_are_retried_with_growing_delay():
    clock = Clock()
    policy = SavePolicy(Settings(save_every_seconds=1.0), clock)
    times, update = [], 0
    while clock.now < 100:
        clock.now, update = clock.now + 1, update + 1
        if policy.is_due(update):
            times.append(clock.now)
            policy.save_started(update)
            policy.save_failed()
    assert times == [1, 11, 31, 71]
    policy.save_completed(cost=0)
    policy.save_failed()
    clock.now += 10
    assert policy.is_due(update + 1)


def test_failed_save_is_retried_soon_by_default():
    clock = Clock()
    policy = SavePolicy(Settings(), clock)
    clock.now = 400.0
    assert policy.is_due(4)
    policy.save_started(4)
    policy.save_failed()
    clock.now = 411.0
    assert policy.is_due(5)
