"""A library's trainer in several processes, which end in the same bits after stops, kills and failures of any."""

import json
import os
import shutil
import signal
import time

import accelerate
import pytest
import torch
from accelerate.utils import DistributedType
from torch import nn
from transformers import Trainer, TrainerCallback

from shoestring.base.errors import UsageError
from shoestring.integrations.trainer import surviving
from shoestring.training.engine.parallel.rank_channel import PEER_LOST_STATUS
from tests.integrations import test_library
from tests.integrations.test_trainer import Sums, make_arguments, terminate, train
from tests.ranks import run_ranks

UPDATES = 12
"""50 samples in microbatches of 4, two to an update in each of two processes, three times."""


def in_ranks(act, folder, size=2):
    """Call `act(rank)` in `size` processes of a launcher."""

    def launched(rank):
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "OMP_NUM_THREADS": "1"}
        act(rank)

    return run_ranks(size, launched, folder)


def train_in_ranks(run, *, act=None, act_at=0, size=2, **options):
    """Train a session, in which the last process calls `act`. Returns the statuses, and the results by rank."""

    def train_rank(rank):
        ended, updates, weights = train(run, **({"act": act, "act_at": act_at} if rank else {}), **options)
        torch.save([ended, updates, weights], run.parent / f"result-{rank}")

    for rank in range(size):
        (run.parent / f"result-{rank}").unlink(missing_ok=True)
    statuses = in_ranks(train_rank, run.parent, size)
    return statuses, [torch.load(file) for rank in range(size) if (file := run.parent / f"result-{rank}").exists()]


def final_state(run):
    """Return the trainer's sections of the last checkpoint without measured times."""
    sections = json.loads((max((run / "checkpoints").glob("update-*")) / "state.json").read_text())
    logs = [sections["log"], *sections["log"].pop("others")]
    for log in logs:
        del log["seconds"]
    return sections["trainer"], logs


def state(run):
    stored = json.loads((run / "state.json").read_text())
    return stored["status"], stored["update"]


def fail():
    raise ValueError("no such row")


def run_out_of_memory():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.unused = nn.Linear(8, 1), nn.Linear(2, 2)

    def forward(self, x, y):
        self.drawn = torch.rand(1)
        return {"loss": (self.layer(x).squeeze(-1) - y).square().mean()}


SPOILED = 7.0


class Spoiling(TrainerCallback):
    """Replaces the weights after the last update, so that the best ones are earlier."""

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step == 3:
            nn.init.constant_(model.layer.weight, SPOILED)


def test_update_and_evaluation_are_those_of_one_process(tmp_path):
    """Two processes train as one does with twice the accumulation; their models begin as that of the first one."""

    def train_linear(rank):
        arguments = make_arguments(tmp_path / f"own-{rank}")
        arguments.max_steps, arguments.gradient_accumulation_steps = 3, 4 if rank is None else 2
        arguments.eval_strategy = arguments.save_strategy = "steps"
        arguments.eval_steps, arguments.save_steps, arguments.per_device_eval_batch_size = 1, 1, 5
        arguments.load_best_model_at_end, arguments.metric_for_best_model = True, "loss"
        arguments.label_names = ["y"]
        torch.manual_seed(rank or 0)
        with surviving(tmp_path / ("one" if rank is None else "two")) as survive:
            trainer = survive(Trainer)(
                model=Linear(), args=arguments, train_dataset=Sums(), eval_dataset=Sums(), callbacks=[Spoiling()]
            )
            trainer.train()
        torch.save([trainer.model.layer.weight.detach(), trainer.model.drawn], tmp_path / f"{rank}.pt")

    train_linear(None)
    assert in_ranks(train_linear, tmp_path) == [0, 0]
    (one, *two), (_, *drawn) = zip(*(torch.load(tmp_path / f"{name}.pt") for name in (None, 0, 1)), strict=True)
    assert not torch.equal(*drawn)
    assert torch.equal(*two) and torch.allclose(one, two[0], rtol=1e-6) and not (one == SPOILED).any()
    evaluations = [test_library.read_events(tmp_path / run, "evaluation") for run in ("one", "two")]
    losses, losses_of_two = ([event["metrics"]["loss"] for event in events] for events in evaluations)
    assert [event["best"] for event in evaluations[1]] == [True, True, False]
    assert losses == pytest.approx(losses_of_two, rel=1e-6)
    reported = [test_library.read_events(tmp_path / run, "progress")[-1] for run in ("one", "two")]
    assert reported[0]["loss"] == pytest.approx(reported[1]["loss"], rel=1e-6)
    assert reported[0]["samples"] == reported[1]["samples"] == 48


