"""Gradients that are exchanged during backward: the bits of an exchange after it, and failures within it."""

import copy
import hashlib
import os
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from shoestring.techniques import buckets as sizes
from shoestring.training.data.logical_shards import LogicalShards
from shoestring.training.engine.memory import Failure
from shoestring.training.engine.parallel import buckets, overlap, side_work
from shoestring.training.engine.parallel.divided_optimizer import DividedOptimizer
from shoestring.training.engine.parallel.overlap import Overlap
from shoestring.training.engine.parallel.ranks import PeerLostError, Ranks
from shoestring.training.engine.parallel.updates import ShardedUpdates
from shoestring.training.engine.precision import mixed_precision
from shoestring.training.engine.recovery import Recovering
from shoestring.training.engine.update import RepeatedUpdate, UpdateResult
from tests.ranks import run_ranks

CPU = torch.device("cpu")
UPDATES, ROWS = 5, 24


class Network(nn.Module):
    """Has tied weights, a frozen one, one that few samples use, one that nothing uses, and one of a wider type."""

    def __init__(self):
        super().__init__()
        self.embedding, self.hidden, self.head = nn.Embedding(9, 8), nn.Linear(8, 8), nn.Linear(8, 9)
        self.norm = nn.BatchNorm1d(8)
        self.head.weight = self.embedding.weight
        self.hidden.bias.requires_grad = False
        self.sometimes, self.unused = nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(3))
        self.wide = nn.Parameter(torch.ones(8, dtype=torch.float64))
        self.at_block = lambda: None

    def forward(self, tokens):
        hidden = self.norm(self.hidden(self.embedding(tokens)))
        if hidden.requires_grad:
            hidden.register_hook(lambda _: self.at_block())
        hidden = hidden * (1 + (tokens == 3).float()[:, None] * self.sometimes) if 3 in tokens else hidden
        return self.head(torch.relu(hidden * self.wide.float()))


class WithOwnBackward(Network):
    """Computes the gradient of one layer in the forward, which the backward of the loss does not reach."""

    def __init__(self):
        super().__init__()
        self.own = nn.Linear(9, 9)

    def forward(self, tokens):
        output = super().forward(tokens)
        if output.requires_grad:
            self.own(output.detach()).square().mean().backward()
        return output


def weighted_loss(model, tokens, stage=None):
    output, weights = model(tokens), tokens + 1
    losses = nn.functional.cross_entropy(
        output[:, :4] if stage == "first" else output, (tokens + 1) % 4, reduction="none"
    )
    return (losses * weights).sum(), weights.sum()


class Training:
    """The updates of one process."""

    def __init__(self, rank, size, *, shards=4, precision="fp32", zero1=False, clip=None, model=Network, stages=()):
        torch.manual_seed(0)
        self.model, ranks = model(), Ranks.join()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        if zero1 and size > 1:
            self.optimizer = DividedOptimizer(self.optimizer, ranks, CPU)
        self.shards = LogicalShards.of_rank(shards, rank=rank, size=size)
        self.precision, self.clip, self.stages = mixed_precision(precision, CPU), clip, stages
        self.updates = ShardedUpdates(self.model, self.optimizer, self.shards, ranks, CPU, seed=0)

    def update(self, number, micro_batch=3):
        # The last update has so few samples that the last shards are empty.
        samples = 4 if number == UPDATES - 1 else ROWS
        tokens = torch.randint(0, 9, (samples,), generator=torch.Generator().manual_seed(number))

        def by_shard():
            for shard in self.shards.own:
                rows = tokens[list(self.shards.deal(range(samples), shard))]
                yield shard, ((part, len(part)) for part in rows.split(micro_batch) if len(part))

        loss = partial(weighted_loss, stage=self.stages[number]) if self.stages else weighted_loss
        return self.updates.update(
            loss, number, by_shard(), samples=samples, mixed_precision=self.precision, clip_norm=self.clip
        )

    def digest(self):
        values = hashlib.sha256()
        for tensor in self.model.state_dict().values():
            values.update(tensor.numpy().tobytes())
        return values.hexdigest()


def update_into(results, training, number, micro_batch):
    results.append(training.update(number, micro_batch))
    return results[-1]


CASES = {
    "plain": {},
    "clipped": {"clip": 0.1, "shards": 8},
    "fp16": {"precision": "fp16"},
    "zero1": {"zero1": True},
    "own backward": {"model": WithOwnBackward},
    "stages": {"stages": ("first", "second", "first", "second", "first")},
}


@pytest.fixture(autouse=True)
def small_messages(monkeypatch):
    """Let a bucket have 128 bytes, and tensors of 200 be messages of their own, of several pieces."""
    monkeypatch.setattr(sizes, "_OWN_MESSAGE_BYTES", {"cpu": 200})
    monkeypatch.setattr(sizes, "BUCKET", 128)
    monkeypatch.setattr(buckets, "BUCKET", 128)


class Started:
    """Counts the messages that are started during backward and after it."""

    def __init__(self, monkeypatch):
        self.during = self.after = 0
        start = Overlap._start_next

        def count(exchange):
            self.during += exchange._is_watching
            self.after += not exchange._is_watching
            start(exchange)

        monkeypatch.setattr(Overlap, "_start_next", count)


