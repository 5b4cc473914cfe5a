"""Evaluations and rewards of a library's trainer are printed and recorded; the best weights are loaded at the end."""

import os
import shutil
import signal
from contextlib import suppress

import pytest
import torch
from transformers import EarlyStoppingCallback, Trainer

from shoestring.integrations.trainer import surviving
from shoestring.training.run_directory.directory import RunDirectory
from tests.integrations.test_library import read_events
from tests.integrations.test_log import Killed
from tests.integrations.test_trainer import DropoutModel, Sums, make_arguments

UPDATES = 21
BEST = 14


class ScoringTrainer(Trainer):
    """Scores the second epoch best, and logs rewards."""

    def evaluate(self, *args, **kwargs):
        metrics = super().evaluate(*args, **kwargs)
        metrics["eval_score"] = -abs(self.state.global_step - BEST)
        return metrics

    def log(self, logs, start_time=None):
        super().log({**logs, "reward": 0.25, "rewards/length/mean": 0.5, "rewards/length/std": 0.1}, start_time)


def train(run, *, act=None, act_at=0, keep_best=True, logging_steps=5, every_seconds=None, save=1e6):
    """Train one session; return the trainer and all weights."""
    counter = iter(range(1, 1000))

    class Acting(ScoringTrainer):
        def training_step(self, *args, **kwargs):
            if next(counter) == act_at:
                act()
            return super().training_step(*args, **kwargs)

    arguments = make_arguments(run.parent / "own")
    arguments.eval_strategy = arguments.save_strategy = "epoch"
    arguments.load_best_model_at_end, arguments.metric_for_best_model = keep_best, "score"
    arguments.greater_is_better, arguments.label_names, arguments.eval_on_start = True, ["y"], True
    arguments.per_device_eval_batch_size, arguments.logging_steps = 25, logging_steps
    arguments.restore_callback_states_from_checkpoint = True
    with surviving(run, save_every_seconds=save, exit_when_paused=False) as survive:
        if every_seconds is not None:
            survive.trainer_session.reports._every_seconds = every_seconds
        torch.manual_seed(3)
        trainer = survive(Acting)(
            model=DropoutModel(), args=arguments, train_dataset=Sums(), eval_dataset=Sums(),
            callbacks=[EarlyStoppingCallback(5)],
        )  # fmt: skip
        trainer.train()
    return trainer, torch.cat([value.flatten().double() for value in trainer.model.state_dict().values()])


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def kill():
    raise Killed


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    run = tmp_path_factory.mktemp("whole") / "run"
    return (run, *train(run))


def test_best_weights_are_loaded_and_the_last_ones_are_saved(whole, tmp_path, capsys):
    run, trainer, weights = whole
    _, last_weights = train(tmp_path / "run", keep_best=False)
    assert trainer.state.best_global_step == BEST and not torch.equal(weights, last_weights)
    assert [event["update"] for event in read_events(run, "save") if event["kind"] == "best"] == [7, BEST]
    assert torch.equal(train(run)[1], weights)  # the run has ended: its best weights are loaded again
    copied = shutil.copytree(run, tmp_path / "copy")
    best = copied / "best" / "model.safetensors"
    best.write_bytes(best.read_bytes()[:-1])
    assert torch.equal(train(copied)[1], last_weights)
    assert "note: the model has the last weights, not the best" in capsys.readouterr().err


def test_best_weights_are_the_same_after_kills(whole, tmp_path):
    for act, act_at in (
        (kill, 29),
        (terminate, 3),
    ):  # in the third epoch, before and after the evaluation of the second
        with suppress(Killed):
            train(tmp_path / "run", act=act, act_at=act_at, save=0.0)
    assert torch.equal(train(tmp_path / "run")[1], whole[2])


def test_evaluations_are_events_and_are_printed(tmp_path, capsys):
    run = tmp_path / "run"
    train(run)
    events = read_events(run, "evaluation")
    assert [(event["update"], event["best"]) for event in events] == [(0, False), (7, True), (14, True), (21, False)]
    assert set(events[1]["metrics"]) == {"loss"} and events[1]["seconds"] > 0  # `score` is not in what it logs
    messages = capsys.readouterr().err
    assert f"update 7: validation loss {events[1]['metrics']['loss']:.4g} (best)" in messages
    assert "reward 0.25 · rewards/length/mean 0.5 ·" in messages and "std" not in messages
    progress = read_events(run, "progress")
    assert progress[0]["metrics"]["rewards/length/std"] == 0.1
    final = RunDirectory(run).state().metrics["validation"]["loss"]
    assert final == events[2]["metrics"]["loss"]


def test_updates_that_the_library_does_not_log_are_counted(tmp_path, capsys):
    """Whether the library logs or not, progress has all updates and the same mean loss."""
    run = tmp_path / "run"
    train(run, logging_steps=100, act=terminate, act_at=11)
    assert "no update was completed" not in capsys.readouterr().err
    train(run, logging_steps=100)
    train(tmp_path / "both", logging_steps=4, every_seconds=0.0)
    sums = []
    for name in ("run", "both"):
        progress = read_events(tmp_path / name, "progress")
        assert sum(event["updates"] for event in progress) == UPDATES
        sums.append(sum(event["updates"] * event["loss"] for event in progress))
    assert sums == pytest.approx([sums[0]] * 2, rel=1e-4)
    assert [event["update"] for event in read_events(run, "progress")] == [6, UPDATES]
