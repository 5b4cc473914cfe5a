"""Training with CUDA graphs gives the same bits as without; without a GPU they are faked."""

import random
from contextlib import suppress
from functools import partial

import pytest
import torch
from torch import nn

from shoestring.base.errors import RunError, UsageError
from shoestring.base.settings import Settings
from shoestring.training.engine import cuda_graphs
from shoestring.training.engine import update as update_module
from shoestring.training.engine.cuda_graphs import MAX_GRAPHS, CudaGraphs
from shoestring.training.engine.precision import mixed_precision
from shoestring.training.engine.recovery import Recovering
from shoestring.training.engine.update import update
from tests.sessions import final_bits, session
from tests.training.engine.fake_cuda_graphs import FakeCaptures, use_fake_cuda_graphs

CPU = torch.device("cpu")


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)
        self.frozen, self.linear_of_three = nn.Linear(2, 2).requires_grad_(False), nn.Linear(4, 8)

    def forward(self, values):
        hidden = self.inner(values)
        if len(values) == 3:
            hidden = hidden + self.linear_of_three(values)
        return self.frozen(self.outer(torch.tanh(self.norm(hidden))))


def squares(model, batch, stage=1.0):
    return stage * model(batch["values"]).square().mean()


def summed(model, batch, stage=1.0):
    """Return a sum, and a weight that differs between microbatches."""
    return (model(batch["values"]).square().mean(1) * batch["weights"]).sum(), batch["weights"].sum()


def tensor_weight(value, size):
    loss, weight = value if isinstance(value, tuple) else (value * size, torch.tensor(size))
    return loss.float(), weight.double()


def train(loss, sizes, *, graphs, precision="fp32", updates=5, stages=()):
    """Return the model's state after some updates, their losses, and the fake captures."""
    torch.manual_seed(0)
    model, precision_mode = Network(), mixed_precision(precision, CPU)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    captures = FakeCaptures(model)
    run = CudaGraphs(model, captures) if graphs else None
    losses = []
    for number in range(updates):
        batches = [
            ({"values": torch.randn(size, 4), "weights": torch.rand(size), "name": "all"}, size) for size in sizes
        ]
        stage_loss = partial(loss, stage=stages[number]) if stages else loss
        result = update(
            model,
            optimizer,
            stage_loss,
            batches,
            samples=sum(sizes),
            mixed_precision=precision_mode,
            clip_norm=1.0,
            run=run,
        )
        losses.append(result.loss)
    return model.state_dict(), torch.stack(losses), captures


def equal_results(a, b):
    return torch.equal(a[1], b[1]) and all(torch.equal(a[0][name], b[0][name]) for name in b[0])


@pytest.mark.parametrize("sizes", [(6,), (4, 4), (4, 4, 3), (4, 3, 3)])
@pytest.mark.parametrize("loss", [squares, summed])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_graphs_give_the_same_bits(loss, sizes, precision, monkeypatch):
    # On a GPU a weight remains a tensor, on a CPU it becomes a float.
    monkeypatch.setattr(update_module, "loss_sum_and_weight", tensor_weight)
    plain = train(loss, sizes, graphs=False, precision=precision)
    graphs = train(loss, sizes, graphs=True, precision=precision)
    assert equal_results(graphs, plain)
    capture = graphs[2]
    # The kinds of microbatches: the first, further ones, a smaller last one. Each runs once without a graph.
    assert capture.captures == len(set(sizes[:1])) + len(set(sizes[1:]))
    assert capture.replays == 5 * len(sizes) - capture.captures


def test_each_stage_has_its_own_graph():
    stages = (1.0, 1.0, 2.0, 2.0, 1.0, 2.0)
    plain = train(squares, (6,), graphs=False, updates=6, stages=stages)
    graphs = train(squares, (6,), graphs=True, updates=6, stages=stages)
    assert equal_results(graphs, plain)
    assert (graphs[2].captures, graphs[2].replays) == (2, 4)


def test_further_shapes_run_without_graphs(monkeypatch):
    monkeypatch.setattr(cuda_graphs, "MAX_GRAPHS", 1)
    plain, graphs = (train(squares, (4, 3), graphs=graphs) for graphs in (False, True))
    assert equal_results(graphs, plain)
    assert graphs[2].captures == 1
    assert MAX_GRAPHS > 1


def step(model, run, loss=None):
    """The gradient of an update's only microbatch."""
    batches, optimizer = [({"values": torch.ones(4, 4)}, 4)], torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    precision_mode = mixed_precision("fp32", CPU)
    update(model, optimizer, loss or squares, batches, samples=4, mixed_precision=precision_mode, run=run)


def test_drawing_from_a_generator_that_the_loss_holds_is_rejected():
    generator = random.Random()
    model = nn.Linear(4, 2)
    with pytest.raises(UsageError, match="draws random numbers on the host"):
        step(
            model,
            CudaGraphs(model, FakeCaptures(model)),
            lambda model, batch: squares(model, batch) * generator.random(),
        )


