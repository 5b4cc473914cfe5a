"""A run has the same bits on any number of processes that divides its logical shards."""

import os
from collections import Counter

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

from shoestring.training.monitor.events import read
from tests.ranks import run_ranks
from tests.sessions import final_bits, session
from tests.slow import slow_except

SHARDS = 4


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 6)
        self.layers = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 1))
        self.sometimes = nn.Parameter(torch.ones(3))
        self.convolution = nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)
        self.register_buffer("largest", torch.zeros(6))
        self.embedding.register_buffer("largest", self.largest)  # the same tensor
        self.register_buffer("batches", torch.zeros(2, dtype=torch.int16))
        self.register_buffer("positions", torch.zeros(0), persistent=False)
        self.register_buffer("last", None, persistent=False)
        self.register_buffer("evaluated_batches", torch.zeros(()))

    def forward(self, tokens):
        self.evaluated_batches += not self.training
        if self.training:
            self._write_buffers(tokens)
        embedded = self.embedding(tokens).sum(dim=1)
        embedded = embedded + self.convolution(embedded.expand(2, 6, -1, -1).movedim(2, 0)).mean(dim=(1, 2, 3))[:, None]
        return self.layers(embedded) * (self.sometimes.sum() if int(tokens[0, 0]) == 3 else 1)

    @torch.no_grad()
    def _write_buffers(self, tokens):
        self.largest.mul_(0.9).add_(self.embedding(tokens).amax(dim=(0, 1)))
        assert self.embedding.largest is self.largest
        self.batches += 1
        if len(tokens) != len(self.positions):
            self.positions = torch.arange(len(tokens), dtype=torch.float64)
        self.last = tokens[0].clone()


class Tokens:
    """Samples of different weights; a model with BatchNorm, dropout and a parameter that few shards use."""

    epochs = 3
    effective_batch = 12
    learning_rate = 0.05
    clip_norm = 0.5
    evaluates_alone = True

    def model(self):
        return Network()

    def batch(self, size):
        return torch.ones(size, 5, dtype=torch.int64), torch.ones(size)

    def loss(self, model, batch):
        tokens, targets = batch
        weights = (tokens > 1).sum(dim=1)
        return ((model(tokens)[:, 0] - targets).square() * weights).sum(), weights.sum()

    def evaluate_batch(self, model, batch):
        # A metric of torchmetrics would wait for the other ranks.
        assert not (self.evaluates_alone and dist.is_initialized())
        predictions = model(batch[0])[:, 0] + torch.rand(())
        return predictions, batch[1], {0: len(batch[1])}, predictions[:1]

    def combine(self, results):
        assert not (self.evaluates_alone and dist.is_initialized())
        predictions, targets, _, firsts = (list(values) for values in zip(*results, strict=True))
        errors = (torch.cat(predictions) - torch.cat(targets)).square()
        sample = errors[torch.randint(len(errors), (30,))].mean()
        return {
            "loss": errors.mean(),
            "sample": sample,
            "sizes": [result[2][0] for result in results],
            "first": firsts[-1][0],
        }

    def data(self):
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(0, 7, (64, 5), generator=generator)
        dataset = TensorDataset(tokens, tokens.float().mean(dim=1))
        return {"train": torch.utils.data.Subset(dataset, range(50)), "validation": dataset}


def train_with(size, run, tmp_path, *, make_recipe=lambda rank: Tokens(), values=None, **on_last_rank):
    """Run a session on `size` ranks, which is stopped as `session` stops it, on the last rank only."""
    values = {"logical_shards": SHARDS, "micro_batch": 3, "save_every_updates": 3, **(values or {})}

    def act(rank):
        session(make_recipe(rank), run, values, **(on_last_rank if rank == size - 1 else {}))

    return run_ranks(size, act, tmp_path)


