"""A recipe whose updates are made by transformers' trainer, in fp16 on a GPU: out of memory, stops, its replays."""

import json
from typing import ClassVar

import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

import shoestring
from shoestring.base.errors import CheckpointError
from shoestring.base.settings import Settings
from shoestring.integrations.state import LibraryState
from shoestring.recipe.finding import choose
from shoestring.techniques.fallbacks import Sizes
from shoestring.training.engine.precision import mixed_precision
from shoestring.training.session.deadline import Deadline
from tests.integrations.test_library import SumRecipe, read_events
from tests.integrations.test_trainer import DropoutModel, terminate
from tests.lab.commands.demand import Demand, ask_for
from tests.lab.commands.test_trainers import TWO_FIT
from tests.lab.commands.tiny_runs import without_dropout
from tests.runs.replay.test_replay import only_checkpoints, saved_digest, write_plan
from tests.sessions import final_checkpoint, run_session

CUDA = torch.device("cuda")
VALUES = {"micro_batch": 4, "precision": "fp16", "ema": 0.5, "save_every_updates": 1, "keep_checkpoints": 50}


class Sums(SumRecipe):
    """Two epochs of seven updates, each of two microbatches of 4."""

    epochs = 2
    drops = True
    trainers: ClassVar[list] = []
    clip_norm = 1.0
    demand = Demand()
    ends_at = terminated_at = None
    """The updates after which a callback ends the training, and the process gets a signal."""
    fails_to_restore = False
    """Whether the next restored state of an optimizer needs more memory than there is."""

    def model(self):
        return self.demand.limit(DropoutModel() if self.drops else without_dropout(DropoutModel()))

    def trainer(self, settings, data, surviving, *, folder, device):
        arguments = TrainingArguments(
            output_dir=str(folder), per_device_train_batch_size=settings.micro_batch,
            gradient_accumulation_steps=self.effective_batch // settings.micro_batch, num_train_epochs=self.epochs,
            learning_rate=1e-2, report_to=[], logging_steps=1, save_strategy="no", seed=5, disable_tqdm=True,
            max_grad_norm=self.clip_norm, use_cpu=device.type == "cpu", fp16=settings.precision == "fp16",
        )  # fmt: skip
        model = self.model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        optimizer.register_load_state_dict_pre_hook(lambda _, saved: self._restore(saved))
        self.last_trainer = surviving(Trainer)(
            model=model, args=arguments, train_dataset=data, optimizers=(optimizer, None), callbacks=[_Ending(self)]
        )
        self.trainers.append(self.last_trainer)
        return self.last_trainer

    def _restore(self, saved):
        if self.fails_to_restore and saved["state"]:  # accelerate loads an empty one
            self.fails_to_restore = False
            ask_for(20)


class _Ending(TrainerCallback):
    def __init__(self, recipe):
        self._recipe = recipe

    def on_step_end(self, args, state, control, **keywords):
        control.should_training_stop |= state.global_step == self._recipe.ends_at
        if state.global_step == self._recipe.terminated_at:
            terminate()


def train(run, values=VALUES, **attributes):
    """Train a session on the GPU in fp16, and return how it ended."""
    recipe, trainers = Sums(), attributes.setdefault("trainers", [])
    vars(recipe).update(attributes)
    loaded, settings = choose(recipe, values)
    outcome = run_session(loaded, settings, run, Deadline(None), device=CUDA)
    write_plan(run, recipe, {name: value for name, value in values.items() if name != "ema"})
    assert trainers[-1].accelerator.scaler.is_enabled() and next(trainers[-1].model.parameters()).is_cuda
    assert trainers[-1].state.global_step == outcome.update
    return outcome


def ooms(run):
    return [(event["update"], event["micro_batch"], event["done"]) for event in read_events(run, "oom")]


def test_genuine_out_of_memory_makes_a_trainer_with_smaller_microbatches(tmp_path):
    run, smaller = tmp_path / "run", tmp_path / "smaller"
    assert train(run, demand=Demand(TWO_FIT)).status == "finished" and ooms(run) == [(0, 4, "microbatch 2")]
    train(smaller, VALUES | {"micro_batch": 2})
    checkpoint, other = final_checkpoint(run), final_checkpoint(smaller)
    for bits in (checkpoint, other):
        assert bits["averaged"] and bits["state"].pop("fit")["micro_batch"] == 2
        del bits["state"]["environment"]  # it has the microbatch of the settings
    assert checkpoint == other


