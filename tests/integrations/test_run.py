"""A recipe that leaves its updates to somebody else's trainer, as `shoestring train` runs it."""

import json

import pytest
import torch
from transformers import Trainer

from shoestring.errors import RunError
from shoestring.integrations.run import train
from shoestring.launch import choose
from shoestring.session.deadline import Deadline
from shoestring.session.directory import RunDirectory
from shoestring.session.signals import StopSignals
from shoestring.session.stop import Stop
from tests.integrations.test_trainer import Dropping, Sums, arguments


class Summing:
    """Runs out of memory wherever a microbatch has more than `fits` samples."""

    epochs, effective_batch, seed = 3, 8, 5
    fits = 8

    def model(self):
        return Dropping()

    def batch(self, size):
        return torch.zeros(size, 8), torch.zeros(size)

    def loss(self, model, batch):
        return model(*batch)["loss"]

    def data(self):
        return {"train": Sums(), "validation": Sums()}

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
        return surviving(Fitting)(model=Dropping(), args=given, train_dataset=data)

    def measured(self, trainer, data, polled):
        return {"samples": sum(size for _, size in polled(((index, 1) for index in range(len(data))), len(data)))}


def session(run, *, micro_batch=8, fits=8, limit_seconds=None):
    recipe = Summing()
    recipe.fits = fits
    loaded, settings = choose(recipe, {"micro_batch": micro_batch, "precision": "fp32"})
    directory = RunDirectory(run)
    directory.create()
    directory.write_plan({"recipe": loaded.name})
    with directory.locked(), StopSignals() as signals:
        stop = Stop(deadline=Deadline(limit_seconds), signals=signals)
        return train(loaded, settings, directory, target="local", device=torch.device("cpu"), stop=stop)


def events(run, kind):
    found = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [event for event in found if event["event"] == kind]


def weights(run):
    import safetensors.torch

    return safetensors.torch.load_file(run / "light" / "model.safetensors")


def test_it_ends_with_weights_and_metrics(tmp_path):
    outcome = session(tmp_path / "run")
    assert (outcome.status, outcome.update) == ("finished", outcome.total_updates)
    assert outcome.metrics == {"validation": {"samples": 50}}
    assert "frozen.weight" in weights(tmp_path / "run")
    assert [event["update"] for event in events(tmp_path / "run", "progress")] == [5, 10, 15, 20]


def test_out_of_memory_halves_the_microbatch_and_the_run_keeps_what_it_learnt(tmp_path):
    run = tmp_path / "run"
    assert session(run, fits=2).status == "finished"
    assert [event["done"] for event in events(run, "oom")] == ["microbatch 4", "microbatch 2"]
    assert len(events(run, "session")) == 1  # three attempts of one session
    session(tmp_path / "smaller", micro_batch=2)
    assert all(torch.equal(value, weights(tmp_path / "smaller")[name]) for name, value in weights(run).items())
    last = max((run / "checkpoints").glob("update-*"))
    assert json.loads((last / "state.json").read_text())["fit"] == {"micro_batch": 2}


def test_where_not_even_one_sample_fits_the_run_fails_and_says_so(tmp_path):
    with pytest.raises(RunError, match="microbatches of 1: CUDA out of memory"):
        session(tmp_path / "run", fits=0)
    assert json.loads((tmp_path / "run" / "state.json").read_text())["status"] == "failed"


def test_a_session_that_is_too_short_pauses(tmp_path):
    outcome = session(tmp_path / "run", limit_seconds=3.05)
    assert outcome.status == "paused" and outcome.update < outcome.total_updates
    assert session(tmp_path / "run").status == "finished"
