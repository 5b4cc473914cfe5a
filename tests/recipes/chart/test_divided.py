"""GRPO by two processes with divided weights, in host memory: it generates, evaluates, and continues after a kill."""

import os
import signal
from dataclasses import replace

import pytest
import torch
import torch.distributed.fsdp  # before the processes are forked

from shoestring.recipe.finding import choose
from shoestring.training.monitor.events import read
from shoestring.training.session.deadline import Deadline
from shoestring_recipes.chart import Chart
from tests.integrations.test_ranks import in_ranks
from tests.recipes.chart.test_training import TINY, read_log
from tests.sessions import run_session

VALUES = TINY | {
    "rewards": "digits",
    "epochs": 2,
    "effective_batch": 8,
    "generations": 4,
    "completion_len": 4,
    "micro_batch": 2,
    "gpus": 2,
}
UPDATES = 4


class Four(Chart):
    """Two updates in each epoch, after which one chart is evaluated. A process is killed in a reward's call."""

    killed_in = 0

    def data(self):
        charts = super().data()["train"]
        parts = {"train": slice(4), "validation": slice(4, 5)}
        return {name: replace(charts, rows=charts.rows[rows]) for name, rows in parts.items()}

    def rewards(self):
        return {"digits": self._digits}

    def _digits(self, completion, _):
        Four.killed_in -= 1
        if not Four.killed_in:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0.1 + sum(map(ord, completion)) % 97 / 97


class Failing(Four):
    """The second process runs out of memory in its third backward, within a block."""

    backwards = 0

    def trainer(self, *args, **kwargs):
        trainer = super().trainer(*args, **kwargs)
        if os.environ["RANK"] == "1":
            modules = dict(trainer.model.named_modules())
            name = next(name for name in modules if name.endswith("language_model.layers.1.mlp"))
            modules[name].register_forward_hook(_watch)
        return trainer


def _watch(_, __, output):
    if output.requires_grad:
        output.register_hook(_fail)


def _fail(_):
    Failing.backwards += 1
    if Failing.backwards == 3:
        raise torch.OutOfMemoryError("CUDA out of memory in backward")


def train(run, sharding, offload="no", killed_in=0, recipe=Four):
    def act(rank):
        Four.killed_in = killed_in if rank else 0  # of this process
        loaded, settings = choose(recipe(), VALUES | {"sharding": sharding, "offload": offload})
        assert run_session(loaded, settings, run, Deadline(None)).update == UPDATES

    return in_ranks(act, run.parent)


def tensors(run):
    newest = max((run / "checkpoints").glob("update-*"))
    return {path.name: path.read_bytes() for path in newest.glob("*.safetensors")}


def test_divided_weights_in_host_memory_continue_after_a_kill(tmp_path):
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert train(whole, "zero3") == [0, 0]
    # Each process has four completions of an update.
    statuses = train(run, "zero3", "parameters", killed_in=4 * 3 + 3)
    assert statuses[0] != 0 and statuses[1] == -signal.SIGKILL
    assert train(run, "zero3", "parameters") == [0, 0]
    assert tensors(run) == tensors(whole) and len(tensors(run)) == 4
    assert read_log(run) == read_log(whole)
    metrics = [
        [event["metrics"] for event in read(path / "events.jsonl") if event["event"] == "evaluation"]
        for path in (run, whole)
    ]
    # The first evaluation after the kill repeats the last one before it.
    assert metrics[0][-2:] == metrics[1] and len(metrics[1]) == 2 and metrics[1][0]["digits"] > 0


@pytest.mark.slow
def test_all_processes_return_to_the_checkpoint_if_one_has_no_memory(tmp_path):
    """Each of FSDP2's collectives is preceded by an agreement, so that no process waits in one for the other."""
    assert train(tmp_path / "run", "zero3", "parameters", recipe=Failing) == [0, 0]
    (event,) = [event for event in read(tmp_path / "run" / "events.jsonl") if event["event"] == "oom"]
    assert (event["done"], event["back_to"]) == ("microbatch 1", 0)
