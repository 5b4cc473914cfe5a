"""Hugging Face's Trainer with a model and data of its own, run, stopped, killed and continued."""

import json
import os
import signal
import subprocess
import sys

import pytest
import torch
from torch import nn
from transformers import Trainer, TrainingArguments

from shoestring.errors import CheckpointError, UsageError
from shoestring.integrations.trainer import surviving

UPDATES = 21
"""50 samples in microbatches of 4, two to an update, three times: an epoch ends in the midst of an update."""


class Dropping(nn.Module):
    """Draws random numbers in each forward."""

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


def arguments(folder):
    return TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=4, gradient_accumulation_steps=2, num_train_epochs=3,
        learning_rate=1e-2, report_to=[], logging_steps=5, use_cpu=True, save_strategy="no", seed=5,
    )  # fmt: skip


def trained(run, *, act=None, at=0, width=16, **chosen):
    """(Why it ended, updates done, all weights); `act` in the `at`th microbatch of this session."""

    class Acting(Trainer):
        count = 0

        def training_step(self, *args, **kwargs):
            self.count += 1
            if self.count == at:
                act()
            return super().training_step(*args, **kwargs)

    with surviving(run, **chosen) as survive:
        torch.manual_seed(3)
        trainer = survive(Acting)(model=Dropping(width), args=arguments(run.parent / "own"), train_dataset=Sums())
        trainer.train()
        weights = torch.cat([value.flatten().double() for value in trainer.model.state_dict().values()])
        return survive.ended, trainer.state.global_step, weights


def terminated():
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    ended, updates, weights = trained(tmp_path_factory.mktemp("undisturbed") / "run")
    assert (ended, updates) == ("", UPDATES)
    return weights


@pytest.mark.parametrize("stops", [(1, 30), (13, 2), (14, 15)])
def test_stopped_and_continued_it_ends_in_the_same_bits(stops, undisturbed, tmp_path):
    run = tmp_path / "run"
    done = 0
    for at in stops:
        ended, updates, _ = trained(run, act=terminated, at=at)
        assert ended == "SIGTERM" and updates > done
        assert json.loads((run / "state.json").read_text())["status"] == "paused"
        done = updates
    ended, updates, weights = trained(run)
    assert (ended, updates) == ("", UPDATES)
    assert torch.equal(weights, undisturbed)
    assert json.loads((run / "state.json").read_text())["status"] == "finished"


def test_killed_and_continued_it_ends_in_the_same_bits(undisturbed, tmp_path):
    script = (
        "import os, signal, sys, torch; torch.set_num_threads(int(sys.argv[2])); from pathlib import Path;"
        "from tests.integrations.test_trainer import trained;"
        "trained(Path(sys.argv[1]), act=lambda: os.kill(os.getpid(), signal.SIGKILL), at=20, save_every_seconds=0.0)"
    )
    killed = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "run"), str(torch.get_num_threads())],
        capture_output=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    _, updates, weights = trained(tmp_path / "run")
    assert updates == UPDATES
    assert torch.equal(weights, undisturbed)


def test_without_our_order_the_second_epoch_would_begin_as_the_first_one_did(undisturbed, tmp_path, monkeypatch):
    """Which is what this test is there for: it fails where epochs are not told apart."""
    from shoestring.integrations import callback

    monkeypatch.setattr(callback, "derive", lambda seed, *_: seed)
    _, _, weights = trained(tmp_path / "run")
    assert not torch.equal(weights, undisturbed)


def test_nothing_is_pickled_and_frozen_weights_are_not_saved(undisturbed, tmp_path):
    trained(tmp_path / "run", act=terminated, at=4)
    files = {path.name for path in (tmp_path / "run" / "checkpoints").rglob("*") if path.is_file()}
    assert files == {"manifest.json", "state.json", "model.safetensors", "optimizer.safetensors"}
    assert not list(tmp_path.rglob("*.pt*"))
    model = json.loads(next((tmp_path / "run" / "checkpoints").rglob("state.json")).read_text())["model"]
    assert "frozen.weight" not in model and "layers.2.running_mean" in model


def test_the_checkpoint_of_another_model_is_refused(tmp_path):
    trained(tmp_path / "run", act=terminated, at=4)
    with pytest.raises(CheckpointError, match="another model") as refused:
        trained(tmp_path / "run", width=17, allow_inexact=True)  # frozen weights are others already
    assert any("(16, 8)" in problem and "(17, 8)" in problem for problem in refused.value.problems)
    assert json.loads((tmp_path / "run" / "state.json").read_text())["status"] == "failed"


def test_it_ends_before_its_limit(tmp_path):
    ended, updates, _ = trained(tmp_path / "run", limit_seconds=3.01)
    assert ended.startswith("session limit")
    assert updates < UPDATES


def test_a_run_is_continued_under_the_same_arguments(tmp_path, monkeypatch):
    trained(tmp_path / "run", act=terminated, at=4)
    given = arguments(tmp_path / "own")
    given.per_device_train_batch_size = 2
    monkeypatch.setattr(sys.modules[__name__], "arguments", lambda _: given)
    with pytest.raises(UsageError, match="bit for bit") as refused:
        trained(tmp_path / "run")
    assert any("micro_batch: saved under 4, here 2" in problem for problem in refused.value.problems)
    ended, updates, _ = trained(tmp_path / "run", allow_inexact=True)
    assert (ended, updates > UPDATES) == ("", True)


def test_nothing_is_printed_to_stdout(tmp_path, capsys):
    trained(tmp_path / "run")
    assert capsys.readouterr().out == ""


def test_saves_that_the_trainer_s_arguments_ask_for_are_the_run_s_checkpoints(undisturbed, tmp_path, monkeypatch):
    given = arguments(tmp_path / "own")
    given.save_strategy, given.save_steps = "steps", 4
    monkeypatch.setattr(sys.modules[__name__], "arguments", lambda _: given)
    ended, updates, weights = trained(tmp_path / "run", save_every_seconds=1e6, keep_checkpoints=9)
    saved = sorted(int(path.name.partition("-")[2]) for path in (tmp_path / "run" / "checkpoints").glob("update-*"))
    assert (ended, updates, saved) == ("", UPDATES, [0, 4, 8, 12, 16, 20, 21])
    assert torch.equal(weights, undisturbed)
    assert not list((tmp_path / "own").glob("checkpoint-*"))


def test_saves_of_the_best_evaluation_are_the_run_s_checkpoints_too(tmp_path):
    given = arguments(tmp_path / "own")
    given.save_strategy, given.eval_strategy, given.metric_for_best_model = "best", "epoch", "loss"
    given.per_device_eval_batch_size, given.num_train_epochs, given.label_names = 50, 1, ["y"]
    with surviving(tmp_path / "run", save_every_seconds=1e6) as survive:
        torch.manual_seed(3)
        survive(Trainer)(model=Dropping(), args=given, train_dataset=Sums(), eval_dataset=Sums()).train()
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("update-*"))[-1] == "update-00000007"
    assert not list((tmp_path / "own").glob("checkpoint-*"))
