"""A recipe whose updates are made by a library's trainer, as `shoestring train` runs it."""

import json
import os
import signal

import pytest
import torch
from transformers import Trainer

from shoestring.base.errors import RunError
from shoestring.recipe.finding import choose
from shoestring.training.session.deadline import Deadline
from tests.integrations.test_trainer import DropoutModel, Sums, make_arguments
from tests.sessions import run_session


class SumRecipe:
    """A recipe that runs out of memory in microbatches of more than `fits` samples."""

    epochs, effective_batch, seed = 3, 8, 5
    best = ("score", "max")
    fits = 8

    def model(self):
        return DropoutModel()

    def batch(self, size):
        return torch.zeros(size, 8), torch.zeros(size)

    def loss(self, model, batch):
        return model(*batch)["loss"]

    def data(self):
        return {"train": Sums(), "validation": Sums(), "test": Sums()}

    def trainer(self, settings, data, surviving, *, folder, device):
        fits = self.fits

        class LimitedTrainer(Trainer):
            def training_step(self, model, inputs, *args):
                if len(inputs["x"]) > fits:
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")
                return super().training_step(model, inputs, *args)

        training_arguments = make_arguments(folder)
        training_arguments.per_device_train_batch_size = settings.micro_batch
        training_arguments.gradient_accumulation_steps = self.effective_batch // settings.micro_batch
        self.last_trainer = surviving(LimitedTrainer)(model=DropoutModel(), args=training_arguments, train_dataset=data)
        return self.last_trainer

    evaluations = 0
    terminated_evaluation = None

    def measured(self, model, data, polled):
        """Score the second epoch best; the metric `weights` identifies the evaluated weights."""
        self.evaluations += 1
        for index, _ in polled(((index, 1) for index in range(len(data))), len(data)):
            if self.evaluations == self.terminated_evaluation and index == 10:
                os.kill(os.getpid(), signal.SIGTERM)
        weights = sum(value.double().sum().item() for value in model.state_dict().values())
        return {"score": -abs(self.last_trainer.state.global_step - 14), "weights": weights}


def train_session(run, *, micro_batch=8, fits=8, limit_seconds=None, terminated_evaluation=None):
    recipe = SumRecipe()
    recipe.fits, recipe.terminated_evaluation = fits, terminated_evaluation
    loaded, settings = choose(recipe, {"micro_batch": micro_batch, "precision": "fp32"})
    return run_session(loaded, settings, run, Deadline(limit_seconds))


def read_events(run, kind):
    all_events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [event for event in all_events if event["event"] == kind]


def load_weights(run, kind="light"):
    import safetensors.torch

    return safetensors.torch.load_file(run / kind / "model.safetensors")


def test_run_ends_with_weights_and_metrics(tmp_path):
    outcome = train_session(tmp_path / "run")
    assert (outcome.status, outcome.update) == ("finished", outcome.total_updates)
    assert outcome.metrics["validation"]["score"] == 0 and outcome.metrics["test"]["score"] == -7
    assert "frozen.weight" in load_weights(tmp_path / "run")
    assert [event["update"] for event in read_events(tmp_path / "run", "progress")] == [5, 10, 15, 20, 21]


def test_best_epoch_is_saved_and_tested(tmp_path):
    run = tmp_path / "run"
    outcome = train_session(run)
    *epochs, test = read_events(run, "evaluation")
    assert [(event["epoch"], event["update"], event["best"]) for event in epochs] == [
        (1, 7, True), (2, 14, True), (3, 21, False),
    ]  # fmt: skip
    total = sum(value.double().sum().item() for value in load_weights(run, "best").values())
    assert test["part"] == "test" and outcome.metrics["test"]["weights"] == pytest.approx(total, rel=1e-12)
    assert outcome.metrics["validation"] == epochs[1]["metrics"]
    assert not torch.equal(load_weights(run, "best")["layers.0.weight"], load_weights(run)["layers.0.weight"])


@pytest.mark.parametrize("terminated_evaluation", [1, 3, 4])
def test_interrupted_evaluation_is_repeated(tmp_path, terminated_evaluation):
    """The interruption is in the first epoch, after the last one, or in the test part."""
    train_session(tmp_path / "whole")
    run = tmp_path / "interrupted"
    assert train_session(run, terminated_evaluation=terminated_evaluation).status == "paused"
    assert len(read_events(run, "evaluation")) == terminated_evaluation - 1
    assert train_session(run).status == "finished"
    evaluations = [(event["part"], event["epoch"], event["metrics"]) for event in read_events(run, "evaluation")]
    assert evaluations == [
        (event["part"], event["epoch"], event["metrics"]) for event in read_events(tmp_path / "whole", "evaluation")
    ]
    assert all(torch.equal(value, load_weights(run)[name]) for name, value in load_weights(tmp_path / "whole").items())


def test_out_of_memory_halves_the_microbatch(tmp_path):
    run = tmp_path / "run"
    assert train_session(run, fits=2).status == "finished"
    assert [event["done"] for event in read_events(run, "oom")] == ["microbatch 4", "microbatch 2"]
    assert len(read_events(run, "session")) == 1  # three attempts of one session
    train_session(tmp_path / "smaller", micro_batch=2)
    assert all(
        torch.equal(value, load_weights(tmp_path / "smaller")[name]) for name, value in load_weights(run).items()
    )
    checkpoint = max((run / "checkpoints").glob("update-*"))
    assert json.loads((checkpoint / "state.json").read_text())["fit"]["micro_batch"] == 2


def test_run_fails_if_no_sample_fits(tmp_path):
    with pytest.raises(RunError, match="with the smallest microbatch: CUDA out of memory"):
        train_session(tmp_path / "run", fits=0)
    assert json.loads((tmp_path / "run" / "state.json").read_text())["status"] == "failed"


def test_short_session_pauses(tmp_path):
    outcome = train_session(tmp_path / "run", limit_seconds=3.05)
    assert outcome.status == "paused" and outcome.update < outcome.total_updates
    assert train_session(tmp_path / "run").status == "finished"
