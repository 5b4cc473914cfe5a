"""Runs whose weights are divided among ranks: the learning of replicas, exact resume, whole weights for every use."""

import os
import shutil
import signal

import pytest
import torch
import torch.distributed.fsdp  # before the ranks are forked
from torch import nn

from shoestring.base.errors import UsageError
from shoestring.techniques import offload
from shoestring.training.checkpoint.sections import read_sections
from shoestring.training.checkpoint.weights import load_weights
from shoestring.training.engine.parallel.ranks import PeerLostError
from shoestring.training.monitor.events import read
from tests.invariants.test_ranks import Failing, Tokens
from tests.ranks import run_ranks
from tests.sessions import light_bits, session
from tests.slow import slow_except

VALUES = {"ema": 0.5, "logical_shards": 4, "micro_batch": 3, "save_every_updates": 3}


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.inner = nn.Sequential(nn.BatchNorm1d(size), nn.Linear(size, size), nn.Dropout(0.2), nn.Tanh())

    def forward(self, values):
        return values + self.inner(values)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 5)  # rows that ranks cannot share equally
        self.blocks = nn.ModuleList([Block(5) for _ in range(3)])
        self.head = nn.Linear(5, 7)
        self.head.weight = self.embedding.weight
        self.sometimes, self.never = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))

    def forward(self, tokens):
        values = self.embedding(tokens).sum(dim=1)
        for block in self.blocks:
            values = block(values)
        return self.head(values).sum(dim=1, keepdim=True) * (self.sometimes.sum() if int(tokens[0, 0]) == 3 else 1)


class Blocks(Tokens):
    """Tied weights, BatchNorm, dropout, samples of different weights, and a parameter that few microbatches use."""

    epochs = 2
    max_updates = 6
    learning_rate = 0.01
    evaluates_alone = False  # FSDP2 gathers weights in the default group
    evaluate_batch = combine = None  # the evaluation computes losses, at which a test can stop it

    def model(self):
        return Network()


def evaluations(run):
    return [event["metrics"]["loss"] for event in read(run / "events.jsonl") if event["event"] == "evaluation"]


def saved(run):
    """Return the whole state of the newest checkpoint."""
    newest = max((run / "checkpoints").glob("update-*"))
    return newest, read_sections(newest, int(newest.name[7:]))


def train(size, run, tmp_path, sharding, *, make_recipe=lambda rank: Blocks(), stop="", at=0, values=None, **arguments):
    values = {"sharding": sharding, **VALUES, **(values or {})}

    def act(rank):
        session(make_recipe(rank), run, values, **({"stop": stop, "at": at} if rank == size - 1 else {}), **arguments)

    return run_ranks(size, act, tmp_path)


def test_sharded_runs(tmp_path):
    """Losses are those of replicas within rounding; a stop changes no bit; the whole weights serve every other use."""
    for name, sharding in (("ddp", "ddp"), ("zero2", "zero2"), ("zero3", "zero3")):
        assert train(2, tmp_path / name, tmp_path, sharding) == [0, 0]
    replicas = evaluations(tmp_path / "ddp")
    _, state = saved(tmp_path / "ddp")
    for name in ("zero2", "zero3"):
        assert evaluations(tmp_path / name) == pytest.approx(replicas, rel=1e-4)
        for section in ("model", "averaged"):
            for key, tensor in saved(tmp_path / name)[1][section].items():
                torch.testing.assert_close(tensor, state[section][key], rtol=1e-4, atol=1e-5)
    bits = final_bits_of(tmp_path / "zero3")
    for stop, at in (("SIGTERM", 5), ("SIGTERM", 14), ("", 0)):
        assert train(2, tmp_path / "stopped", tmp_path, "zero3", stop=stop, at=at) == [0, 0]
    assert final_bits_of(tmp_path / "stopped") == bits
    events = list(read(tmp_path / "stopped" / "events.jsonl"))
    assert [event["update"] for event in events if event["event"] == "stop"] == [3, 5, 6]  # the second in an evaluation


@pytest.mark.parametrize("offloaded", slow_except(["parameters", "optimizer"], "optimizer"))
def test_offloaded_shares_have_the_same_bits(tmp_path, monkeypatch, offloaded):
    """Also after one of the processes was killed. States are in another memory than weights, as those of a GPU are."""
    assert train(2, tmp_path / "zero3", tmp_path, "zero3") == [0, 0]
    if offloaded == "optimizer":
        monkeypatch.setattr(offload, "HOST", torch.device("cpu", 0))
    values = {"offload": offloaded}
    statuses = train(2, tmp_path / "killed", tmp_path, "zero3", stop="SIGKILL", at=12, values=values)
    assert statuses[0] != 0 and statuses[1] == -signal.SIGKILL
    for name in ("straight", "killed"):
        assert train(2, tmp_path / name, tmp_path, "zero3", values=values) == [0, 0]
    bits = final_bits_of(tmp_path / "straight")
    assert final_bits_of(tmp_path / "killed") == bits
    without = final_bits_of(tmp_path / "zero3")
    names = [name for name in without[1] if name.endswith(".safetensors")]
    assert [bits[1][name] for name in names] == [without[1][name] for name in names] and len(names) >= 4
    assert bits[2:] == without[2:]