def test_drawing_on_the_host_is_rejected():
    model = nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5))
    with pytest.raises(UsageError, match="draws random numbers on the host") as raised:
        step(model, CudaGraphs(model, FakeCaptures(model)))
    assert raised.value.hint == "set compile=no"


def test_failed_capture_restores_gradients():
    model, gradients_at_capture = Network(), []

    def fail_to_capture(work):
        gradients_at_capture.append([parameter.grad for parameter in model.parameters()])
        work()
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore")

    run = CudaGraphs(model, lambda: fail_to_capture)
    step(model, run)
    before = model.inner.weight.grad
    with pytest.raises(RunError, match="cannot be captured: CUDA error: operation not permitted") as raised:
        step(model, run)
    assert "compile=no" in raised.value.hint
    assert gradients_at_capture == [[None] * len(gradients_at_capture[0])], "a graph makes gradients of its own"
    assert model.inner.weight.grad is before


def test_out_of_memory_releases_graphs():
    torch.manual_seed(0)
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    captures, precision_mode = FakeCaptures(model), mixed_precision("fp32", CPU)
    failures = []

    def new_capture():
        capture = captures()

        def capture_or_fail(work):
            if failures:
                failures.clear()
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")
            return capture(work)

        return capture_or_fail

    run, recovering = CudaGraphs(model, new_capture), Recovering(model, optimizer, precision_mode)
    values = torch.randn(16, 4)

    def attempt(micro_batch):
        parts = [({"values": part}, len(part)) for part in values.split(micro_batch)]
        return update(model, optimizer, squares, parts, samples=16, mixed_precision=precision_mode, run=run)

    def sizes(size, updates):
        return [recovering.run(attempt, size)[1] for _ in range(updates)]

    assert sizes(16, 2) == [16, 16]
    assert captures.replays == 1
    memory_of_size_16 = list(captures.memory)
    assert all(memory() is not None for memory in memory_of_size_16)
    assert sizes(8, 1) == [8]
    failures.append(True)
    assert sizes(8, 1) == [4]
    assert all(memory() is None for memory in memory_of_size_16)
    assert sizes(4, 2) == [4, 4]
    assert captures.captures == 3


class Recent(nn.Module):
    """Keeps tensors of its forward in the way that `keep` names."""

    def __init__(self, keep):
        super().__init__()
        self.layer, self.keep = nn.Linear(4, 2), keep
        self.register_buffer("center", torch.zeros(2))
        self.recent, self.named, self.pair, self.table, self.other = [torch.zeros(2)], {}, (torch.zeros(2),), None, None

    def forward(self, values):
        output = self.layer(values)
        mean = output.detach().mean(0)
        match self.keep:
            case "center":
                self.center = self.center * 0.5 + mean * 0.5
            case "center in place":
                self.center.mul_(0.5).add_(mean, alpha=0.5)
            case "layer.weight":
                self.layer.weight.data = self.layer.weight.data.clamp(-0.1, 0.1)
            case "recent[0]":
                self.recent[0] = mean
            case "recent[2]":
                self.recent.append(mean)
            case "named['mean']":
                self.named["mean"] = mean
            case "pair[0]":
                self.pair = (mean,)
            case "other":
                self.other = mean
            case "table":
                self.table = torch.ones(2) if self.table is None else self.table
        return output - self.center


@pytest.mark.parametrize(
    "name", ["center", "layer.weight", "recent[0]", "recent[2]", "named['mean']", "pair[0]", "other"]
)
def test_replacing_a_tensor_is_rejected(name):
    model = Recent(name)
    run = CudaGraphs(model, FakeCaptures(model))

    def steps():
        step(model, run)
        step(model, run)  # the first microbatch may set what was not set before

    with pytest.raises(UsageError, match="the forward of Recent replaces the tensor") as raised:
        steps()
    assert f"the tensor {name}, and" in raised.value.message
    assert raised.value.hint == "write into it in place (copy_), or set compile=no"


@pytest.mark.parametrize("keep", ["center in place", "table"])
def test_tensors_that_stay_are_captured(keep):
    torch.manual_seed(0)
    plain, model = Recent(keep), Recent(keep)
    model.load_state_dict(plain.state_dict())
    run = CudaGraphs(model, captures := FakeCaptures(model))
    for _ in range(4):
        step(plain, None)
        step(model, run)
    assert (captures.captures, captures.replays) == (1, 3)
    assert torch.equal(model.center, plain.center)


def replace_center(model):
    model.center = model.center + 1


def replace_in_list(model):
    model.recent[0] = torch.ones(2)


def replace_memory(model):
    model.center.data = model.center + 1


