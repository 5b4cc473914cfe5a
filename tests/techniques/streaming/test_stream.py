"""Streamed blocks train to the same bits as resident ones. The CPU is both host and device here."""

import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from shoestring.base.errors import RunError
from shoestring.base.settings import Settings
from shoestring.base.units import bytes_text
from shoestring.techniques import checkpointing
from shoestring.techniques.streaming import placement, slots
from shoestring.techniques.streaming.slots import PlainSlot
from shoestring.techniques.streaming.stream import Stream, stream_of

CPU = torch.device("cpu")


class Adapted(nn.Module):
    """A frozen linear layer with an adapter."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.a, self.b = nn.Linear(width, 2, bias=False), nn.Linear(2, width, bias=False)

    def forward(self, values: Tensor) -> Tensor:
        return self.base(values) + self.b(self.a(values))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width).requires_grad_(False)
        self.inner, self.outer = Adapted(width), nn.Linear(width, width).requires_grad_(False)
        self.dropout, self.scale = nn.Dropout(0.3), nn.Parameter(torch.ones(width))

    def forward(self, values: Tensor) -> Tensor:
        return values + self.outer(functional.gelu(self.inner(self.dropout(self.norm(values))))) * self.scale


class Model(nn.Module):
    def __init__(self, blocks: int = 5, width: int = 6) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, 1)

    def forward(self, values: Tensor) -> Tensor:
        for block in self.blocks:
            values = block(values)
        return self.head(values)


def streamed(model: nn.Module, count: int, setting: str = "no", **settings: Any) -> Stream:
    placement.move(model, object(), Settings(streamed_blocks=count, **settings), CPU)
    checkpointing.apply(model, object(), setting)
    stream = stream_of(model)
    assert stream
    return stream


def square(model: nn.Module, values: Tensor) -> Tensor:
    return model(values).square().mean()


def train(
    model: nn.Module, loss: Callable[[nn.Module, Tensor], Tensor] = square, *, updates: int = 3, **autocast: Any
) -> list[Tensor]:
    """Return the losses, the trained weights and their last gradients after some updates of two microbatches."""
    torch.manual_seed(1)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.1)
    losses = []
    for _ in range(updates):
        optimizer.zero_grad()
        for _ in range(2):
            with torch.autocast("cpu", enabled=bool(autocast), **autocast):
                value = loss(model, torch.randn(3, 6))
            value.backward()
            losses.append(value.detach())
        optimizer.step()
    return [*losses, *trained, *(parameter.grad for parameter in trained if parameter.grad is not None)]


def assert_same(a: list[Tensor], b: list[Tensor]) -> None:
    assert len(a) == len(b) and all(map(torch.equal, a, b))


@pytest.mark.parametrize("setting", ["no", "full", "2"])
@pytest.mark.parametrize("count", [1, 3, 5])
def test_same_bits_as_resident_blocks(count: int, setting: str) -> None:
    plain, model = Model(), Model()
    checkpointing.apply(plain, object(), setting)
    stream = streamed(model, count, setting)
    assert_same(train(model), train(plain))
    assert stream.copies == max(0, count - 2) * 2 * 6 + min(count, 2)


def test_same_bits_in_bf16() -> None:
    plain, model = Model(), Model()
    streamed(model, 5)
    assert_same(train(model, dtype=torch.bfloat16), train(plain, dtype=torch.bfloat16))


class Conditional(Model):
    """Runs blocks twice, not at all, in another order, and some of them without gradients."""

    calls = 0

    def forward(self, values: Tensor) -> Tensor:
        self.calls += 1
        orders = [[0, 0, 3, 1, 4], [2], [4, 3, 2, 1, 0], [1, 1, 4, 4], [0, 2, 4]]
        with torch.no_grad():
            offset = self.blocks[self.calls % 5](values)
        for number in orders[self.calls % 5]:
            values = self.blocks[number](values)
        return self.head(values + offset)


@pytest.mark.parametrize("setting", ["no", "full"])
def test_same_bits_in_any_order_of_blocks(setting: str) -> None:
    plain, model = Conditional(), Conditional()
    checkpointing.apply(plain, object(), setting)
    streamed(model, 5, setting)
    assert_same(train(model, updates=5), train(plain, updates=5))


@pytest.mark.parametrize("reentrant", [False, True])
def test_same_bits_if_several_blocks_are_recomputed_together(reentrant: bool) -> None:
    def loss(model: nn.Module, values: Tensor) -> Tensor:
        values = values.requires_grad_()
        for part in (model.blocks[:3], model.blocks[3:]):
            values = torch.utils.checkpoint.checkpoint(nn.Sequential(*part), values, use_reentrant=reentrant)
        return model.head(values).square().mean()

    plain, model = Model(), Model()
    streamed(model, 5)
    assert_same(train(model, loss), train(plain, loss))


def test_same_bits_of_two_forwards_before_two_backwards() -> None:
    def loss(model: nn.Module, values: Tensor) -> Tensor:
        return model(values).square().mean() + model(values * 2).mean()

    plain, model = Model(), Model()
    streamed(model, 5)
    assert_same(train(model, loss), train(plain, loss))


def test_same_results_without_gradients_and_each_block_is_copied_once_per_forward() -> None:
    plain, model = Model().eval(), Model().eval()
    stream = streamed(model, 5)
    for number in range(4):
        with torch.inference_mode() if number % 2 else torch.no_grad():
            assert torch.equal(model(torch.ones(1, 6)), plain(torch.ones(1, 6)))
    assert 4 * 5 <= stream.copies <= 4 * 5 + 2
    assert_same(train(model), train(plain))


class LateSlot(PlainSlot):
    """A slot that has other values until it is waited for, as one of a GPU may."""

    source: Tensor | None = None

    def fill(self, source: Tensor) -> None:
        self.buffer.fill_(255)
        self.source = source

    def wait(self) -> None:
        if self.source is not None:
            super().fill(self.source)
        self.source = None


@pytest.mark.parametrize("setting", ["no", "full"])
@pytest.mark.parametrize("kind", [Model, Conditional])
def test_a_block_waits_for_its_copy(kind: type[Model], setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "PlainSlot", LateSlot)
    plain, model = kind(), kind()
    checkpointing.apply(plain, object(), setting)
    streamed(model, 5, setting)
    assert_same(train(model), train(plain))


def test_a_copy_starts_as_soon_as_its_slot_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the resident block behind a streamed one computes, and not when the next streamed one begins."""
    order: list[object] = []

    class LoggingSlot(PlainSlot):
        def fill(self, source: Tensor) -> None:
            order.append("copy")
            super().fill(source)

    monkeypatch.setattr(slots, "PlainSlot", LoggingSlot)
    model = Model()

    def log(number: int, values: Tensor) -> None:
        order.append(number)
        values.register_hook(lambda _: order.append(number))

    for number, block in enumerate(model.blocks):
        block.inner.register_forward_hook(lambda *call, number=number: log(number, call[2]))
    streamed(model, 3)  # blocks 0, 2 and 4
    train(model, updates=1)
    order.clear()
    model(torch.ones(1, 6)).sum().backward()
    assert order == [0, "copy", 1, 2, 3, 4, 4, "copy", 3, 2, 1, 0]


