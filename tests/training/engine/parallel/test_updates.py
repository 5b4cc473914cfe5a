"""What several ranks cannot train, and updates that a rank makes without samples."""

import pytest
import torch
from torch import nn

from shoestring.base.errors import UsageError
from shoestring.training.data.logical_shards import LogicalShards
from shoestring.training.engine.cuda_graphs import CudaGraphs
from shoestring.training.engine.parallel.buffers import ShardBuffers
from shoestring.training.engine.parallel.divided_optimizer import require_divisible
from shoestring.training.engine.parallel.ranks import ONE_RANK, Ranks
from shoestring.training.engine.parallel.updates import ShardedUpdates
from shoestring.training.engine.precision import mixed_precision
from tests.ranks import run_ranks
from tests.training.engine.fake_cuda_graphs import FakeCaptures

CPU = torch.device("cpu")


class Gaps(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.SyncBatchNorm(4)
        self.dense = nn.Parameter(torch.zeros(4, 6, 1).transpose(0, 1))
        self.even = nn.Parameter(torch.zeros(4, 6)[:, ::2])


def test_all_that_ranks_cannot_train_is_reported():
    updates = (Gaps(), torch.optim.SGD([torch.zeros(1)]), LogicalShards.of_rank(2, size=1))
    with pytest.raises(UsageError) as error:
        ShardedUpdates(*updates, Ranks(size=2), CPU, seed=0)
    assert [problem.partition(":")[0] for problem in error.value.problems] == ["norm", "even"]
    assert ShardedUpdates(*updates, ONE_RANK, CPU, seed=0)


class Normalized(torch.optim.SGD):
    """Divides all gradients by their common norm."""


def test_only_steps_of_single_parameters_are_divided():
    weights = [nn.Parameter(torch.zeros(2))]
    require_divisible(torch.optim.AdamW(weights))
    hooked = torch.optim.SGD(weights)
    hooked.register_step_pre_hook(lambda *_: None)
    for optimizer, reason in ((hooked, "hooks"), (Normalized(weights), "is not one of torch, bitsandbytes")):
        with pytest.raises(UsageError, match=reason) as error:
            require_divisible(optimizer)
        assert "sharding=ddp" in error.value.hint


def test_rank_without_samples_has_the_scale_of_the_others(tmp_path):
    def act(rank):
        model = nn.Linear(3, 1)
        nn.init.ones_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        updates = ShardedUpdates(
            model, optimizer, LogicalShards.of_rank(2, rank=rank, size=2), Ranks.join(), CPU, seed=0
        )
        batches = [(0, [(torch.ones(1, 3), 1)])] if rank == 0 else [(1, [])]
        updates.update(
            lambda model, batch: model(batch).float().mean() / 2,
            0,
            batches,
            samples=1,
            mixed_precision=mixed_precision("fp16", CPU),
        )
        assert model.weight.tolist() == [[pytest.approx(0.95, rel=1e-3)] * 3]

    assert run_ranks(2, act, tmp_path) == [0, 0]


class Centered(nn.Module):
    """Has buffers other than running statistics, which each forward changes in place."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(3, 2), nn.BatchNorm1d(2)
        self.register_buffer("center", torch.zeros(2))

    def forward(self, values):
        output = self.norm(self.layer(values))
        self.center.mul_(0.5).add_(self.layer.weight.detach().mean(1), alpha=0.5)
        return (output + self.center).square().mean()


def test_graphs_of_shards_change_buffers():
    def train(graphs):
        torch.manual_seed(0)
        model = Centered()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        updates = ShardedUpdates(model, optimizer, LogicalShards.of_rank(2), ONE_RANK, CPU, seed=0)
        run = CudaGraphs(model, FakeCaptures(model)) if graphs else None
        for number in range(4):
            updates.update(
                lambda model, batch: model(batch),
                number,
                [(shard, [(torch.randn(2, 3), 2) for _ in range(2)]) for shard in (0, 1)],
                samples=8,
                mixed_precision=mixed_precision("fp32", CPU),
                run=run,
            )
        return model.state_dict()

    plain, graphs = train(graphs=False), train(graphs=True)
    assert plain["norm.num_batches_tracked"] == 8
    assert all(torch.equal(plain[name], graphs[name]) for name in plain)


def test_equal_statistics_of_three_shards_remain():
    model = nn.BatchNorm1d(500)
    model.running_mean.normal_()
    before = model.running_mean.clone()
    buffers = ShardBuffers(model, ONE_RANK, torch.device("cpu"))
    buffers.begin_update()
    mean, variance = buffers.end_shard(0)
    sums = [mean + mean + mean, variance + 1 + variance + variance]
    assert not torch.equal(sums[0] / 3, before)
    buffers.end_update(sums, 3, buffers.changes)
    assert torch.equal(model.running_mean, before)
    assert torch.allclose(model.running_var, torch.full((500,), 4 / 3))


@pytest.mark.parametrize(
    ("place", "errors"),
    [
        # The other rank has made its step then, and would make it again in a repetition of the update.
        ("torch.nn.utils.clip_grad_norm_", ["HalfDoneError", "HalfDoneError"]),
        # The other rank waits in a collective; it ends when this one does.
        ("shoestring.training.engine.parallel.updates.complete", ["PeerLostError", "RanksApartError"]),
    ],
)
def test_rank_without_memory_after_the_ranks_have_agreed_on_the_gradients(tmp_path, monkeypatch, place, errors):
    def act(rank):
        model = nn.Linear(3, 1)
        optimizer, shards = torch.optim.SGD(model.parameters(), lr=0.1), LogicalShards.of_rank(2, rank=rank, size=2)
        updates = ShardedUpdates(model, optimizer, shards, Ranks.join(), CPU, seed=0)
        if rank == 1:
            monkeypatch.setattr(place, run_out_of_memory)
        with pytest.raises(BaseException) as raised:
            updates.update(
                lambda model, batch: model(batch).square().mean(),
                0,
                [(rank, [(torch.ones(1, 3), 1)])],
                samples=2,
                mixed_precision=mixed_precision("fp32", CPU),
                clip_norm=1.0,
            )
        (tmp_path / f"{rank}").write_text(raised.type.__name__)

    assert run_ranks(2, act, tmp_path) == [0, 0]
    assert [(tmp_path / f"{rank}").read_text() for rank in range(2)] == errors


def run_out_of_memory(*_, **__):
    raise torch.OutOfMemoryError("CUDA out of memory")
