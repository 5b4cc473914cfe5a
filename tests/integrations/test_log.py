"""The log of a library's trainer: an interrupted run that was continued has that of a run that was never stopped."""

import itertools
import os
import signal
from collections import defaultdict
from contextlib import suppress

import pytest
import torch
from transformers import EarlyStoppingCallback, Trainer, TrainingArguments

from shoestring.integrations.trainer import surviving
from tests.integrations.test_trainer import DropoutModel, Sums

MEASURED = ("_runtime", "_per_second")
"""The ends of names of fields that measure time."""
STRATEGIES = {
    "steps": {
        "logging_steps": 3, "logging_first_step": True,
        "eval_strategy": "steps", "eval_steps": 2, "eval_on_start": True, "patience": 4,
    },
    "epoch": {"logging_strategy": "epoch", "eval_strategy": "epoch", "max_steps": 9},
}  # fmt: skip
"""The first one is stopped by a callback, the second one within an epoch."""


class Killed(BaseException):
    """Ends a session without another save."""


class CountedModel(DropoutModel):
    """A model whose floating-point operations the library can count."""

    main_input_name = "x"

    def num_parameters(self, exclude_embeddings=False):
        return 177

    def floating_point_ops(self, inputs):  # transformers 4.56 has no formula of its own for this
        return 6 * inputs["x"].numel() * self.num_parameters()


class AveragingTrainer(Trainer):
    """Logs the mean of its losses since the last log, and the number of its samples, in the same way as TRL."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._metrics, self._total_train_tokens = {"train": defaultdict(list), "eval": defaultdict(list)}, 0

    def compute_loss(self, model, inputs, *args, **kwargs):
        result = super().compute_loss(model, inputs, *args, **kwargs)
        if model.training:
            self._total_train_tokens += len(inputs["x"])
            self._metrics["train"]["mean"].append(float(inputs["y"].mean()))
            self._metrics["train"]["num_tokens"] = [self._total_train_tokens]
        return result

    def log(self, logs, start_time=None):
        mode = "train" if self.model.training else "eval"
        super().log({**logs, **{name: sum(row) / len(row) for name, row in self._metrics[mode].items()}}, start_time)
        self._metrics[mode].clear()


def train(run, strategy, *, act=None, act_at=0):
    """Train one session; return the final state of the trainer and what `train` returned, without measured times."""
    strategy = dict(STRATEGIES[strategy])
    patience = strategy.pop("patience", 100)
    arguments = TrainingArguments(
        output_dir=str(run.parent / "own"), per_device_train_batch_size=4, gradient_accumulation_steps=2,
        num_train_epochs=2, learning_rate=1e-2, report_to=[], use_cpu=True, save_strategy="no", seed=5,
        include_num_input_tokens_seen="all", metric_for_best_model="loss", per_device_eval_batch_size=25,
        greater_is_better=patience < 100,  # the loss decreases, so the first evaluation remains the best
        label_names=["y"], **strategy,
    )  # fmt: skip
    counter = itertools.count(1)

    class Acting(AveragingTrainer):
        def training_step(self, *args, **kwargs):
            if next(counter) == act_at:
                act()
            return super().training_step(*args, **kwargs)

    with surviving(run, save_every_seconds=0.0, exit_when_paused=False) as survive:
        torch.manual_seed(3)
        patient = EarlyStoppingCallback(patience)
        trainer = survive(Acting)(
            model=CountedModel(), args=arguments, train_dataset=Sums(), eval_dataset=Sums(), callbacks=[patient]
        )
        output = trainer.train()
    state = trainer.state
    return {
        "log": [without_times(entry) for entry in state.log_history],
        "output": (output.global_step, output.training_loss, without_times(output.metrics)),
        "state": (
            state.total_flos,
            state.epoch,
            state.num_input_tokens_seen,
            state.best_metric,
            state.best_global_step,
        ),
        "patience": patient.early_stopping_patience_counter,
    }


def without_times(entry):
    return {name: value for name, value in entry.items() if not name.endswith(MEASURED)}


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def kill():
    raise Killed


@pytest.mark.filterwarnings("ignore:.*EarlyStoppingCallback")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_continued_log_is_that_of_an_uninterrupted_run(tmp_path, strategy):
    whole = train(tmp_path / "whole", strategy)
    assert len(whole["log"]) > 3 and whole["state"][0] > 0
    run = tmp_path / "run"
    for act, count in ((terminate, 4), (kill, 5), (terminate, 6)):
        with suppress(Killed):
            train(run, strategy, act=act, act_at=count)
    assert train(run, strategy) == whole
    assert train(run, strategy) == whole  # a run that has ended makes no other update
