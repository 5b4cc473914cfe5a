"""A resumed run learns with the arguments, the model and the data of its start, or with others on purpose."""

import os
import shutil
import signal
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from transformers import DataCollatorWithPadding, PretrainedConfig, Trainer, TrainerCallback, TrainingArguments

from shoestring.base.errors import UsageError
from shoestring.integrations.state import LibraryState
from shoestring.integrations.trainer import surviving
from shoestring.training.monitor.events import read

STOP_AT, UPDATES = 3, 8
SAMPLES = [{"x": torch.full((2,), index / 16), "y": torch.tensor(index % 3 - 1.0)} for index in range(16)]


class Model(nn.Module):
    def __init__(self, dropout=0.1, **config):
        super().__init__()
        self.config = PretrainedConfig(**config)
        torch.manual_seed(1)
        self.layers = nn.Sequential(nn.Linear(2, 4), nn.Dropout(dropout), nn.Linear(4, 1))

    def forward(self, x, y):
        return {"loss": (self.layers(x).squeeze(-1) - y).square().mean()}


@dataclass
class Arguments(TrainingArguments):
    """Those of a class that Shoestring does not know, as TRL's are."""

    beta: float = 0.1
    log_completions: bool = False


@dataclass
class Collator:
    scale: float = 1.0
    calls: int = 0

    def __call__(self, samples):
        self.calls += 1
        return {name: torch.stack([sample[name] for sample in samples]) * self.scale for name in ("x", "y")}


class Stop(TrainerCallback):
    def __init__(self, update):
        self.update = update

    def on_step_end(self, args, state, control, **_):
        if state.global_step == self.update:
            os.kill(os.getpid(), signal.SIGTERM)


class Rates(TrainerCallback):
    """The values of the optimizer's groups in each update."""

    def __init__(self):
        self.groups = {}

    def on_pre_optimizer_step(self, args, state, control, optimizer=None, **_):
        self.groups[state.global_step] = [{**group, "params": None} for group in optimizer.param_groups]

    @property
    def rates(self):
        return {update: [float(group["lr"]) for group in groups] for update, groups in self.groups.items()}


def train(run, *, stop_at=None, model=Model, samples=SAMPLES, collator=None, make_optimizers=None, loss=None,
          callbacks=(), options=None, **arguments):  # fmt: skip
    """Train one session; return the recorded values and the weights."""
    defaults = {
        "output_dir": str(run.parent / "own"), "per_device_train_batch_size": 4, "gradient_accumulation_steps": 1,
        "max_steps": UPDATES, "learning_rate": 1e-2, "report_to": [], "use_cpu": True, "save_strategy": "no",
        "remove_unused_columns": False,
    }  # fmt: skip
    rates, model = Rates(), model()
    with surviving(run, exit_when_paused=False, **(options or {})) as survive:
        trainer = survive(Trainer)(
            model=model, args=Arguments(**{**defaults, **arguments}), train_dataset=samples,
            data_collator=collator or Collator(), callbacks=[rates, *callbacks, *([Stop(stop_at)] if stop_at else [])],
            optimizers=make_optimizers(model) if make_optimizers else (None, None), compute_loss_func=loss,
        )  # fmt: skip
        trainer.train()
    return rates, torch.cat([weight.flatten() for weight in model.state_dict().values()])


def notes(run):
    return [event["message"] for event in read(run / "events.jsonl") if event["event"] == "note"]


@pytest.fixture(scope="module")
def paused(tmp_path_factory):
    run = tmp_path_factory.mktemp("paused") / "run"
    train(run, stop_at=STOP_AT)
    return run


@pytest.fixture
def run(paused, tmp_path):
    shutil.copytree(paused, tmp_path / "run")
    return tmp_path / "run"