def final_bits_of(run):
    newest, _ = saved(run)
    files = {path.name: path.read_bytes() for path in newest.iterdir()}
    return newest.name, files, light_bits(run / "light"), light_bits(run / "best")


class FailingBlock(Block):
    def forward(self, values):
        if self.training:
            self.call("forward")
        result = super().forward(values)
        if result.requires_grad:
            result.register_hook(lambda _: self.call("backward"))
        return result


class FailingBlocks(Failing):
    """Runs out of memory in the second of the blocks, or where `Failing` does."""

    evaluates_alone = False

    epochs, max_updates, learning_rate = 2, 6, 0.01

    def model(self):
        network = Network()
        network.blocks[1] = FailingBlock(5)
        network.blocks[1].call = lambda phase: self._call(f"{phase} of a block")
        return network


def train_failing(run, tmp_path, *, ranks=(0, 1), **fails_at):
    """Train on two ranks, of which those in `ranks` run out of memory; return their exit statuses."""

    def make_recipe(rank):
        return FailingBlocks(**{phase.replace("_", " "): call for phase, call in fails_at.items() if rank in ranks})

    def act(rank):
        try:
            session(make_recipe(rank), run, {"sharding": "zero3", **VALUES})
        except PeerLostError as error:
            os._exit(error.status)

    return run_ranks(2, act, tmp_path)


@pytest.mark.slow
def test_out_of_memory_on_all_ranks(tmp_path):
    """All take half the microbatch; a block that ran out of memory leaves no trace in FSDP2."""
    bits = {}
    for name, fails_at in {
        "forward": {"forward": 4},
        "backward of a block": {"backward_of_a_block": 4},
        "evaluation": {"evaluation": 8},
    }.items():
        assert train_failing(tmp_path / name, tmp_path, **fails_at) == [0, 0]
        (event,) = [event for event in read(tmp_path / name / "events.jsonl") if event["event"] == "oom"]
        assert event["done"] == "microbatch 2"
        bits[name] = final_bits_of(tmp_path / name)
    assert bits["forward"] == bits["backward of a block"]


@pytest.mark.parametrize(
    ("ranks", "fails_at", "statuses"),
    [
        ((0,), {"backward_of_a_block": 4}, {75, 76}),  # the other waits for its gradients
        pytest.param((0,), {"evaluation": 8}, {75, 76}, marks=pytest.mark.slow),
        pytest.param((1,), {"evaluated": 8}, {76}, marks=pytest.mark.slow),  # the other waits for the next batch
        pytest.param((1,), {"step": 3}, {0}, marks=pytest.mark.slow),  # the other waits for the agreement
    ],
)
def test_out_of_memory_on_one_rank(tmp_path, monkeypatch, ranks, fails_at, statuses):
    """Where another rank waits in a collective, both end; the next session begins with half the microbatch."""
    monkeypatch.setattr("shoestring.training.engine.parallel.ranks._PATIENCE_SECONDS", 0.3)
    run = tmp_path / "run"
    assert set(train_failing(run, tmp_path, ranks=ranks, **fails_at)) == statuses
    if statuses != {0}:
        assert train_failing(run, tmp_path) == [0, 0]
    events = list(read(run / "events.jsonl"))
    (event,) = [event for event in events if event["event"] == "oom"]
    assert (event["micro_batch"], event["done"]) == (3, "microbatch 2")
    fit = saved(run)[1]["progress"]["fit"]
    is_in_evaluation = not {"evaluation", "evaluated"}.isdisjoint(fails_at)
    assert (fit["micro_batch"], fit["evaluation_batch"]) == ((3, 2) if is_in_evaluation else (2, None))


class Still(Blocks):
    learning_rate = 0.0


def test_a_checkpoint_fits_any_number_of_ranks(tmp_path):
    """Another number of ranks goes on with the same weights, which is not exact; other uses see whole weights."""
    run = tmp_path / "run"
    assert train(2, run, tmp_path, "zero2", stop="SIGTERM", at=4) == [0, 0]
    checkpoint, before = saved(run)
    network = Network()
    load_weights(checkpoint, network)
    names = [name for name, _ in network.named_parameters()]
    assert all(torch.equal(network.state_dict()[name], before["averaged"][name]) for name in names)
    with pytest.raises(UsageError, match="bit for bit") as caught:
        session(Still(), run, {"sharding": "zero2", **VALUES})
    assert caught.value.problems == ("sharding: saved with zero2 on 2 GPUs, now None",)
    for size in (1, 4):
        resumed = tmp_path / str(size)
        shutil.copytree(run, resumed)
        exits = train(
            size, resumed, tmp_path, "zero2", make_recipe=lambda rank: Still(), allow_inexact=True, stop="SIGTERM", at=1
        )
        assert exits == [0] * size
        checkpoint_after, after = saved(resumed)
        assert checkpoint_after.name > checkpoint.name
        assert all(torch.equal(after["model"][name], before["model"][name]) for name in names)
        assert any(path.name == f"optimizer-rank{size - 1:04d}.safetensors" for path in checkpoint_after.iterdir()) == (
            size > 1
        )