def remove_tensor(model):
    model.recent.clear()


@pytest.mark.parametrize("replace", [replace_center, replace_in_list, replace_memory, remove_tensor])
def test_tensors_replaced_between_updates_lead_to_a_new_capture(replace):
    torch.manual_seed(0)
    plain, model = Recent("center in place"), Recent("center in place")
    model.load_state_dict(plain.state_dict())
    run = CudaGraphs(model, captures := FakeCaptures(model))
    for number in range(6):
        if number == 3:
            replace(plain)
            replace(model)
        step(plain, None)
        step(model, run)
    # After it one microbatch runs without a graph.
    assert (captures.captures, captures.replays) == (2, 4)
    assert torch.equal(model.center, plain.center)


def test_writes_of_a_graph_are_counted():
    model = Recent("center in place")
    run = CudaGraphs(model, FakeCaptures(model))
    versions = []
    for _ in range(4):
        step(model, run)
        versions.append(model.center._version)
    assert versions == sorted(set(versions))
    assert model.recent[0]._version == 0


def test_graphs_need_a_gpu_and_the_setting():
    with pytest.raises(UsageError, match="CUDA graphs need a GPU"):
        cuda_graphs.build_cuda_graphs(Network(), Settings(compile="graphs", checkpointing="no"), CPU)
    assert cuda_graphs.build_cuda_graphs(Network(), Settings(), CPU) is None


def test_resumed_run_with_graphs_has_the_same_bits(tmp_path, monkeypatch):
    values = {"architecture": "mlp", "size": "tiny", "dropout": 0.0, "epochs": 4, "save_every_updates": 3}
    session("temporal", tmp_path / "plain", values)
    captures = use_fake_cuda_graphs(monkeypatch)
    session("temporal", tmp_path / "graphs", values, stop="limit", at=5)
    session("temporal", tmp_path / "graphs", values)
    assert len(captures) == 2
    assert all(capture.replays for capture in captures)
    assert final_bits(tmp_path / "graphs") == final_bits(tmp_path / "plain")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_gpu_graphs_give_the_same_bits(precision):
    gpu = torch.device("cuda")

    def train_on_gpu(graphs):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 2)).to(gpu)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        precision_mode = mixed_precision(precision, gpu)
        run = CudaGraphs(model) if graphs else None
        for number in range(6):
            torch.manual_seed(number)
            batches = [({"values": torch.randn(8, 4, device=gpu)}, 8) for _ in range(3)]
            update(model, optimizer, squares, batches, samples=24, mixed_precision=precision_mode, run=run)
        return model.state_dict()

    plain, graphs = train_on_gpu(False), train_on_gpu(True)
    assert all(torch.equal(plain[name], graphs[name]) for name in plain)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_out_of_memory_in_a_capture_is_recovered():
    gpu, failures = torch.device("cuda"), [True]
    torch.manual_seed(0)
    # Layers so large that cuBLAS takes memory in the capture, which outlives the graph.
    model = nn.Sequential(nn.Linear(64, 256), nn.Dropout(0.5), nn.Linear(256, 8)).to(gpu)
    optimizer, precision_mode = torch.optim.SGD(model.parameters(), lr=0.1), mixed_precision("fp32", gpu)
    run, recovering = CudaGraphs(model), Recovering(model, optimizer, precision_mode)

    def loss(model, batch):
        result = squares(model, batch)
        if failures and torch.cuda.is_current_stream_capturing():
            failures.clear()
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")
        return result

    def attempt(micro_batch):
        parts = [({"values": part}, len(part)) for part in torch.randn(16, 64, device=gpu).split(micro_batch)]
        return update(model, optimizer, loss, parts, samples=16, mixed_precision=precision_mode, run=run)

    sizes = [16]
    for number in range(5):
        if number == 4:
            run.release()
        result, micro_batch = recovering.run(attempt, sizes[-1])
        assert torch.isfinite(result.loss)
        sizes.append(micro_batch)
    assert sizes == [16, 16, 8, 8, 8, 8]
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_is_usable_after_a_failed_capture():
    gpu = torch.device("cuda")
    model = nn.Linear(4, 2).to(gpu)
    optimizer, precision_mode = torch.optim.SGD(model.parameters(), lr=0.1), mixed_precision("fp32", gpu)
    run = CudaGraphs(model)

    def waiting(model, batch):
        result = squares(model, batch)
        result.item()  # CUDA ends the capture with an error
        return result

    for loss in (waiting, waiting, squares, squares):
        batches = [({"values": torch.randn(8, 4, device=gpu)}, 8)]
        with suppress(RunError):
            update(model, optimizer, loss, batches, samples=8, mixed_precision=precision_mode, run=run)
        assert torch.cuda.current_stream() == torch.cuda.default_stream()
        assert torch.isfinite(torch.randn(8, device=gpu)).all()