CHANGED = {
    "learning_rate": 2e-2, "lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"lr_end": 1e-4}, "warmup_steps": 2,
    "max_steps": 12, "weight_decay": 0.3, "adam_beta1": 0.8, "adam_beta2": 0.9, "adam_epsilon": 1e-4, "optim": "sgd",
    "optim_args": "momentum=0.5", "max_grad_norm": 0.1, "label_smoothing_factor": 0.1,
    "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "seed": 7, "data_seed": 7,
    "dataloader_drop_last": True, "neftune_noise_alpha": 5, "bf16": True, "tf32": False,
    "accelerator_config": {"split_batches": True}, "beta": 0.2,
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGED)
def test_changed_argument_is_refused_by_name(run, name):
    with pytest.raises(UsageError, match="bit for bit") as error:
        train(run, **{name: CHANGED[name]})
    (problem,) = [problem for problem in error.value.problems if problem.startswith(name)]
    value = next(iter(CHANGED[name].values())) if isinstance(CHANGED[name], dict) else CHANGED[name]
    assert "saved with" in problem and str(value) in problem
    assert len(problem.partition("; ")[2]) > 20  # what would happen
    assert ("extend=True" if name == "max_steps" else "allow_inexact=True") in error.value.hint


def test_all_changes_are_in_one_error(run):
    with pytest.raises(UsageError) as error:
        train(run, learning_rate=1.0, beta=0.3, max_steps=-1, num_train_epochs=4)
    assert [problem.partition(":")[0] for problem in error.value.problems] == ["beta", "learning_rate", "max_steps"]


def other_optimizers(weight_decay=0.0, factor=0.9):
    def make(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=weight_decay)
        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: factor**update)

    return make


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"model": lambda: Model(dropout=0.2)}, "model.modules: "),
        ({"model": lambda: Model(router_aux_loss_coef=0.1)}, "model.router_aux_loss_coef: saved with None, now 0.1"),
        ({"samples": SAMPLES[:15]}, "data.samples: saved with 16, now 15"),
        ({"samples": SAMPLES[::-1]}, "data.content: "),
        ({"collator": Collator(scale=2.0)}, "data_collator.scale: saved with 1.0, now 2.0"),
        ({"collator": DataCollatorWithPadding}, "data_collator"),
        ({"loss": lambda outputs, _labels, **_: outputs["loss"] * 2}, "compute_loss_func: saved with None"),
        ({"make_optimizers": other_optimizers()}, "optimizer: saved with torch.optim.adamw.AdamW"),
    ],
)
def test_changed_part_is_refused_by_name(run, changed, problem):
    with pytest.raises(UsageError) as error:
        train(run, **changed)
    assert any(line.startswith(problem) for line in error.value.problems)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (other_optimizers(weight_decay=0.1), "weight_decay of the optimizer's group 0: saved with 0.0, now 0.1"),
        (lambda model: (other_optimizers()(model)[0], None), "schedule.functions: "),
    ],
)
def test_changed_optimizer_of_the_script_is_refused(tmp_path, make, problem):
    train(tmp_path / "run", stop_at=1, make_optimizers=other_optimizers())
    with pytest.raises(UsageError) as error:
        train(tmp_path / "run", make_optimizers=make)
    assert any(line.startswith(problem) for line in error.value.problems)


def test_arguments_that_decide_nothing_may_change(run, tmp_path):
    """The samples are an equal copy, and the functions are at other lines."""
    _, weights = train(
        run, output_dir=str(tmp_path / "elsewhere"), logging_steps=1, save_strategy="steps", save_steps=1,
        per_device_eval_batch_size=2, dataloader_pin_memory=False, log_completions=True, run_name="second",
        num_train_epochs=9, samples=[dict(sample) for sample in SAMPLES],
    )  # fmt: skip
    _, whole = train(tmp_path / "whole")
    assert torch.equal(weights, whole)


@pytest.mark.parametrize(
    "changed",
    [
        {"learning_rate": 2e-2}, {"warmup_steps": 6}, {"lr_scheduler_type": "cosine"}, {"max_steps": 12},
        {"weight_decay": 0.3}, {"adam_beta1": 0.8}, {"optim": "sgd"},
        {"make_optimizers": other_optimizers()},
    ],
)  # fmt: skip
def test_permitted_change_has_its_whole_effect_from_the_next_update_on(run, tmp_path, changed):
    continued, _ = train(run, options={"allow_inexact": True}, **changed)
    whole, _ = train(tmp_path / "whole", **changed)
    assert continued.groups == {update: whole.groups[update] for update in range(STOP_AT, len(whole.groups))}
    assert any("changed values" in note or "updates, and has" in note for note in notes(run))
    again, _ = train(run, **changed)  # the checkpoints have the new values
    assert not again.groups


