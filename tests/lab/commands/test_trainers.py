"""Trainers of transformers and of TRL under `surviving` in fp16 on a GPU: out of memory, kills, the CPU's gradients."""

import json
from functools import partial

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import Trainer, TrainingArguments

from shoestring.integrations.trainer import surviving
from tests.integrations.test_splitting import (
    Killed,
    Labelled,
    Recorded,
    Regression,
    language_model,  # noqa: F401  (a fixture)
    newest,
    ooms,
    train_trl,
)
from tests.integrations.test_trainer import DropoutModel, Stream, Sums
from tests.lab.commands.demand import Demand

pytestmark = pytest.mark.filterwarnings(r"ignore:.*gradient_checkpointing\w*` is deprecated")

GPU = {"use_cpu": False, "fp16": True, "save_strategy": "steps", "save_steps": 1}


TWO_FIT = 4
"""GiB of a sample of which a T4 has space for three, so that four are halved to two."""


def train(run, demand, model=DropoutModel, data=Sums, callbacks=(), *, extend=False, **options):
    """Train an epoch, in fp16 unless the options differ; return the weights.

    An update has two microbatches of 4.
    """
    arguments = TrainingArguments(
        output_dir=str(run.parent / "own"), per_device_train_batch_size=4, gradient_accumulation_steps=2,
        learning_rate=1e-2, report_to=[], logging_steps=1, seed=5, **({"num_train_epochs": 1} | GPU | options),
    )  # fmt: skip
    with surviving(run, extend=extend) as survive:
        torch.manual_seed(3)
        trainer = survive(Trainer)(
            model=demand.limit(model()), args=arguments, train_dataset=data(), eval_dataset=data(),
            callbacks=[*callbacks],
        )  # fmt: skip
        trainer.train()
        weights = trainer.model.state_dict()
    assert {value.device.type for value in weights.values()} == {"cuda"}
    return weights


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_genuine_out_of_memory_halves_the_microbatch_and_keeps_the_update(where, tmp_path):
    """In fp32: in fp16 the halves, whose losses are smaller, may not overflow where the whole does."""
    in_fp32 = partial(train, model=partial(Regression, "samples"), data=Labelled, fp16=False)
    whole, halved = Recorded(), Recorded()
    in_fp32(tmp_path / "whole", Demand(), callbacks=[whole])
    in_fp32(tmp_path / "run", Demand(TWO_FIT, where=where), callbacks=[halved])
    assert ooms(tmp_path / "run") == [(0, 4, "microbatch 2")]
    assert len(whole.gradients) == len(halved.gradients) == 6
    for expected, gradient in zip(whole.gradients, halved.gradients, strict=True):
        assert torch.allclose(gradient, expected, rtol=1e-4, atol=1e-6)
    assert halved.losses == pytest.approx(whole.losses, rel=1e-4)


def test_kills_and_out_of_memory_do_not_change_the_bits(tmp_path):
    """With dropout and BatchNorm. The first update fails in its first part, and is repeated."""
    expected = train(tmp_path / "whole", Demand(TWO_FIT))
    for kill_at in (9, 14):
        with pytest.raises(Killed):
            train(tmp_path / "run", Demand(TWO_FIT, kill_at=kill_at))
        assert len(ooms(tmp_path / "run")) == 1
    weights = train(tmp_path / "run", Demand(TWO_FIT))
    assert all(torch.equal(value, weights[name]) for name, value in expected.items())
    assert newest(tmp_path / "run")["fit"]["micro_batch"] == 2


def adapted():
    """Return the model with an adapter of peft."""
    return get_peft_model(DropoutModel(), LoraConfig(r=2, target_modules=["0"]))


def test_an_extended_run_with_an_adapter_and_data_without_a_length(tmp_path):
    """The library does not save where such data was when the run ended."""
    options = {"model": adapted, "data": Stream, "lr_scheduler_type": "constant"}
    before = train(tmp_path / "run", Demand(), **options, max_steps=1)
    weights = train(tmp_path / "run", Demand(), **options, max_steps=2, extend=True)
    assert [
        name for name, value in before.items() if value.is_floating_point() and not torch.equal(value, weights[name])
    ]
    notes = (tmp_path / "run" / "events.jsonl").read_text()
    assert "the run had 1 update, and has 2 now: the data has no length, so it begins again" in notes


def test_best_evaluation_saves_a_checkpoint_of_the_run(tmp_path):
    """At the end of the first epoch, after 7 of 14 updates."""
    options = {"save_strategy": "best", "eval_strategy": "epoch", "metric_for_best_model": "loss", "label_names": ["y"]}
    train(tmp_path / "run", Demand(), **options, per_device_eval_batch_size=50, num_train_epochs=2)
    folders = sorted((tmp_path / "run" / "checkpoints").glob("update-*"))
    assert [folder.name for folder in folders] == ["update-00000007", "update-00000014"]
    assert json.loads((folders[0] / "state.json").read_text())["trainer"]["best_metric"] > 0


@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_gradients_of_trl_are_those_of_the_cpu(kind, tmp_path, language_model):  # noqa: F811
    expected = train_trl(kind, tmp_path / "cpu", language_model)
    on_gpu = train_trl(kind, tmp_path / "gpu", language_model, use_cpu=False)
    assert len(on_gpu.gradients) == len(expected.gradients) == 2
    for gradient, other in zip(on_gpu.gradients, expected.gradients, strict=True):
        assert gradient.is_cuda and gradient.abs().max() > 1e-3
        assert torch.allclose(gradient.cpu(), other, rtol=1e-3, atol=1e-5)
    assert on_gpu.losses == pytest.approx(expected.losses, rel=1e-4)


@pytest.mark.parametrize("kind", ["sft", "dpo", "grpo"])
def test_killed_trainers_of_trl_end_in_the_same_bits(kind, tmp_path, language_model):  # noqa: F811
    """With a sample of SFT that needs 4 GiB, and a pair of DPO, which is two of the model's inputs, that needs 8."""
    gib_per_sample, kill_at = {"sft": (TWO_FIT, 6), "dpo": (TWO_FIT // 2, 6), "grpo": (0, 3)}[kind]
    expected = train_trl(kind, tmp_path / "whole", language_model, Demand(gib_per_sample), **GPU)
    with pytest.raises(Killed):
        train_trl(kind, tmp_path / "run", language_model, Demand(gib_per_sample, kill_at=kill_at), **GPU)
    resumed = train_trl(kind, tmp_path / "run", language_model, Demand(gib_per_sample), **GPU)
    assert torch.equal(resumed.gradients[-1], expected.gradients[-1])
    assert resumed.losses[-1] == expected.losses[-1]
    assert ooms(tmp_path / "run") == ooms(tmp_path / "whole") == ([] if kind == "grpo" else [(0, 4, "microbatch 2")])


def test_a_run_ends_although_its_generated_samples_were_not_used_up(tmp_path, language_model):  # noqa: F811
    """They are for two updates; a checkpoint between these would not have them."""
    train_trl("grpo", tmp_path / "run", language_model, **GPU, max_steps=1, num_iterations=2)
    assert newest(tmp_path / "run")["trainer"]["global_step"] == 1
    assert json.loads((tmp_path / "run" / "state.json").read_text())["status"] == "finished"