def train_cases(rank, size, folder, *, overlaps):
    with pytest.MonkeyPatch.context() as patch:
        started = Started(patch)
        patch.setattr(Ranks, "can_overlap", overlaps)
        for name, case in CASES.items():
            training = Training(rank, size, **case)
            for number in range(UPDATES):
                before = copy.deepcopy(dict(training.model.named_buffers()))
                result = training.update(number)
                if isinstance(result, RepeatedUpdate):  # the layer's gradient is complete before its factor is known
                    training.model.load_state_dict(before, strict=False)
                    result = training.update(number)
                assert isinstance(result, UpdateResult)
            (folder / f"{name}-{size}-{overlaps}-{rank}").write_text(training.digest())
        assert (started.during > 30) == overlaps and bool(started.after) == overlaps, vars(started)


def test_bits_do_not_depend_on_when_gradients_are_exchanged(tmp_path):
    for name, case in CASES.items():
        training = Training(0, 1, **case)
        for number in range(UPDATES):
            training.update(number)
        (tmp_path / name).write_text(training.digest())

    def act(rank, size):
        for overlaps in (False, True):
            train_cases(rank, size, tmp_path, overlaps=overlaps)

    for size in (2, 4):
        assert run_ranks(size, partial(act, size=size), tmp_path) == [0] * size
    for name in CASES:
        digests = {file.name: file.read_text() for file in tmp_path.glob(f"{name}-*")}
        assert len(digests) == 12
        assert set(digests.values()) == {(tmp_path / name).read_text()}, digests


def fail(error, *_, **__):
    raise error


OUT_OF_MEMORY = torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize(
    ("place", "error"), [("backward", OUT_OF_MEMORY), ("message", MemoryError("no memory")), ("forward", OUT_OF_MEMORY)]
)
def test_process_without_memory_completes_the_exchange(tmp_path, place, error):
    """All learn of it after backward, and repeat the update."""

    def act(rank):
        training, undisturbed = Training(rank, 2), Training(rank, 2)
        for number in range(UPDATES):
            undisturbed.update(number)
            buffers = {name: buffer.clone() for name, buffer in training.model.named_buffers()}
            if number == 2:
                with pytest.MonkeyPatch.context() as patch:
                    started = Started(patch)
                    if rank == 1 and place == "backward":
                        training.model.at_block = partial(fail, error)
                    elif rank == 1 and place == "forward":
                        patch.setattr(nn.BatchNorm1d, "forward", partial(fail, error))
                    elif rank == 1:
                        patch.setattr(overlap, "add_tensors", partial(fail, error))
                    result = training.update(number)
                assert result == Failure(f"GPU 1: {error}")
                assert rank == 1 or started.during
                assert all(parameter.grad is None for parameter in training.model.parameters()) or rank == 1
                training.model.zero_grad()
                training.model.at_block = lambda: None
                for name, buffer in training.model.named_buffers():
                    buffer.copy_(buffers[name])
            assert isinstance(training.update(number), UpdateResult)
        assert training.digest() == undisturbed.digest()

    assert run_ranks(2, act, tmp_path) == [0, 0]


class Recomputing(Network):
    """Accumulates the gradient of `hidden` twice in a backward, from an update on."""

    is_repeated = False

    def forward(self, tokens):
        if self.is_repeated:
            embedded = self.embedding(tokens)
            for _ in range(2):
                embedded = checkpoint(self.hidden, embedded, use_reentrant=True)
            return self.head(self.norm(embedded))
        return super().forward(tokens)


@pytest.mark.parametrize("first", [0, 2])
def test_gradients_that_change_after_they_were_accumulated(tmp_path, first):
    """They are exchanged after backward. An update in which they were exchanged too early is made again."""

    def act(rank):
        digests = []
        for overlaps in (False, True):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Ranks, "can_overlap", overlaps)
                training = Training(rank, 2, model=Recomputing)
                for number in range(UPDATES):
                    training.model.is_repeated = number >= first
                    results = []
                    recovering = Recovering(training.model, training.optimizer, training.precision)
                    assert recovering.run(partial(update_into, results, training, number), 3)[1] == 3
                    is_too_early = overlaps and number == first == 2
                    assert [type(result) for result in results] == [RepeatedUpdate] * is_too_early + [UpdateResult]
            digests.append(training.digest())
        assert digests[0] == digests[1]

    assert run_ranks(2, act, tmp_path) == [0, 0]


def test_lost_process_is_noticed_during_backward(tmp_path):
    def act(rank):
        training = Training(rank, 2)
        training.update(0)
        if rank == 1:
            training.model.at_block = lambda: os._exit(3)
        with pytest.raises(PeerLostError):
            training.update(1)

    assert run_ranks(2, act, tmp_path) == [0, 3]


def test_error_of_a_thread_is_raised_where_its_work_is_waited_for():
    work, results = side_work.side_work(CPU), []
    work.wait()
    work.start(partial(results.append, 1))
    work.start(partial(fail, ConnectionError("lost")))
    work.start(partial(results.append, 2))
    with pytest.raises(ConnectionError, match="lost"):
        work.wait()
    work.start(partial(results.append, 3))
    work.wait()
    assert results == [1, 3]
