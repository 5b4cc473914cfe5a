"""What a library's trainer offers works in a resumable one or is refused by its name, before any update."""

import json

import pytest
from transformers import Trainer, TrainingArguments

from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings
from shoestring.integrations import private_parts
from shoestring.integrations.arguments import notes, refuse_arguments
from shoestring.integrations.trainer import surviving
from tests.integrations.test_trainer import DropoutModel, Sums, make_arguments


class Arguments:
    """The arguments that are looked at, with the library's default values."""

    def __init__(self, **changed):
        self.push_to_hub, self.hub_strategy, self.load_best_model_at_end = False, "every_save", False
        vars(self).update(changed)


class FakeTrainer:
    def __init__(self, **changed):
        self.args = Arguments(**changed)


def problems(of_train=None, *, in_recipe=False, allow_inexact=False, **changed):
    """Return the problems with the arguments; none if they are accepted."""
    try:
        refuse_arguments(FakeTrainer(**changed), of_train or {}, in_recipe=in_recipe, allow_inexact=allow_inexact)
    except UsageError as error:
        return error.problems
    return ()


NEVER = {
    "n_gpu": 2, "deepspeed": "config.json", "fsdp": "full_shard", "parallelism_config": object(),
    "auto_find_batch_size": True, "ignore_data_skip": True, "enable_jit_checkpoint": True, "sync_ref_model": True,
    "optim": "galore_adamw_layerwise",
}  # fmt: skip
INEXACT = ("torch_compile", "use_vllm", "use_transformers_paged", "use_transformers_continuous_batching")


@pytest.mark.parametrize("name", [*NEVER, *INEXACT])
def test_argument_is_refused_by_name(name):
    value = NEVER.get(name, True)
    (problem,) = problems(**{name: value})
    assert problem.startswith(f"{name}={value!r}"[:40])
    assert bool(problems(allow_inexact=True, **{name: value})) == (name in NEVER)


def test_all_refused_arguments_are_reported():
    refused = problems(
        {"resume_from_checkpoint": "out/checkpoint-5", "trial": {"lr": 1}}, push_to_hub=True, optim="lomo", n_gpu=2
    )
    assert [problem.partition("=")[0] for problem in refused] == [
        "resume_from_checkpoint", "trial", "hub_strategy", "n_gpu", "optim",
    ]  # fmt: skip
    assert not problems({"resume_from_checkpoint": False}, push_to_hub=True, hub_strategy="end", optim="adamw_8bit")


def test_best_model_needs_a_script_and_the_private_parts(monkeypatch):
    monkeypatch.setattr(private_parts, "has_private_parts", lambda _: True)
    assert not problems(load_best_model_at_end=True)
    assert "`best`" in problems(load_best_model_at_end=True, in_recipe=True)[0]
    monkeypatch.setattr(private_parts, "has_private_parts", lambda _: False)
    assert "transformers 5" in problems(load_best_model_at_end=True)[0]


def test_default_arguments_are_accepted_and_others_are_refused_before_training(tmp_path):
    with surviving(tmp_path / "run") as survive:
        trainer = survive(Trainer)(model=DropoutModel(), args=make_arguments(tmp_path / "own"), train_dataset=Sums())
        refuse_arguments(trainer, {}, in_recipe=False, allow_inexact=False)
        with pytest.raises(UsageError) as error:
            trainer.train("out/checkpoint-5")
    assert error.value.problems[0].startswith("resume_from_checkpoint='out/checkpoint-5'")
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_arguments_with_another_effect_are_noted(tmp_path):
    arguments = TrainingArguments(output_dir=str(tmp_path), save_total_limit=5, save_only_model=True, report_to=[])
    assert [note.partition("=")[0] for note in notes(arguments, Settings())] == ["save_total_limit", "save_only_model"]
    assert notes(TrainingArguments(output_dir=str(tmp_path), report_to=[]), Settings()) == []


def test_state_that_is_no_json_is_explained(tmp_path):
    class LoggingTrainer(Trainer):
        def training_step(self, *args, **kwargs):
            self.log({"unit": {1, 2}})
            return super().training_step(*args, **kwargs)

    with pytest.raises(UsageError, match=r"cannot be saved.*set"), surviving(tmp_path / "run") as survive:
        survive(LoggingTrainer)(
            model=DropoutModel(), args=make_arguments(tmp_path / "own"), train_dataset=Sums()
        ).train()
    assert json.loads((tmp_path / "run" / "state.json").read_text())["status"] == "failed"
