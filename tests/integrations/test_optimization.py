"""The optimizer and the schedule of a trainer continue with the values of their run, or with those of this session."""

import inspect
from types import SimpleNamespace

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR, ReduceLROnPlateau
from transformers import TrainingArguments

from shoestring.integrations.optimization import Optimization, is_independent_of_length

RATIO = "warmup_ratio" if "warmup_ratio" in inspect.signature(TrainingArguments).parameters else "warmup_steps"
"""The argument for a share of the updates, which transformers 5 has merged into the other one."""


def build(make_schedule, lr=0.1, optimizer=torch.optim.SGD, **values):
    parameters = [torch.nn.Parameter(torch.ones(2))]
    built = optimizer(parameters, lr=lr, **values)
    return SimpleNamespace(optimizer=built, lr_scheduler=make_schedule(built))


def step(trainer, *arguments):
    trainer.optimizer.param_groups[0]["params"][0].grad = torch.ones(2)
    trainer.optimizer.step()
    trainer.lr_scheduler.step(*arguments)


def saved_sections(trainer):
    return {"optimizer": trainer.optimizer.state_dict(), "scheduler": trainer.lr_scheduler.state_dict()}


def rates(trainer):
    return [group["lr"] for group in trainer.optimizer.param_groups]


def continued(before, after, updates):
    """Return what changes from the trainer `before`, which is saved, to the trainer `after`, which continues."""
    facts = Optimization(before).facts
    for _ in range(updates):
        step(before, *([1.0] if isinstance(before.lr_scheduler, ReduceLROnPlateau) else []))
    optimization = Optimization(after)
    changes = optimization.changes(facts)
    optimization.load(saved_sections(before), facts, frozenset(changes), update=updates)
    return changes


def test_equal_ones_are_restored():
    def make(optimizer):
        return OneCycleLR(optimizer, max_lr=0.5, total_steps=20)

    before, after = build(make, momentum=0.9), build(make, momentum=0.9)
    assert continued(before, after, 5) == {}
    assert after.optimizer.state_dict()["param_groups"] == before.optimizer.state_dict()["param_groups"]
    assert after.lr_scheduler.state_dict() == before.lr_scheduler.state_dict()


def test_changed_schedule_is_that_of_a_run_which_had_it_from_the_start():
    def make(total):
        return lambda optimizer: OneCycleLR(optimizer, max_lr=0.5, total_steps=total)

    before, after, whole = build(make(20), momentum=0.9), build(make(40), momentum=0.9), build(make(40), momentum=0.9)
    assert any("total_steps: saved with 20, now 40" in line for line in continued(before, after, 5)["schedule"])
    for _ in range(5):
        step(whole)
    for _ in range(30):
        assert after.optimizer.param_groups[0]["momentum"] == whole.optimizer.param_groups[0]["momentum"]
        assert rates(after) == rates(whole)
        step(after)
        step(whole)


def test_learning_rate_that_follows_evaluations_keeps_its_share():
    def make(optimizer):
        return ReduceLROnPlateau(optimizer, factor=0.5, patience=0)

    before, after = build(make), build(make, lr=0.4)
    assert "lr of the optimizer's group 0: saved with 0.1, now 0.4" in continued(before, after, 3)["values"][0]
    assert rates(before) == pytest.approx([0.025]) and rates(after) == pytest.approx([0.1])
    assert after.lr_scheduler.best == 1.0

    before, after = build(lambda optimizer: LambdaLR(optimizer, lambda _: 0.5)), build(make, lr=0.4)
    assert "schedule" in continued(before, after, 3)
    assert rates(after) == [0.4]


def test_another_optimizer_begins_without_moments():
    before = build(lambda optimizer: LambdaLR(optimizer, lambda update: 0.9**update), optimizer=torch.optim.AdamW)
    after = build(lambda optimizer: LambdaLR(optimizer, lambda update: 0.9**update), momentum=0.9)
    changes = continued(before, after, 2)
    assert "saved with torch.optim.adamw.AdamW, now torch.optim.sgd.SGD" in changes["optimizer"][0]
    assert not after.optimizer.state and rates(after) == rates(before)
    step(after)


@pytest.mark.parametrize(
    ("optimizer", "added", "is_foreign"),
    [(torch.optim.AdamW, {}, False), (torch.optim.AdamW, {"later": 1}, False), (torch.optim.SGD, {}, True)],
)
def test_groups_without_facts_show_another_optimizer(optimizer, added, is_foreign):
    trainer = build(lambda built: LambdaLR(built, lambda _: 1.0), optimizer=torch.optim.AdamW)
    trainer.optimizer.param_groups[0].update(added)
    groups = build(lambda built: None, optimizer=optimizer).optimizer.state_dict()["param_groups"]
    assert Optimization(trainer).is_foreign(groups) is is_foreign


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"lr_scheduler_type": "constant"}, True),
        ({"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 3}, True),
        ({"lr_scheduler_type": "constant_with_warmup", RATIO: 0.1}, False),
        ({"lr_scheduler_type": "linear"}, False),
    ],
)
def test_schedules_that_do_not_depend_on_the_length(tmp_path, arguments, expected):
    args = TrainingArguments(output_dir=str(tmp_path), report_to=[], use_cpu=True, **arguments)
    assert is_independent_of_length(args, (20, 40)) is expected