class Tapped(Model):
    """A loss takes a value from the inside of a block whose output leads to no loss."""

    def forward(self, values: Tensor) -> Tensor:
        taps: list[Tensor] = []
        hook = self.blocks[1].inner.register_forward_hook(lambda *call: taps.append(call[2]))
        for number, block in enumerate(self.blocks):
            values = block(values.detach() if number == 2 else values)
        hook.remove()
        return self.head(values) + taps[0].mean()


@pytest.mark.parametrize("slot", [PlainSlot, LateSlot])
def test_backward_may_begin_inside_of_a_block(slot: type[PlainSlot], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "PlainSlot", slot)
    plain, model = Tapped(), Tapped()
    streamed(model, 5)
    assert_same(train(model), train(plain))


class FailingSlot(PlainSlot):
    """A slot to which one of the copies fails."""

    left = 0

    def fill(self, source: Tensor) -> None:
        FailingSlot.left -= 1
        if FailingSlot.left == 0:
            raise torch.OutOfMemoryError("CUDA out of memory")
        super().fill(source)


@pytest.mark.parametrize("failing", [1, 2, 4, 7])
def test_a_copy_that_failed_is_made_again(failing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "PlainSlot", FailingSlot)
    plain, model = Model(), Model()
    streamed(model, 5)
    FailingSlot.left = failing
    with pytest.raises(torch.OutOfMemoryError):
        train(model)
    with torch.no_grad():
        for weight, initial in zip(model.parameters(), plain.parameters(), strict=True):
            if weight.requires_grad:
                weight.copy_(initial)
    assert_same(train(model), train(plain))