def test_processes_continue_bit_for_bit(tmp_path):
    """The second process is asked to stop, killed, fails and runs out of memory, in turn."""
    for name in ("whole", "run"):
        (tmp_path / name).mkdir()
    whole, run = tmp_path / "whole" / "run", tmp_path / "run" / "run"
    statuses, results = train_in_ranks(whole)
    assert (statuses, [(ended, updates) for ended, updates, _ in results]) == ([0, 0], [("", UPDATES)] * 2)
    assert torch.equal(results[0][2], results[1][2])

    copies = tmp_path / "copies"
    statuses, stopped = train_in_ranks(run, act=terminate, act_at=6, from_url=copies, backup=copies)
    assert (statuses, [(ended, updates) for ended, updates, _ in stopped]) == ([0, 0], [("SIGTERM", 3)] * 2)
    assert state(run) == ("paused", 3)
    shutil.rmtree(run)
    kill = {"act": lambda: os.kill(os.getpid(), signal.SIGKILL), "act_at": 5, "save_every_seconds": 0.0}
    started = time.monotonic()
    assert train_in_ranks(run, **kill, from_url=copies, backup=copies) == ([PEER_LOST_STATUS, -signal.SIGKILL], [])
    assert time.monotonic() - started < 60  # the last copy is not waited for
    assert state(run) == ("running", 5)
    for act, reason in ((fail, "GPU 1: no such row"), (run_out_of_memory, "GPU 1: CUDA out of memory")):
        assert train_in_ranks(run, act=act, act_at=4) == ([1, 1], [])
        assert reason in json.loads((run / "state.json").read_text())["reason"]
    with pytest.raises(UsageError, match="bit for bit") as error:
        train(run)
    assert any("processes: saved with 2, now None" in problem for problem in error.value.problems)

    statuses, continued = train_in_ranks(run)
    assert (statuses, [updates for _, updates, _ in continued]) == ([0, 0], [UPDATES] * 2)
    assert all(torch.equal(weights, results[0][2]) for _, _, weights in continued)
    assert final_state(run) == final_state(whole)


@pytest.mark.slow
def test_out_of_memory_halves_the_microbatch_of_all(tmp_path, monkeypatch):
    """A recipe's trainer is made again with smaller microbatches in all processes."""

    def train_recipe(rank, run, micro_batch, fits):
        monkeypatch.setattr(test_library.SumRecipe, "effective_batch", 4)
        outcome = test_library.train_session(run, micro_batch=micro_batch, fits=fits if rank else 8)
        assert (outcome.status, outcome.update) == ("finished", UPDATES + 9)

    for name, micro_batch, fits in (("run", 4, 2), ("smaller", 2, 2)):
        run = tmp_path / name
        assert in_ranks(lambda rank: train_recipe(rank, run, micro_batch, fits), tmp_path) == [0, 0]  # noqa: B023
    (event,) = test_library.read_events(tmp_path / "run", "oom")
    assert (event["done"], event["failure"][:24]) == ("microbatch 2", "GPU 1: CUDA out of memor")
    first, second = (test_library.load_weights(tmp_path / name) for name in ("run", "smaller"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_what_cannot_be_trained_is_refused(tmp_path, monkeypatch):
    def construct(run):
        with surviving(run) as survive:
            survive(Trainer)(model=Linear(), args=make_arguments(tmp_path / "own"), train_dataset=Sums())

    def sharded(rank):
        monkeypatch.setattr(accelerate.Accelerator, "distributed_type", DistributedType.FSDP)
        with pytest.raises(UsageError, match="cannot train with FSDP"):
            construct(tmp_path / "run")

    def locked(rank):
        with pytest.raises(UsageError, match="^GPU 0: .*lock" if rank else "lock"):
            construct(tmp_path / "locked")

    def odd(_):
        os.environ["WORLD_SIZE"] = "3"
        with pytest.raises(UsageError, match="power of two"):
            construct(tmp_path / "run")

    with surviving(tmp_path / "locked"):
        assert [in_ranks(act, tmp_path) for act in (sharded, odd, locked)] == [[0, 0]] * 3
