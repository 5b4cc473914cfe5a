"""Captured microbatches learn what plain ones learn; without a GPU by a stand-in."""

from functools import partial

import pytest
import torch
from torch import nn

from shoestring.engine import cuda_graphs
from shoestring.engine import update as update_module
from shoestring.engine.cuda_graphs import GRAPHS, CudaGraphs
from shoestring.engine.precision import mixed_precision
from shoestring.engine.recovery import Recovering
from shoestring.engine.update import update
from shoestring.errors import RunError, UsageError
from shoestring.settings import Settings
from tests.engine.stand_in import StandIn, instead_of_cuda
from tests.sessions import final_bits, session

CPU = torch.device("cpu")


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)
        self.frozen, self.of_three = nn.Linear(2, 2).requires_grad_(False), nn.Linear(4, 8)

    def forward(self, values):
        hidden = self.inner(values)
        if len(values) == 3:
            hidden = hidden + self.of_three(values)
        return self.frozen(self.outer(torch.tanh(self.norm(hidden))))


def squares(model, batch, stage=1.0):
    return stage * model(batch["values"]).square().mean()


def summed(model, batch, stage=1.0):
    """A sum, and a weight that differs from microbatch to microbatch."""
    return (model(batch["values"]).square().mean(1) * batch["weights"]).sum(), batch["weights"].sum()


def weighed(value, size):
    loss, weight = value if isinstance(value, tuple) else (value * size, torch.tensor(size))
    return loss.float(), weight.double()


def learnt(loss, sizes, *, graphs, precision="fp32", updates=5, stages=()):
    """The state after some updates, their losses, and what was captured."""
    torch.manual_seed(0)
    model, rules = Network(), mixed_precision(precision, CPU)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    stand_in = StandIn(model)
    run = CudaGraphs(model, stand_in) if graphs else None
    losses = []
    for number in range(updates):
        batches = [
            ({"values": torch.randn(size, 4), "weights": torch.rand(size), "name": "all"}, size) for size in sizes
        ]
        at = partial(loss, stage=stages[number]) if stages else loss
        result = update(
            model, optimizer, at, batches, samples=sum(sizes), mixed_precision=rules, clip_norm=1.0, run=run
        )
        losses.append(result.loss)
    return model.state_dict(), torch.stack(losses), stand_in


def same(one, other):
    return torch.equal(one[1], other[1]) and all(torch.equal(one[0][name], other[0][name]) for name in other[0])


@pytest.mark.parametrize("sizes", [(6,), (4, 4), (4, 4, 3), (4, 3, 3)])
@pytest.mark.parametrize("loss", [squares, summed])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_same_bits_are_learnt(loss, sizes, precision, monkeypatch):
    # A weight stays a tensor on a GPU, where a CPU asks for its number at once.
    monkeypatch.setattr(update_module, "as_sum", weighed)
    plain = learnt(loss, sizes, graphs=False, precision=precision)
    graphs = learnt(loss, sizes, graphs=True, precision=precision)
    assert same(graphs, plain)
    stand_in = graphs[2]
    # The kinds of microbatch of an update: the first, further ones, a smaller last. Each is run plainly once.
    assert stand_in.captures == len(set(sizes[:1])) + len(set(sizes[1:]))
    assert stand_in.replays == 5 * len(sizes) - stand_in.captures


def test_each_stage_has_a_graph_of_its_own():
    stages = (1.0, 1.0, 2.0, 2.0, 1.0, 2.0)
    plain = learnt(squares, (6,), graphs=False, updates=6, stages=stages)
    graphs = learnt(squares, (6,), graphs=True, updates=6, stages=stages)
    assert same(graphs, plain)
    assert (graphs[2].captures, graphs[2].replays) == (2, 4)


def test_shapes_beyond_those_that_are_kept_run_plainly(monkeypatch):
    monkeypatch.setattr(cuda_graphs, "GRAPHS", 1)
    plain, graphs = (learnt(squares, (4, 3), graphs=graphs) for graphs in (False, True))
    assert same(graphs, plain)
    assert graphs[2].captures == 1
    assert GRAPHS > 1