class RunsOutOfMemory(Model):
    fails_at: tuple[str, int] | None = None

    def forward(self, values: Tensor) -> Tensor:
        for number, block in enumerate(self.blocks):
            if self.fails_at == ("forward", number):
                raise torch.OutOfMemoryError("CUDA out of memory")
            values = block(values)
            if self.fails_at == ("backward", number):
                values.register_hook(self._fail)
        return self.head(values)

    def _fail(self, _: Tensor) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize("setting", ["no", "full"])
def test_same_bits_after_an_attempt_that_failed(setting: str) -> None:
    plain, model = RunsOutOfMemory(), RunsOutOfMemory()
    streamed(model, 5, setting)
    for number in range(5):
        for phase in ("forward", "backward"):
            model.fails_at = (phase, number)
            with pytest.raises(torch.OutOfMemoryError):
                model(torch.ones(2, 6)).sum().backward()
            assert all(weight.device == CPU and isinstance(weight, nn.Parameter) for weight in model.parameters())
    model.fails_at = None
    model.zero_grad()
    checkpointing.apply(plain, object(), setting)
    assert_same(train(model), train(plain))


def test_a_block_that_fails_holds_its_weights_in_host_memory_afterwards() -> None:
    model = Model()
    weights = list(model.parameters())
    streamed(model, 5)
    with pytest.raises(RuntimeError, match="size"):
        model.blocks[2](torch.ones(2, 5))
    assert all(a is b for a, b in zip(model.parameters(), weights, strict=True))


def test_names_and_values_in_the_state_dict_stay() -> None:
    plain, model = Model(), Model()
    streamed(model, 5)
    model(torch.ones(1, 6)).sum().backward()
    state = model.state_dict()
    assert list(state) == list(plain.state_dict())
    assert all(torch.equal(state[name], value) for name, value in plain.state_dict().items())


def test_frozen_weights_that_are_loaded_later_are_used() -> None:
    plain, model = Model(), Model()
    streamed(model, 5)
    train(model, updates=1)
    torch.manual_seed(5)
    changed = {name: torch.rand_like(value) for name, value in plain.state_dict().items()}
    for loaded in (plain, model):
        loaded.load_state_dict(changed)
    assert_same(train(model), train(plain))
    for loaded in (plain, model):
        loaded.blocks[0].outer.weight = nn.Parameter(torch.ones(6, 6), requires_grad=False)
    assert_same(train(model), train(plain))


class Shared(Model):
    """Blocks that share a frozen weight, one that is tied to the head, and one that is in the list twice."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[1].outer.weight = self.blocks[2].outer.weight
        self.blocks[3].norm.weight = self.head.bias = nn.Parameter(torch.ones(6), requires_grad=False)
        self.head.weight = nn.Parameter(torch.ones(6, 6))
        self.blocks[3].inner.base.weight = self.blocks[3].outer.weight
        self.blocks[4].outer.weight = nn.Parameter(self.blocks[4].scale.data.expand(6, 6), requires_grad=False)
        self.blocks.append(self.blocks[0])


def test_shared_weights_stay_on_the_device() -> None:
    plain, model = Shared(), Shared()
    chosen, tensors = placement.choose(model, object(), 5)
    names = [
        {f"{block}.{name}" for streamed in own for _, name, _ in streamed.places} for block, own in enumerate(tensors)
    ]
    assert len(chosen) == 5
    assert [len(own) for own in tensors] == [6, 5, 5, 4, 5], names
    streamed(model, 5)
    assert_same(train(model), train(plain))


class Stateful(nn.Module):
    """A frozen block with a large buffer that it changes, another that it replaces, and running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(6, 6).requires_grad_(False), nn.BatchNorm1d(6).requires_grad_(False)
        self.recurrent, self.adapter = nn.LSTM(6, 6).requires_grad_(False), nn.Linear(6, 6)
        self.register_buffer("counts", torch.zeros(1 << 18))
        self.register_buffer("table", torch.ones(1 << 18))
        self.register_buffer("seen", torch.zeros(1 << 18))

    def forward(self, values: Tensor) -> Tensor:
        self.counts += 1
        self.seen = self.seen + self.counts
        self.layer.bias.data = self.layer.bias.data.double().float()
        values = self.norm(self.layer(values) * self.table[:6] + self.seen[:6])
        return self.adapter(self.recurrent(values)[0])


