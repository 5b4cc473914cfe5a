"""Torch schedulers that a recipe returns with its optimizer: stepped by the number of the update, exact on resume."""

import copy

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings
from shoestring.recipe.optimizers import BuiltOptimizer, BuiltScheduler, build_with_schedulers, read_optimizer
from shoestring.techniques.eightbit import placeholder_optimizer
from shoestring.techniques.offload import offloaded_optimizer
from shoestring.training.engine.schedulers import SteppedSchedulers
from shoestring.training.monitor.events import read
from tests.sessions import final_bits, session
from tests.training.test_loop import Line

UPDATES = 12


def warmup(optimizer):
    first = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)
    return lr_scheduler.SequentialLR(optimizer, [first, lr_scheduler.CosineAnnealingLR(optimizer, 9)], [3])


SCHEDULERS = {
    "one cycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=UPDATES),
    "cycles": lambda optimizer: lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, 2, 3, cycle_momentum=False),
    "restarts": lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3),
    "function": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "warmup": warmup,
    "chained": lambda optimizer: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(optimizer, 0.5, 4), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    ),
}


def make(scheduler="one cycle", **fields):
    optimizer = torch.optim.AdamW(nn.Linear(2, 1).parameters(), lr=0.03)
    schedulers = (BuiltScheduler(scheduler=SCHEDULERS[scheduler](optimizer), **fields),)
    return BuiltOptimizer(optimizer=optimizer, schedulers=schedulers)


def rates(optimizer):
    return [(group["lr"], group["betas"]) for group in optimizer.param_groups]


def expected_rates(scheduler):
    """Those of a loop that steps the scheduler after each update."""
    built, values = make(scheduler), []
    for _ in range(UPDATES):
        values.append(rates(built.optimizer))
        built.optimizer.step()
        built.schedulers[0].scheduler.step()
    return values


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_rates_are_a_function_of_the_update(scheduler):
    expected, built = expected_rates(scheduler), make(scheduler)
    stepped = SteppedSchedulers(built, built.optimizer, 4)
    for update in (0, 1, 2, 7, 11, 3):
        stepped.apply(update)
        assert rates(built.optimizer) == expected[update]
    saved = copy.deepcopy(built.optimizer.state_dict())  # of update 3
    resumed = make(scheduler)
    stepped = SteppedSchedulers(resumed, resumed.optimizer, 4)
    resumed.optimizer.load_state_dict(saved)
    stepped.rewind()
    for update in (9, 10):
        stepped.apply(update)
        assert rates(resumed.optimizer) == expected[update]


def test_several_schedulers_are_stepped_in_their_order():
    def build():
        optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.03)
        warmup, decay = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3), lr_scheduler.StepLR(optimizer, 1)
        form = [{"scheduler": warmup, "interval": "step", "frequency": 3}, decay]
        return read_optimizer({"optimizer": optimizer, "lr_scheduler": form}, "optimizer()")

    expected, built = [], build()
    warmup, decay = (item.scheduler for item in built.schedulers)
    for update in range(UPDATES):
        expected.append(built.optimizer.param_groups[0]["lr"])
        built.optimizer.step()
        if update % 5 == 2:  # the third update of an epoch of 5
            warmup.step()
        if update % 5 == 4:
            decay.step()
    built = build()
    stepped = SteppedSchedulers(built, built.optimizer, 5)
    for update in (*range(UPDATES), 4):
        stepped.apply(update)
        assert built.optimizer.param_groups[0]["lr"] == expected[update]


def test_steps_after_epochs_and_of_another_optimizer():
    expected = expected_rates("one cycle")
    built = make(by_epoch=True, every=2)
    stepped = SteppedSchedulers(built, built.optimizer, 4)
    stepped.apply(15)
    assert rates(built.optimizer) == expected[1]
    stepped.apply(16)
    assert rates(built.optimizer) == expected[2]
    for replace in (
        lambda own: placeholder_optimizer(own, "8bit"),
        lambda own: offloaded_optimizer(own, Settings(offload="optimizer")),
    ):
        built = make()
        optimizer = replace(built.optimizer)
        SteppedSchedulers(built, optimizer, 4).apply(5)
        assert optimizer.param_groups[0]["lr"] == expected[5][0][0]


class Scheduled(Line):
    epochs = 4

    def optimizer(self, model):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.03)
        return optimizer, SCHEDULERS["one cycle"](optimizer)