def step(model, run):
    """The gradient of an update's only microbatch."""
    batches, optimizer = [({"values": torch.ones(4, 4)}, 4)], torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    rules = mixed_precision("fp32", CPU)
    update(model, optimizer, squares, batches, samples=4, mixed_precision=rules, run=run)


def test_what_draws_on_the_host_is_refused():
    model = nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5))
    with pytest.raises(UsageError, match="draws random numbers on the host") as refused:
        step(model, CudaGraphs(model, StandIn(model)))
    assert refused.value.hint == "compile=no"


def test_what_cannot_be_captured_is_named_and_leaves_gradients_as_they_were():
    model, at_capture = Network(), []

    def waits(work):
        at_capture.append([parameter.grad for parameter in model.parameters()])
        work()
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore")

    run = CudaGraphs(model, waits)
    step(model, run)
    before = model.inner.weight.grad
    with pytest.raises(RunError, match="cannot be captured: CUDA error: operation not permitted") as refused:
        step(model, run)
    assert "compile=no" in refused.value.hint
    assert at_capture == [[None] * len(at_capture[0])], "a graph makes gradients of its own"
    assert model.inner.weight.grad is before


def test_where_memory_ends_graphs_are_given_back_and_smaller_microbatches_have_their_own():
    torch.manual_seed(0)
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stand_in, rules = StandIn(model), mixed_precision("fp32", CPU)
    full = []

    def record(work):
        if full:
            full.clear()
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")
        return stand_in(work)

    run, recovering = CudaGraphs(model, record), Recovering(model, optimizer, rules)
    values = torch.randn(16, 4)

    def attempt(micro_batch):
        parts = [({"values": part}, len(part)) for part in values.split(micro_batch)]
        return update(model, optimizer, squares, parts, samples=16, mixed_precision=rules, run=run)

    def sizes(size, updates):
        return [recovering.run(attempt, size)[1] for _ in range(updates)]

    assert sizes(16, 2) == [16, 16]
    assert stand_in.replays == 1
    of_sixteen = list(stand_in.memory)
    assert all(memory() is not None for memory in of_sixteen)
    assert sizes(8, 1) == [8]
    full.append(True)
    assert sizes(8, 1) == [4]
    assert all(memory() is None for memory in of_sixteen)
    assert sizes(4, 2) == [4, 4]
    assert stand_in.captures == 3


def test_without_a_gpu_it_is_refused_and_without_being_asked_nothing_is_captured():
    with pytest.raises(UsageError, match="CUDA graphs need a GPU"):
        cuda_graphs.of(Network(), Settings(compile="graphs", checkpointing="no"), CPU)
    assert cuda_graphs.of(Network(), Settings(), CPU) is None


def test_a_run_is_stopped_and_continued_in_the_bits_of_a_plain_one(tmp_path, monkeypatch):
    values = {"architecture": "mlp", "size": "tiny", "dropout": 0.0, "epochs": 4, "save_every_updates": 3}
    session("temporal", tmp_path / "plain", values)
    stand_ins = instead_of_cuda(monkeypatch)
    session("temporal", tmp_path / "graphs", values, stop="limit", at=5)
    session("temporal", tmp_path / "graphs", values)
    assert len(stand_ins) == 2
    assert all(stand_in.replays for stand_in in stand_ins)
    assert final_bits(tmp_path / "graphs") == final_bits(tmp_path / "plain")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_on_a_gpu_bits_are_the_same_with_its_own_random_numbers(precision):
    gpu = torch.device("cuda")

    def trained(graphs):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 2)).to(gpu)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        rules = mixed_precision(precision, gpu)
        run = CudaGraphs(model) if graphs else None
        for number in range(6):
            torch.manual_seed(number)
            batches = [({"values": torch.randn(8, 4, device=gpu)}, 8) for _ in range(3)]
            update(model, optimizer, squares, batches, samples=24, mixed_precision=rules, run=run)
        return model.state_dict()

    plain, graphs = trained(False), trained(True)
    assert all(torch.equal(plain[name], graphs[name]) for name in plain)