@pytest.mark.parametrize("sharding", slow_except(["ddp", "zero1"], "zero1"))
def test_numbers_of_processes_have_equal_bits(tmp_path, sharding):
    """Also if each session has another number of processes and is stopped within an epoch."""
    values = {"sharding": sharding}
    for size in (1, 2, 4):
        assert train_with(size, tmp_path / str(size), tmp_path, values=values) == [0] * size
    for size, stop, at in ((2, "SIGTERM", 5), (1, "SIGTERM", 3), (4, "limit", 2), (2, "", 0)):
        assert train_with(size, tmp_path / "moved", tmp_path, values=values, stop=stop, at=at) == [0] * size
    bits = final_bits(tmp_path / "1")
    assert all(final_bits(tmp_path / name) == bits for name in ("2", "4", "moved"))
    events = list(read(tmp_path / "moved" / "events.jsonl"))
    assert [event["update"] for event in events if event["event"] == "stop"] == [3, 4, 7, 15]
    ranks = [event["ranks"] for event in events if event["event"] == "progress" and event["session"] == 3]
    assert all(len(reported) == 4 for reported in ranks)
    assert all(rank["memory_bytes"] > 1e7 and rank["exchange_seconds"] > 0 for rank in ranks[-1])
    assert min(rank["waiting_seconds"] for rank in ranks[-1]) >= 0


class Failing(Tokens):
    """Runs out of memory in some phases, each given by the number of its calls on this rank."""

    def __init__(self, **fails_at):
        self._fails_at, self._calls = fails_at, Counter()

    def _call(self, phase):
        self._calls[phase] += 1
        if self._calls[phase] == self._fails_at.get(phase):
            raise torch.OutOfMemoryError(f"CUDA out of memory in {phase}")

    def loss(self, model, batch):
        self._call("forward" if model.training else "comparison")
        loss, weight = super().loss(model, batch)
        if loss.requires_grad:
            loss.register_hook(lambda _: self._call("backward"))
        return loss, weight

    def evaluate_batch(self, model, batch):
        self._call("evaluation")
        result = super().evaluate_batch(model, batch)
        self._call("evaluated")
        return result

    def combine(self, results):
        self._call("combine")
        return super().combine(results)

    def optimizer(self, model):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        optimizer.register_step_post_hook(lambda *_: self._call("step"))
        return optimizer


@pytest.mark.parametrize(
    ("phase", "rank", "count", "count_alone", "failed_update"),
    [
        pytest.param("forward", 1, 4, 6, 1, marks=pytest.mark.slow),
        ("backward", 0, 3, 7, 1),
        pytest.param("step", 1, 3, 3, 2, marks=pytest.mark.slow),
        pytest.param("evaluation", 1, 3, 5, 5, marks=pytest.mark.slow),
        pytest.param("combine", 0, 1, 1, 5, marks=pytest.mark.slow),
    ],
)
def test_out_of_memory_on_one_rank(tmp_path, phase, rank, count, count_alone, failed_update):
    """All ranks take the smaller microbatch, and end in the bits of one process that took it in the same update."""
    for size, failing_rank, calls in ((2, rank, count), (1, 0, count_alone)):
        run = tmp_path / str(size)
        fails = Failing(**{phase: calls})
        assert (
            train_with(
                size,
                run,
                tmp_path,
                make_recipe=lambda own, rank=failing_rank, fails=fails: fails if own == rank else Failing(),
            )
            == [0] * size
        )
        (event,) = [event for event in read(run / "events.jsonl") if event["event"] == "oom"]
        assert (event["update"], event["done"]) == (failed_update, "microbatch 2")
        where = f"GPU {rank}: " if size == 2 else ""
        assert event["failure"] == f"{where}CUDA out of memory in {phase}"
    assert final_bits(tmp_path / "2") == final_bits(tmp_path / "1")


class Fitted(Tokens):
    """Fits something in `data` that differs from process to process, and evaluates on the first one."""

    effective_batch = 50
    fitted = 0

    def data(self):
        Fitted.fitted = Fitted.fitted or os.getpid()
        return super().data()

    def evaluate(self, model, batches):
        assert not dist.is_initialized()
        return {"loss": sum(float(model(tokens).sum()) for tokens, _ in batches)}

    def save_preprocessing(self, folder):
        (folder / "fitted").write_text(str(Fitted.fitted))

    def load_preprocessing(self, folder):
        Fitted.fitted = int((folder / "fitted").read_text())


def test_all_ranks_have_the_preprocessing_of_the_first(tmp_path):
    """Which also evaluates alone: that must not need the other ranks, nor leave its buffers changed."""

    def act(rank):
        session(Fitted(), tmp_path / "run", {"logical_shards": 2, "max_updates": 1, "micro_batch": 25})
        assert dist.get_rank() == rank  # the group is there again
        (tmp_path / str(rank)).write_text(str(Fitted.fitted))

    assert run_ranks(2, act, tmp_path) == [0, 0]
    assert (tmp_path / "0").read_text() == (tmp_path / "1").read_text()