def test_a_stopped_run_ends_in_the_bits_of_one_that_was_not(tmp_path):
    """Its averaged weights included. A finished run, and one that its trainer has ended, make no further update."""
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert train(whole).status == "finished"
    for update in (3, 8):
        assert train(run, terminated_at=update).update == update
    for _ in range(2):
        assert train(run).status == "finished"
        assert final_checkpoint(run) == final_checkpoint(whole)
    for _ in range(2):
        outcome = train(tmp_path / "early", ends_at=9)
        assert (outcome.status, outcome.update) == ("finished", 9)


def test_out_of_memory_while_a_checkpoint_is_restored(tmp_path):
    run = tmp_path / "run"
    train(run, ends_at=3)
    copy = only_checkpoints(run, tmp_path / "copy", 2)
    assert train(copy, fails_to_restore=True).status == "finished" and ooms(copy) == [(2, 4, "microbatch 2")]


def test_checkpoints_that_do_not_fit_are_refused(tmp_path):
    train(tmp_path / "run", ends_at=2, trainers=(trainers := []))
    settings = Settings(micro_batch=4, precision="fp16")
    sizes = Sizes.from_settings(settings)
    state = LibraryState(trainer=trainers[-1], mixed_precision=mixed_precision("fp16", CUDA), sizes=sizes)
    saved = state.pack()
    scale = saved["scaler"]["scale"]
    for changed, message in (
        ({"trainer": []}, "does not fit the trainer"),
        ({"model": {}}, "is of another model"),
        ({"scaler": {"scale": 2.0}}, "cannot be restored: KeyError"),
        ({}, "lacks scaler"),
    ):
        content = saved | changed if changed else {name: saved[name] for name in saved if name != "scaler"}
        with pytest.raises(CheckpointError, match=message):
            restore(state, content)
    restore(state, saved)
    assert state.update == 2 and trainers[-1].accelerator.scaler.get_scale() == scale


def restore(state, saved):
    state.restore(saved)
    state.load_restored()


@pytest.mark.slow
def test_a_recipe_is_planned_and_trained(tmp_path):
    """By the command's own steps, which choose the trainer's loop."""
    recipe = Sums()
    recipe.trainers = []
    outcome = shoestring.train(recipe, run=tmp_path / "run", max_updates=2, probe=False, **VALUES)
    assert (outcome.status, outcome.update) == ("finished", 2)
    assert next(recipe.trainers[-1].model.parameters()).is_cuda


@pytest.mark.parametrize("clip_norm", [0.0, 0.1])
def test_an_update_is_replayed_with_the_gradients_of_the_cpu(tmp_path, clip_norm):
    """A gradient that is clipped is observed before, and both without the factor by which its loss is scaled."""
    run = tmp_path / "run"
    train(run, ends_at=6, drops=False, clip_norm=clip_norm)
    recipe = Sums()
    recipe.drops, recipe.clip_norm = False, clip_norm
    copy = only_checkpoints(run, tmp_path / "copy", 2)
    for update in (3, 5):
        result = shoestring.replay(copy, update, recipe=recipe)
        assert result.weights_sha256 == saved_digest(run, update) and "T4" in result.device
        assert len(set(result.samples)) == 8 and [len(part["samples"]) for part in result.microbatches] == [4, 4]
        on_cpu = shoestring.replay(copy, update, recipe=recipe, on="cpu", precision="fp32")
        assert on_cpu.samples == result.samples
        assert result.gradient_norm == pytest.approx(on_cpu.gradient_norm, rel=1e-2)
        assert result.loss == pytest.approx(on_cpu.loss, rel=1e-2)
    assert json.loads(json.dumps(result.json(), allow_nan=False))["attempts"][-1]["loss_scale"] > 1


def test_a_replay_that_runs_out_of_memory_observes_the_smaller_microbatches(tmp_path):
    run, recipe = tmp_path / "run", Sums()
    train(run, ends_at=3)
    recipe.demand = Demand(TWO_FIT)
    result = shoestring.replay(run, 3, recipe=recipe)
    assert [len(part["samples"]) for part in result.microbatches] == [2, 2, 2, 2] and result.stepped
    assert result.largest_activations and not result.equals_checkpoint