class StatefulModel(Model):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Stateful() for _ in range(4))


def test_buffers_that_blocks_change_have_the_same_values() -> None:
    plain, model = StatefulModel(), StatefulModel()
    stream = streamed(model, 4)
    assert all(len(weights.by_tensor([])) == 11 for weights in stream.weights)
    assert_same(train(model), train(plain))
    assert all(map(torch.equal, model.buffers(), plain.buffers()))
    assert all(len(weights.by_tensor([])) == 9 for weights in stream.weights)


def test_recurrent_layers_compute_with_the_weights_in_the_slot() -> None:
    """On a GPU the list that torch keeps of the weights would be in host memory otherwise, which a CPU does not see."""
    model, have_same = StatefulModel(), []

    def compare(layer: Any, _: Any) -> None:
        weights = [getattr(layer, name) for name in layer._flat_weights_names]
        have_same.append(all(a is b for a, b in zip(layer._flat_weights, weights, strict=True)))

    streamed(model, 4)
    for block in model.blocks:
        block.recurrent.register_forward_pre_hook(compare)
    train(model, updates=1)
    for block in model.blocks:
        compare(block.recurrent, None)
    assert all(have_same) and len(have_same) == 2 * 4 + 4


def test_a_model_without_gradient_in_its_blocks_copies_each_once_per_forward() -> None:
    """Such as the frozen tower of images before a language model."""
    plain, model = Model(), Model()
    for each_model in (plain, model):
        each_model.blocks.requires_grad_(False)
    stream = streamed(model, 5)
    assert_same(train(model), train(plain))
    assert 6 * 5 <= stream.copies <= 6 * 5 + 2


def test_autocast_does_not_keep_casts_of_a_slot() -> None:
    """It caches casts of leaves that require a gradient, and a tensor in a slot requires none."""
    plain, model = Model(), Model()
    streamed(model, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):  # one cache for two forwards and the changes between them
        for each_model in (plain, model):
            each_model.eval()
            results = [each_model(torch.ones(1, 6))]
            results += [each_model.blocks[number](torch.ones(1, 6)) for number in (4, 0, 2)]
            each_model.results = results
    assert_same(model.results, plain.results)


def test_weights_on_the_disk_train_to_the_same_bits_and_leave_no_file(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    plain, model = Model(), Model()
    stream = streamed(model, 5, stream_from="disk")
    assert list(tmp_path.iterdir()) == []
    mapped = Path("/proc/self/maps").read_text()
    assert mapped.count(str(tmp_path)) == len(stream.weights)
    assert_same(train(model), train(plain))


def test_a_disk_without_space_is_an_error(monkeypatch: Any) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(RunError, match="of a streamed block: No space left") as raised:
        streamed(Model(), 5, stream_from="disk")
    assert "TMPDIR" in str(raised.value)


def test_notes_say_what_is_streamed() -> None:
    plain, model = Model(), Model()
    stream = streamed(model, 5, "full")
    settings = Settings(streamed_blocks=5)
    assert placement.notes(plain, settings) == []
    (note,) = placement.notes(model, settings)
    size = sum(own.layout.size for own in stream.weights)
    assert note.startswith(f"streamed_blocks=5: {bytes_text(size)} of frozen weights are in host memory")
    by_block = settings.replace(stream_order="block")
    for group, users in ((None, "all microbatches"), (8, "up to 8 microbatches"), (1, "one microbatch")):
        _, order = placement.notes(model, by_block, group)
        assert order == f"stream_order=block: each copy is used by {users} of an update"
