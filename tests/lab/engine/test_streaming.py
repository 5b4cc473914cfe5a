"""Streamed blocks on a GPU train to the bits of resident ones, in the memory of the resident part and two slots."""

import gc
import threading
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

from shoestring.base.settings import Settings
from shoestring.techniques import checkpointing as checkpointing_
from shoestring.techniques.streaming import host_memory, placement
from shoestring.techniques.streaming.stream import stream_of
from shoestring.training.data.own_generators import OwnGenerators
from shoestring.training.engine.block_order import CheckedBlockOrder
from shoestring.training.engine.precision import mixed_precision
from shoestring.training.engine.update import add_gradients
from tests.lab.engine.networks import CLASSES, Classifier
from tests.lab.engine.test_adapters import values_of_bitsandbytes  # noqa: F401  (a fixture)
from tests.lab.engine.trained import CUDA, assert_same_bits, train
from tests.training.engine.test_techniques import Block as LinearBlock

WIDTH, BLOCKS, STREAMED, ROWS = 256, 6, 4, 512


class Block(nn.Module):
    """Two frozen layers with an adapter."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.inner, self.outer = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)
        self.requires_grad_(False)
        self.adapter, self.dropout = nn.Linear(width, width // 16, bias=False), nn.Dropout(0.1)
        self.back = nn.Linear(width // 16, width, bias=False)

    def forward(self, values):
        hidden = functional.gelu(self.inner(self.norm(values))) + self.back(self.adapter(self.dropout(values)))
        return values + self.outer(hidden)


class Deep(Classifier):
    epochs, width = 1, 48

    def model(self):
        blocks = (Block(self.width) for _ in range(BLOCKS))
        return nn.Sequential(nn.Linear(6, self.width), nn.Sequential(*blocks), nn.Linear(self.width, CLASSES))


class Linears(Deep):
    """With layers whose weights are packed in 4 bits, and adapters of peft."""

    def model(self):
        blocks = (LinearBlock() for _ in range(BLOCKS))
        return nn.Sequential(nn.Linear(6, 8), nn.Sequential(*blocks), nn.Linear(8, CLASSES))


CASES = [
    (Deep, {"precision": "fp16"}),
    (Deep, {"stream_from": "disk"}),
    (Linears, {"lora_r": 2, "quantization": "nf4", "double_quantization": True}),
    (Deep, {"checkpointing": "full"}),
    (Deep, {"checkpointing": "2", "precision": "fp16"}),
    (Linears, {"lora_r": 2, "quantization": "nf4", "checkpointing": "full"}),
]


@pytest.mark.parametrize(
    ("recipe", "values"), [*CASES[:2], *(pytest.param(*case, marks=pytest.mark.slow) for case in CASES[2:])], ids=str
)
def test_same_bits_as_resident_blocks_also_after_a_stop(tmp_path, recipe, values):
    resident = {name: value for name, value in values.items() if name != "stream_from"}
    plain = train(tmp_path / "plain", recipe(network="dense"), resident)
    streamed = {**values, "streamed_blocks": STREAMED}
    train(tmp_path / "run", recipe(network="dense"), streamed, stop="limit", at=4, status="paused")
    assert_same_bits(without_sizes(train(tmp_path / "run", recipe(network="dense"), streamed)), without_sizes(plain))


def without_sizes(trained):
    """Return a result without the number of streamed blocks, which the checkpoint has."""
    del trained.state["progress"]["fit"]
    return trained


def repeatable(recipe):
    """Return the recipe without dropout."""

    class Repeatable(recipe):
        def model(self):
            model = super().model()
            for block in model[1]:
                block.dropout = nn.Identity()
            return model

    return Repeatable(network="dense")


ORDER_CASES = [
    (Deep, {"precision": "fp16"}),
    (Linears, {"lora_r": 2, "quantization": "nf4", "stream_group": 2}),
    (Linears, {"lora_r": 2, "quantization": "nf4", "precision": "fp16", "double_quantization": True}),
    (Deep, {"stream_from": "disk", "offload": "optimizer"}),
]


@pytest.mark.parametrize(
    ("recipe", "values"),
    [*ORDER_CASES[:2], *(pytest.param(*case, marks=pytest.mark.slow) for case in ORDER_CASES[2:])],
    ids=str,
)
def test_same_bits_in_the_order_of_blocks_also_after_out_of_memory(tmp_path, recipe, values, monkeypatch):
    """Of which the second attempt at an update has other blocks on the GPU. fp16 begins with scales that overflow."""
    values = {**values, "checkpointing": "full", "micro_batch": 2}
    resident = {name: value for name, value in values.items() if not name.startswith("stream_")}
    plain = train(tmp_path / "plain", repeatable(recipe), resident)
    block = {**values, "streamed_blocks": STREAMED, "stream_order": "block"}
    losses = []

    def compute(self, model, batch):
        losses.append(threading.current_thread().name)
        value = Classifier.loss(self, model, batch)
        if losses.count("microbatch") > 4 and "failed" not in losses:  # those of the first update, and further ones
            losses.append("failed")
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return value

    monkeypatch.setattr(recipe, "loss", compute)
    run = train(tmp_path / "run", repeatable(recipe), block)
    assert_same_bits(without_sizes(run), without_sizes(plain))
    assert len(run.of_kind("oom")) == 1
    assert not [event for event in run.of_kind("note") if "stream_order=block is not used" in event["message"]]
    assert [thread for thread in threading.enumerate() if thread.name == "microbatch"] == []


def order_peak(microbatches, *, by_block, group=None):
    """Return the weights after two updates, and the peak of allocated memory in the second one."""
    gc.collect()  # the blocks that are recomputed refer to themselves
    torch._C._cuda_clearCublasWorkspaces()
    torch.manual_seed(0)
    model = repeatable(Deep)
    model.width = WIDTH
    network = model.model()
    placement.move(network, object(), Settings(streamed_blocks=STREAMED), CUDA)
    checkpointing_.apply(network, object(), "full")
    order = CheckedBlockOrder(network, partial(stream_of, network), pytest.fail, lambda: group)
    optimizer = torch.optim.AdamW([weight for weight in network.parameters() if weight.requires_grad], lr=0.01)
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats()
        add_gradients(
            network,
            lambda model, batch: model(batch).square().mean(),
            [(torch.randn(ROWS, 6, device=CUDA), ROWS) for _ in range(microbatches)],
            samples=ROWS * microbatches,
            mixed_precision=mixed_precision("fp32", CUDA),
            run_all=order.begin(OwnGenerators()) if by_block else None,
        )
        peak = torch.cuda.max_memory_allocated()
        optimizer.step()
        optimizer.zero_grad()
    return [weight.detach().cpu() for weight in network.parameters() if weight.requires_grad], peak


def test_memory_of_the_order_of_blocks_is_that_of_the_inputs_of_all_blocks():
    """Beside that of one microbatch, for each further one of a group: the input of each block, and one gradient."""
    weights, usual = order_peak(8, by_block=False)
    weights_by_block, by_block = order_peak(8, by_block=True)
    assert all(map(torch.equal, weights, weights_by_block))
    _, of_two = order_peak(2, by_block=True)
    per_microbatch = (BLOCKS + 1) * ROWS * WIDTH * 4
    assert by_block - of_two == pytest.approx(6 * per_microbatch, rel=0.01)
    assert by_block - usual == pytest.approx(7 * per_microbatch, rel=0.1)
    weights_in_groups, in_groups = order_peak(8, by_block=True, group=2)
    assert all(map(torch.equal, weights, weights_in_groups))
    # The second group begins with the gradients of the weights, 0.7% of it.
    assert of_two < in_groups == pytest.approx(of_two, rel=0.01)


class Failing(Deep):
    """Runs out of memory until all blocks are streamed. Its optimizer has the frozen weights too."""

    width = WIDTH

    def __init__(self):
        super().__init__(network="dense")
        self.allocated = []
        self.optimizer = lambda model: torch.optim.AdamW(model.parameters(), lr=0.01)

    def loss(self, model, batch):
        stream = stream_of(model)
        if stream and len(stream.weights) < BLOCKS:
            self.allocated.append(torch.cuda.memory_allocated())
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return super().loss(model, batch)


@pytest.mark.parametrize("checkpointing", ["no", pytest.param("full", marks=pytest.mark.slow)])
def test_blocks_that_are_streamed_after_out_of_memory_leave_the_gpu(tmp_path, checkpointing):
    plain = train(tmp_path / "plain", Failing(), {"checkpointing": checkpointing})
    recipe = Failing()
    run = train(tmp_path / "run", recipe, {"checkpointing": checkpointing, "streamed_blocks": STREAMED - 2})
    assert_same_bits(without_sizes(run), without_sizes(plain))
    assert len(run.of_kind("oom")) == BLOCKS - STREAMED + 2
    saved = [before - after for before, after in zip(recipe.allocated[:-1], recipe.allocated[1:], strict=True)]
    assert saved == [4 * (2 * WIDTH**2 + 4 * WIDTH)] * len(saved)


def updates(streamed_blocks, checkpointing):
    """Make four updates; return the weights, the peak of the last, and allocated memory and segments after each."""
    torch.manual_seed(0)
    model = Deep(network="dense")
    model.width = WIDTH
    network = model.model()
    placement.move(network, object(), Settings(streamed_blocks=streamed_blocks), CUDA)
    stream = stream_of(network) if streamed_blocks else None
    checkpointing_.apply(network, object(), checkpointing)
    trained = [weight for weight in network.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.01)
    memory = []
    for _ in range(4):
        torch.cuda.reset_peak_memory_stats()
        network(torch.randn(8, 6, device=CUDA)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        statistics = torch.cuda.memory_stats()
        memory.append((torch.cuda.memory_allocated(), statistics["segment.all.allocated"]))
    peak = torch.cuda.max_memory_allocated()
    return [weight.detach().cpu() for weight in trained], peak, memory, stream


@pytest.mark.parametrize("checkpointing", ["no", "full"])
def test_memory_is_that_of_the_resident_part_and_the_slots(checkpointing):
    plain, plain_peak, _, _ = updates(0, checkpointing)
    gc.collect()  # the blocks that are recomputed refer to themselves
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    weights, peak, memory, stream = updates(STREAMED, checkpointing)
    assert all(map(torch.equal, weights, plain))
    on_host = sum(own.layout.size for own in stream.weights)
    assert on_host == STREAMED * 4 * (2 * WIDTH**2 + 4 * WIDTH)
    assert peak == pytest.approx(plain_peak - on_host + sum(slot.buffer.nbytes for slot in stream.slots), rel=0.02)
    assert len(set(memory[1:])) == 1, "allocated memory or segments grow"
    assert memory[1][1] == memory[0][1], "segments were allocated after the first update"
    assert all(own.buffer.is_pinned() for own in stream.weights)
    # Four forwards and backwards, each of which copies all blocks but the two that are in the slots, and the first two.
    assert stream.copies == 4 * 2 * (STREAMED - 2) + 2


def test_host_memory_that_cannot_be_pinned_is_used_and_said(tmp_path, monkeypatch):
    """With the same bits. The error of CUDA is not reported by a later kernel."""
    plain = train(tmp_path / "plain", Deep(network="dense"), {})
    runtime, other = torch.cuda.cudart(), torch.empty(2**16, dtype=torch.uint8)
    assert int(runtime.cudaHostRegister(other.data_ptr(), other.nbytes, 0)) == 0
    # Memory that is registered already is refused.
    failing = SimpleNamespace(cudaHostRegister=lambda *_: runtime.cudaHostRegister(other.data_ptr(), other.nbytes, 0))
    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "cudart", lambda: failing)
        assert not host_memory.pin(torch.empty(2**16, dtype=torch.uint8))
        torch.zeros(1, device=CUDA)
        streamed = train(tmp_path / "run", Deep(network="dense"), {"streamed_blocks": STREAMED})
    runtime.cudaHostUnregister(other.data_ptr())
    assert_same_bits(without_sizes(streamed), without_sizes(plain))
    assert "CUDA has refused to pin the host memory" in (tmp_path / "run" / "events.jsonl").read_text()