def test_run_is_resumed_and_returns_to_a_checkpoint_with_the_same_bits(tmp_path, monkeypatch):
    session(Scheduled(), tmp_path / "whole", {"save_every_updates": 3})
    whole = final_bits(tmp_path / "whole")
    assert session(Scheduled(), tmp_path / "stopped", {}, stop="SIGTERM", at=5).status == "paused"
    assert session(Scheduled(), tmp_path / "stopped", {}).status == "finished"
    assert final_bits(tmp_path / "stopped") == whole
    step, calls = torch.optim.AdamW.step, []

    def failing_step(self, *arguments):
        calls.append(None)
        if len(calls) == 8:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return step(self, *arguments)

    monkeypatch.setattr(torch.optim.AdamW, "step", failing_step)
    session(Scheduled(), tmp_path / "returned", {"save_every_updates": 3, "optimizer_kernel": "foreach"})
    events = list(read(tmp_path / "returned" / "events.jsonl"))
    assert len([event for event in events if "back_to" in event]) == 1
    recorded = [event["learning_rate"] for event in events if event["event"] == "progress"]
    assert recorded[-1] == expected_rates("one cycle")[11][0][0]

    class Longer(Scheduled):
        epochs = 5

    with pytest.raises(UsageError, match="total_steps=12, but the run has 15 updates"):
        session(Longer(), tmp_path / "longer", {})


class Returning:
    """A recipe whose optimizer() returns something."""

    def __init__(self, make_value, **parts):
        self.optimizer = make_value
        self.__dict__ |= parts


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def returning(form):
    def optimizer(model):
        made = sgd(model)
        return form(made, lr_scheduler.StepLR(made, 2))

    return Returning(optimizer)


@pytest.mark.parametrize(
    ("form", "by_epoch", "every"),
    [
        (lambda made, scheduler: (made, scheduler), False, 1),
        (lambda made, scheduler: ([made], [scheduler]), True, 1),
        (lambda made, scheduler: {"optimizer": made, "lr_scheduler": scheduler}, True, 1),
        (lambda made, scheduler: ([made], [{"scheduler": scheduler, "interval": "step", "frequency": 3}]), False, 3),
    ],
)
def test_forms_with_a_scheduler(form, by_epoch, every):
    built = build_with_schedulers(returning(form), nn.Linear(1, 1))
    (stepped,) = built.schedulers
    assert isinstance(stepped.scheduler, lr_scheduler.StepLR) and (stepped.by_epoch, stepped.every) == (by_epoch, every)


def test_forms_without_a_scheduler():
    for form in (
        lambda made, _: made,
        lambda made, _: [made],
        lambda made, _: {"optimizer": made},
        lambda made, _: ([made], []),
        lambda made, _: (made, None),
    ):
        assert build_with_schedulers(returning(form), nn.Linear(1, 1)).schedulers == ()


@pytest.mark.parametrize(
    ("form", "words"),
    [
        (lambda made, _: [made, made], r"2 optimizers[^~]*stages = \(\"d\", \"g\"\)"),
        (lambda made, scheduler: ([made, made], [scheduler]), "2 optimizers"),
        (lambda made, _: ({"optimizer": made}, {"optimizer": made}), "2 optimizers"),
        (lambda made, _: (made, lr_scheduler.ReduceLROnPlateau(made)), "ReduceLROnPlateau cannot be used: its step"),
        (lambda made, _: (made, lr_scheduler.StepLR(sgd(nn.Linear(1, 1)), 2)), "StepLR that [^~]* another optimizer"),
        (lambda made, _: (made, lr_scheduler.StepLR), "the class StepLR, not an object"),
        (lambda made, _: (made, 0.5), "a float as the scheduler"),
        (
            lambda made, scheduler: {"optimizer": made, "lr_scheduler": {"scheduler": scheduler, "interval": "day"}},
            "day",
        ),
        (lambda made, _: None, "returned None"),
        (lambda made, _: sgd, "returned a function"),
        (lambda made, _: torch.optim.SGD, "the class SGD"),
        (lambda made, _: [], "returned a list"),
        (lambda made, _: {"optimizer": None}, "returned None"),
    ],
)
def test_what_cannot_be_used_is_refused(form, words):
    with pytest.raises(UsageError, match=words):
        build_with_schedulers(returning(form), nn.Linear(1, 1))


def test_schedule_and_scheduler_are_refused():
    recipe = returning(lambda made, scheduler: (made, scheduler))
    recipe.schedule = lambda *_: 1.0
    with pytest.raises(UsageError, match="a schedule and optimizer\\(\\) returned a StepLR"):
        build_with_schedulers(recipe, nn.Linear(1, 1))