@pytest.mark.parametrize("is_paused", [True, False])
@pytest.mark.parametrize("schedule", ["constant", "constant_with_warmup", "cosine"])
def test_extended_run_has_the_learning_rates_of_a_long_run(tmp_path, schedule, is_paused):
    arguments = {"lr_scheduler_type": schedule, "warmup_steps": 2}
    whole, whole_weights = train(tmp_path / "whole", max_steps=13, **arguments)
    run = tmp_path / "run"
    begun, _ = train(run, stop_at=5 if is_paused else None, max_steps=UPDATES, **arguments)
    continued, weights = train(run, max_steps=13, options={"extend": True}, **arguments)
    first = 5 if is_paused else UPDATES
    assert continued.rates == {update: whole.rates[update] for update in range(first, 13)}
    is_equal = begun.rates == {update: whole.rates[update] for update in range(first)}
    assert torch.equal(weights, whole_weights) == is_equal == (schedule != "cosine")
    (note,) = [note for note in notes(run) if "had 8 updates, and has 13 now" in note]
    assert ("the bits of a run" in note) == is_equal


def test_extend_permits_more_updates_alone(run):
    with pytest.raises(UsageError, match="has made 3 of 8 updates and cannot end at 6"):
        train(run, max_steps=6, options={"extend": True})
    with pytest.raises(UsageError, match="cannot end at 2"):
        train(run, max_steps=2, options={"allow_inexact": True})
    with pytest.raises(UsageError) as error:
        train(run, max_steps=12, beta=0.3, options={"extend": True})
    assert [problem.partition(":")[0] for problem in error.value.problems] == ["beta"]
    ended, _ = train(run, max_steps=3, options={"allow_inexact": True})
    assert not ended.groups  # the run ends where it is


def test_run_of_an_earlier_version_continues_with_one_note(tmp_path, monkeypatch):
    run, pack = tmp_path / "run", LibraryState.pack
    with monkeypatch.context() as earlier:
        earlier.setattr(
            LibraryState, "pack", lambda self: {name: part for name, part in pack(self).items() if name != "learning"}
        )
        train(run, stop_at=2)
    with pytest.raises(UsageError, match="bit for bit") as error:
        train(run, max_steps=12)  # its number of updates was saved
    assert "had 8 updates, and has 12 now" in error.value.problems[0]
    with pytest.raises(UsageError, match="bit for bit") as error:
        train(run, optim="sgd")
    assert "optimizer was another one" in error.value.problems[0]
    train(run, stop_at=4)
    _, weights = train(run)
    assert torch.equal(weights, train(tmp_path / "whole")[1])
    assert sum("did not record" in note for note in notes(run)) == 1


class Curriculum(TrainerCallback):
    def __init__(self):
        self.level, self.seen, self.name = 0, [], "c"

    def on_step_end(self, args, state, control, **_):
        self.level += 1
        self.seen.append(state.global_step)


def test_state_that_nobody_saves_is_named_once(tmp_path):
    calls = 0

    def loss(outputs, _labels, **_):
        nonlocal calls
        calls += 1
        return outputs["loss"]

    train(tmp_path / "run", callbacks=[Curriculum()], loss=loss, options={"save_every_seconds": 0.0})
    (note,) = [note for note in notes(tmp_path / "run") if "no checkpoint contains them" in note]
    for changed in (
        "level of the callback Curriculum (0, now", "seen of the callback Curriculum (0 items, now",
        "calls of data_collator (", "calls of compute_loss_func (0, now",
    ):  # fmt: skip
        assert changed in note
    assert "name" not in note and "Stop" not in note
