"""Resumable versions of Hugging Face's Trainer: sessions that finish, are stopped, are killed and resume."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest
import torch
from torch import nn
from transformers import Trainer, TrainingArguments

from shoestring.base.errors import CheckpointError, UsageError
from shoestring.integrations.trainer import surviving
from shoestring.training.monitor.events import read
from tests.remote.backup.example_runs import copier, save

UPDATES = 21
"""50 samples in microbatches of 4, two to an update, three times: an epoch ends within an update."""


class DropoutModel(nn.Module):
    """A model that draws random numbers in each forward."""

    def __init__(self, width=16):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, width), nn.Dropout(0.5), nn.BatchNorm1d(width), nn.Linear(width, 1))
        self.frozen = nn.Linear(1, 1, bias=False).requires_grad_(False)

    def forward(self, x, y):
        return {"loss": (self.frozen(self.layers(x)).squeeze(-1) - y).square().mean()}


class Sums(torch.utils.data.Dataset):
    def __len__(self):
        return 50

    def __getitem__(self, index):
        x = torch.randn(8, generator=torch.Generator().manual_seed(index))
        return {"x": x, "y": x.sum()}


def make_arguments(folder):
    return TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=4, gradient_accumulation_steps=2, num_train_epochs=3,
        learning_rate=1e-2, report_to=[], logging_steps=5, use_cpu=True, save_strategy="no", seed=5,
    )  # fmt: skip


def train(run, *, act=None, act_at=0, width=16, **session_options):
    """Train one session; return (reason of an early stop, updates, all weights).

    `act` is called in the `act_at`th microbatch of this session.
    """

    class ActingTrainer(Trainer):
        count = 0

        def training_step(self, *args, **kwargs):
            self.count += 1
            if self.count == act_at:
                act()
            return super().training_step(*args, **kwargs)

    with surviving(run, exit_when_paused=False, **session_options) as survive:
        torch.manual_seed(3)
        trainer = survive(ActingTrainer)(
            model=DropoutModel(width), args=make_arguments(run.parent / "own"), train_dataset=Sums()
        )
        trainer.train()
        weights = torch.cat([value.flatten().double() for value in trainer.model.state_dict().values()])
        return survive.ended, trainer.state.global_step, weights


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture(scope="module")
def uninterrupted_weights(tmp_path_factory):
    stop_reason, updates, weights = train(tmp_path_factory.mktemp("uninterrupted") / "run")
    assert (stop_reason, updates) == ("", UPDATES)
    return weights


@pytest.mark.parametrize("stops", [(1, 30), (13, 2), (14, 15)])
def test_stopped_run_resumes_bit_for_bit(stops, uninterrupted_weights, tmp_path):
    run = tmp_path / "run"
    previous_updates = 0
    for micro_batch in stops:
        stop_reason, updates, _ = train(run, act=terminate, act_at=micro_batch)
        assert stop_reason == "SIGTERM" and updates > previous_updates
        assert json.loads((run / "state.json").read_text())["status"] == "paused"
        previous_updates = updates
    stop_reason, updates, weights = train(run)
    assert (stop_reason, updates) == ("", UPDATES)
    assert torch.equal(weights, uninterrupted_weights)
    assert json.loads((run / "state.json").read_text())["status"] == "finished"


def kill_when_copied(copies):
    """Kill this process when there is a copy of a checkpoint after the first update."""
    deadline = time.monotonic() + 60
    while not any("-update-00000000-" not in path.name for path in copies.glob("commits/*-update-*")):
        if time.monotonic() > deadline:
            os._exit(3)
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)


def test_killed_run_resumes_bit_for_bit(uninterrupted_weights, tmp_path, capsys):
    """In its directory, and from a copy when that is lost."""
    run, copies = tmp_path / "run", tmp_path / "copies"
    script = (
        "import os, signal, sys, torch; torch.set_num_threads(int(sys.argv[3])); from pathlib import Path;"
        "from tests.integrations.test_trainer import kill_when_copied, train; run, copies = map(Path, sys.argv[1:3]);"
        "train(run, act=lambda: kill_when_copied(copies), act_at=20, save_every_seconds=0.0, backup=copies)"
    )
    process = subprocess.run(
        [sys.executable, "-c", script, str(run), str(copies), str(torch.get_num_threads())],
        capture_output=True,
        check=False,
    )
    assert process.returncode == -signal.SIGKILL, process.stderr.decode()
    run.rename(tmp_path / "kept")
    _, updates, weights = train(tmp_path / "kept")
    assert updates == UPDATES
    assert torch.equal(weights, uninterrupted_weights)

    with pytest.raises(SystemExit) as ended:
        train(run, from_url=copies, limit_seconds=1e-6)
    assert ended.value.code == 0 and not run.exists()
    assert "paused before the run was restored (session limit" in capsys.readouterr().err
    _, updates, weights = train(run, from_url=copies, backup=str(copies))
    assert updates == UPDATES
    assert torch.equal(weights, uninterrupted_weights)
    assert [event["update"] for event in read(run / "events.jsonl") if event["event"] == "backup"][-1] == UPDATES
    assert "restored update" in capsys.readouterr().err
    with surviving(tmp_path / "third", from_url=copies):  # the last copy is that of the finished run
        assert json.loads((tmp_path / "third" / "state.json").read_text())["status"] == "finished"
    assert f"to go on: backup {copies}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ({"backup": "run/copies"}, "^backup .*contain one another"),
        ({"from_url": "s3:/bucket"}, "^from_url s3:/bucket: this is no URL"),
        ({"from_url": "nothing"}, "^from_url .*nothing: there is no complete copy"),
        ({"backup": "of another run"}, "the backup belongs to another run"),
    ],
)
def test_places_that_cannot_be_used_are_refused(tmp_path, monkeypatch, places, message):
    monkeypatch.chdir(tmp_path)
    copier(save(tmp_path / "other", 1), tmp_path / "of another run").copy()
    with pytest.raises(UsageError, match=message), surviving("run", **places):
        pytest.fail("it has begun")


def test_epochs_need_seeds_of_their_own(uninterrupted_weights, tmp_path, monkeypatch):
    """If seeds ignored the epoch, weights would differ, so the tests above would notice."""
    from shoestring.integrations import callback

    monkeypatch.setattr(callback, "derive", lambda seed, *_: seed)
    _, _, weights = train(tmp_path / "run")
    assert not torch.equal(weights, uninterrupted_weights)


def test_checkpoints_have_no_pickles_and_no_frozen_weights(uninterrupted_weights, tmp_path):
    train(tmp_path / "run", act=terminate, act_at=4)
    files = {path.name for path in (tmp_path / "run" / "checkpoints").rglob("*") if path.is_file()}
    assert files == {"manifest.json", "state.json", "model.safetensors", "optimizer.safetensors"}
    assert not list(tmp_path.rglob("*.pt*"))
    model = json.loads(next((tmp_path / "run" / "checkpoints").rglob("state.json")).read_text())["model"]
    assert "frozen.weight" not in model and "layers.2.running_mean" in model


def test_checkpoint_of_another_model_is_refused(tmp_path):
    train(tmp_path / "run", act=terminate, act_at=4)
    with pytest.raises(CheckpointError, match="another model") as error:
        train(tmp_path / "run", width=17, allow_inexact=True)  # the frozen weights differ as well
    assert any("(16, 8)" in problem and "(17, 8)" in problem for problem in error.value.problems)
    assert json.loads((tmp_path / "run" / "state.json").read_text())["status"] == "failed"


def test_session_ends_before_its_limit(tmp_path):
    stop_reason, updates, _ = train(tmp_path / "run", limit_seconds=3.01)
    assert stop_reason.startswith("session limit")
    assert updates < UPDATES


def test_resume_needs_the_same_arguments(tmp_path, monkeypatch):
    train(tmp_path / "run", act=terminate, act_at=4)
    training_arguments = make_arguments(tmp_path / "own")
    training_arguments.per_device_train_batch_size = 2
    monkeypatch.setattr(sys.modules[__name__], "make_arguments", lambda _: training_arguments)
    with pytest.raises(UsageError, match="bit for bit") as error:
        train(tmp_path / "run")
    assert any(
        problem.startswith("per_device_train_batch_size: saved with 4, now 2") for problem in error.value.problems
    )
    stop_reason, updates, _ = train(tmp_path / "run", allow_inexact=True)
    assert (stop_reason, updates > UPDATES) == ("", True)


SUMS = Sums()


class Stream(torch.utils.data.IterableDataset):
    """Data without a length, in a random order; it ends before the run does."""

    def __iter__(self):
        yield from (SUMS[int(index)] for index in torch.randperm(20))


@pytest.mark.skipif(not hasattr(Trainer, "_init_training_state"), reason="the loop is one method")
@pytest.mark.parametrize("stop_at", [4, 5, 7, 13])
def test_data_without_a_length_continues_where_it_was(tmp_path, monkeypatch, stop_at):
    training_arguments = make_arguments(tmp_path / "own")
    training_arguments.max_steps, training_arguments.gradient_accumulation_steps = 14, 1
    monkeypatch.setattr(sys.modules[__name__], "make_arguments", lambda _: training_arguments)
    monkeypatch.setattr(sys.modules[__name__], "Sums", Stream)
    *_, whole = train(tmp_path / "whole")
    train(tmp_path / "run", act=terminate, act_at=stop_at)
    _, updates, weights = train(tmp_path / "run")
    assert updates == 14 and torch.equal(weights, whole)


def test_nothing_is_printed_to_stdout(tmp_path, capsys):
    train(tmp_path / "run")
    assert capsys.readouterr().out == ""


def test_requested_saves_become_checkpoints_of_the_run(uninterrupted_weights, tmp_path, monkeypatch):
    training_arguments = make_arguments(tmp_path / "own")
    training_arguments.save_strategy, training_arguments.save_steps = "steps", 4
    monkeypatch.setattr(sys.modules[__name__], "make_arguments", lambda _: training_arguments)
    stop_reason, updates, weights = train(tmp_path / "run", save_every_seconds=1e6, keep_checkpoints=9)
    saved_updates = sorted(
        int(path.name.partition("-")[2]) for path in (tmp_path / "run" / "checkpoints").glob("update-*")
    )
    assert (stop_reason, updates, saved_updates) == ("", UPDATES, [0, 4, 8, 12, 16, 20, 21])
    assert torch.equal(weights, uninterrupted_weights)
    assert not list((tmp_path / "own").glob("checkpoint-*"))


def test_best_evaluation_saves_a_checkpoint_of_the_run(tmp_path):
    training_arguments = make_arguments(tmp_path / "own")
    training_arguments.save_strategy, training_arguments.eval_strategy = "best", "epoch"
    training_arguments.metric_for_best_model, training_arguments.label_names = "loss", ["y"]
    training_arguments.per_device_eval_batch_size, training_arguments.num_train_epochs = 50, 1
    with surviving(tmp_path / "run", save_every_seconds=1e6) as survive:
        torch.manual_seed(3)
        survive(Trainer)(
            model=DropoutModel(), args=training_arguments, train_dataset=Sums(), eval_dataset=Sums()
        ).train()
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("update-*"))[-1] == "update-00000007"
    assert not list((tmp_path / "own").glob("checkpoint-*"))


def run_script(run, after, *, act_at=0):
    """Train as a script does that a pause ends; `after` gets the names of its further parts as they run."""

    class ActingTrainer(Trainer):
        def training_step(self, *args, **kwargs):
            if self.state.global_step == act_at - 1:
                terminate()
            return super().training_step(*args, **kwargs)

    with surviving(run) as survive:
        torch.manual_seed(3)
        trainer = survive(ActingTrainer)(
            model=DropoutModel(), args=make_arguments(run.parent / "own"), train_dataset=Sums()
        )
        try:
            trainer.train(resume_from_checkpoint=None)
            after.append("save")
        except Exception:  # noqa: BLE001  (as scripts do; SystemExit is none)
            after.append("error")
        finally:
            after.append("finally")
        return trainer


def test_pause_ends_the_script(uninterrupted_weights, tmp_path, capsys):
    run, after = tmp_path / "run", []
    with pytest.raises(SystemExit) as ended:
        run_script(run, after, act_at=4)
    state = json.loads((run / "state.json").read_text())
    assert (ended.value.code, after) == (0, ["finally"])
    assert (state["status"], state["update"], state["reason"]) == ("paused", 4, "SIGTERM")
    assert capsys.readouterr().err.endswith("\npaused at 4 of 21; run the same command to continue\n")
    assert not (run / "lock").read_text() and len(list((run / "checkpoints").glob("update-*"))) == 2
    for _ in range(2):  # to the end, and when it has ended: the rest of the script runs
        after.clear()
        trainer = run_script(run, after)
        assert after == ["save", "finally"]
        weights = torch.cat([value.flatten().double() for value in trainer.model.state_dict().values()])
        assert torch.equal(weights, uninterrupted_weights)
        assert json.loads((run / "state.json").read_text())["status"] == "finished"


def test_run_is_one_training(tmp_path):
    with suppress(SystemExit), surviving(tmp_path / "run") as survive:
        trainer = survive(Trainer)(model=DropoutModel(), args=make_arguments(tmp_path / "own"), train_dataset=Sums())
        trainer.args.max_steps = 1
        trainer.train()
        with pytest.raises(UsageError, match=r"second time in .*run") as error:
            trainer.train()
        sys.exit()
    assert "another directory" in error.value.hint
    assert json.loads((tmp_path / "run" / "state.json").read_text())["status"] == "finished"
