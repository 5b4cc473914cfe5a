"""A recipe that leaves its updates to somebody else's trainer, as `shoestring train` runs it."""

import json
import os
import signal

import pytest
import torch
from transformers import Trainer

from shoestring.errors import RunError
from shoestring.recipe.finding import choose
from shoestring.session.deadline import Deadline
from tests.integrations.test_trainer import Dropping, Sums, arguments
from tests.sessions import run_session


class Summing:
    """Runs out of memory wherever a microbatch has more than `fits` samples."""

    epochs, effective_batch, seed = 3, 8, 5
    best = ("score", "max")
    fits = 8

    def model(self):
        return Dropping()

    def batch(self, size):
        return torch.zeros(size, 8), torch.zeros(size)

    def loss(self, model, batch):
        return model(*batch)["loss"]

    def data(self):
        return {"train": Sums(), "validation": Sums(), "test": Sums()}

    def trainer(self, settings, data, surviving, *, folder, device):
        fits = self.fits

        class Fitting(Trainer):
            def training_step(self, model, inputs, *others):
                if len(inputs["x"]) > fits:
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")
                return super().training_step(model, inputs, *others)

        given = arguments(folder)
        given.per_device_train_batch_size = settings.micro_batch
        given.gradient_accumulation_steps = self.effective_batch // settings.micro_batch
        self.made = surviving(Fitting)(model=Dropping(), args=given, train_dataset=data)
        return self.made

    evaluations = 0
    terminated_in = None

    def measured(self, model, data, polled):
        """The second epoch is the best; `weights` tells which ones were measured."""
        self.evaluations += 1
        for index, _ in polled(((index, 1) for index in range(len(data))), len(data)):
            if self.evaluations == self.terminated_in and index == 10:
                os.kill(os.getpid(), signal.SIGTERM)
        weights = sum(value.double().sum().item() for value in model.state_dict().values())
        return {"score": -abs(self.made.state.global_step - 14), "weights": weights}


def session(run, *, micro_batch=8, fits=8, limit_seconds=None, terminated_in=None):
    recipe = Summing()
    recipe.fits, recipe.terminated_in = fits, terminated_in
    loaded, settings = choose(recipe, {"micro_batch": micro_batch, "precision": "fp32"})
    return run_session(loaded, settings, run, Deadline(limit_seconds))


def events(run, kind):
    found = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [event for event in found if event["event"] == kind]


def weights(run, kind="light"):
    import safetensors.torch

    return safetensors.torch.load_file(run / kind / "model.safetensors")


def test_it_ends_with_weights_and_metrics(tmp_path):
    outcome = session(tmp_path / "run")
    assert (outcome.status, outcome.update) == ("finished", outcome.total_updates)
    assert outcome.metrics["validation"]["score"] == 0 and outcome.metrics["test"]["score"] == -7
    assert "frozen.weight" in weights(tmp_path / "run")
    assert [event["update"] for event in events(tmp_path / "run", "progress")] == [5, 10, 15, 20]


def test_each_epoch_is_evaluated_and_the_best_weights_are_kept_and_tested(tmp_path):
    run = tmp_path / "run"
    outcome = session(run)
    *epochs, last = events(run, "evaluation")
    assert [(event["epoch"], event["update"], event["best"]) for event in epochs] == [
        (1, 7, True), (2, 14, True), (3, 21, False),
    ]  # fmt: skip
    total = sum(value.double().sum().item() for value in weights(run, "best").values())
    assert last["part"] == "test" and outcome.metrics["test"]["weights"] == pytest.approx(total, rel=1e-12)
    assert outcome.metrics["validation"] == epochs[1]["metrics"]
    assert not torch.equal(weights(run, "best")["layers.0.weight"], weights(run)["layers.0.weight"])


@pytest.mark.parametrize("terminated_in", [1, 3, 4])
def test_an_evaluation_that_was_cut_off_is_done_again(tmp_path, terminated_in):
    """In the first epoch, after the last one, and of the test part."""
    session(tmp_path / "whole")
    run = tmp_path / "cut"
    assert session(run, terminated_in=terminated_in).status == "paused"
    done = len(events(run, "evaluation"))
    assert done == terminated_in - 1
    assert session(run).status == "finished"
    told = [(event["part"], event["epoch"], event["metrics"]) for event in events(run, "evaluation")]
    assert told == [
        (event["part"], event["epoch"], event["metrics"]) for event in events(tmp_path / "whole", "evaluation")
    ]
    assert all(torch.equal(value, weights(run)[name]) for name, value in weights(tmp_path / "whole").items())


def test_out_of_memory_halves_the_microbatch_and_the_run_keeps_what_it_learnt(tmp_path):
    run = tmp_path / "run"
    assert session(run, fits=2).status == "finished"
    assert [event["done"] for event in events(run, "oom")] == ["microbatch 4", "microbatch 2"]
    assert len(events(run, "session")) == 1  # three attempts of one session
    session(tmp_path / "smaller", micro_batch=2)
    assert all(torch.equal(value, weights(tmp_path / "smaller")[name]) for name, value in weights(run).items())
    last = max((run / "checkpoints").glob("update-*"))
    assert json.loads((last / "state.json").read_text())["fit"]["micro_batch"] == 2


def test_where_not_even_one_sample_fits_the_run_fails_and_says_so(tmp_path):
    with pytest.raises(RunError, match="with the smallest microbatch: CUDA out of memory"):
        session(tmp_path / "run", fits=0)
    assert json.loads((tmp_path / "run" / "state.json").read_text())["status"] == "failed"


def test_a_session_that_is_too_short_pauses(tmp_path):
    outcome = session(tmp_path / "run", limit_seconds=3.05)
    assert outcome.status == "paused" and outcome.update < outcome.total_updates
    assert session(tmp_path / "run").status == "finished"
