"""Each streamed block for all microbatches: the bits of one microbatch after the other, with fewer copies."""

import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shoestring.techniques import checkpointing
from shoestring.techniques.streaming.block_order import BlockOrder
from shoestring.techniques.streaming.stream import stream_of
from shoestring.training.engine.precision import mixed_precision
from shoestring.training.engine.update import add_gradients
from tests.slow import slow_except
from tests.techniques.streaming.test_stream import CPU, Block, assert_same, streamed
from tests.techniques.streaming.test_stream import Model as WithDropout

MICROBATCHES = 4


class Deterministic(WithDropout):
    def __init__(self, blocks: int = 5, width: int = 6) -> None:
        super().__init__(blocks, width)
        for block in self.blocks:
            block.dropout = nn.Identity()


def square(model: nn.Module, values: Tensor) -> Tensor:
    return model(values).square().mean()


def gradients(
    model: nn.Module,
    loss: Callable[[nn.Module, Any], Any] = square,
    *,
    by_block: bool,
    precision: Any = "fp32",
    order: BlockOrder | None = None,
    shapes: Sequence[tuple[int, ...]] = ((3, 6),) * MICROBATCHES,
) -> list[Tensor]:
    """Return the sum of the losses of some microbatches and the gradients of their weighted mean."""
    torch.manual_seed(1)
    microbatches = [(torch.randn(*shape), shape[0]) for shape in shapes]
    stream = stream_of(model)
    if by_block and stream and order is None:
        order = BlockOrder(stream)
    total = add_gradients(
        model,
        loss,
        microbatches,
        samples=sum(shape[0] for shape in shapes),
        mixed_precision=mixed_precision(precision, CPU),
        run_all=order.run if order else None,
    )
    assert total
    return [total.loss_sum, *(weight.grad for weight in model.parameters() if weight.grad is not None)]


def both(
    kind: Callable[[], nn.Module],
    loss: Callable[[nn.Module, Any], Any] = square,
    *,
    count: int = 5,
    **arguments: Any,
) -> int:
    """Compare the gradients in both orders, and return the number of copies."""
    plain, model = kind(), kind()
    checkpointing.apply(plain, object(), "full")
    stream = streamed(model, count, "full")
    expected = gradients(plain, loss, by_block=False, **arguments)
    assert_same(gradients(model, loss, by_block=True, **arguments), expected)
    assert [thread for thread in threading.enumerate() if thread.name == "microbatch"] == []
    return stream.copies


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("count", [1, 3, 5])
def test_same_bits_and_each_block_is_copied_for_all_microbatches_at_once(count: int, precision: str) -> None:
    """Two blocks are in their slots when backward begins, and the first two for the update that follows."""
    assert both(Deterministic, count=count, precision=precision) == (2 * count - 2 if count > 1 else 1)


def test_a_weighted_loss_is_divided_by_the_weight_that_the_first_microbatch_expects() -> None:
    def loss(model: nn.Module, values: Tensor) -> Any:
        return model(values).square().sum(), values.abs().sum()

    both(Deterministic, loss)


def test_same_bits_of_samples_of_different_lengths() -> None:
    shapes = [(3, 7, 6), (3, 2, 6), (2, 5, 6), (1, 1, 6)]
    assert both(Deterministic, shapes=shapes, precision="bf16") == 2 * 5 - 2


class Joined(nn.Module):
    """A block with several inputs, by position and by name, some without gradients, and several outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.condition = Block(6), nn.Linear(6, 6).requires_grad_(False)
        self.block.dropout = nn.Identity()

    def forward(self, values: Tensor, mask: Tensor, *, condition: dict[str, Tensor], scale: float) -> Any:
        shift = self.condition(condition["a"]) * condition["a"]  # a gradient from two operators
        values = torch.where(mask, self.block(values) + shift, values) * scale
        return values, (mask.sum(), values.mean(0), condition)


class ManyInputs(nn.Module):
    """Outputs of all blocks reach the loss, and one input that is trained reaches all blocks.

    The code between blocks changes their outputs in place, as models of images and text do.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks, self.first = nn.ModuleList(Joined() for _ in range(5)), nn.Linear(6, 6)

    def forward(self, values: Tensor) -> Tensor:
        mask, condition = values > 0, {"a": torch.tanh(self.first(values))}
        values, total = values.clone(), torch.zeros(())
        for block in self.blocks:
            values, (count, mean, condition) = block(values, mask, condition=condition, scale=0.5)
            values += mean
            values[0] = values[0] + condition["a"][0].detach()
            total = total + count * mean.sum()
        return values.sum() + total


@pytest.mark.parametrize("count", [2, 5])
def test_same_bits_of_blocks_with_several_inputs_and_outputs(count: int) -> None:
    both(ManyInputs, count=count)


class Reference(Deterministic):
    """Runs all blocks without gradients first, as the reference of preferences, and then some of them with."""

    def forward(self, values: Tensor) -> Tensor:
        with torch.no_grad():
            reference = super().forward(values)
        for number in (0, 1, 3, 4):
            values = self.blocks[number](values)
        return self.head(values) - reference


def test_same_bits_of_forwards_without_gradients() -> None:
    assert both(Reference, count=5) < MICROBATCHES * 5


class Uneven(Deterministic):
    """The number of blocks depends on the microbatch."""

    def forward(self, values: Tensor) -> Tensor:
        for number in range(int(values[0, 0] > 0), 5 - 2 * int(values[0, 1] > 0)):
            values = self.blocks[number](values)
        return self.head(values)


class Repeated(Deterministic):
    def forward(self, values: Tensor) -> Tensor:
        return self.head(self.blocks[1](self.blocks[1](self.blocks[0](values))))


@pytest.mark.parametrize("kind", [Uneven, Repeated])
def test_other_sums_are_known_if_microbatches_use_other_blocks_or_one_twice(kind: type[nn.Module]) -> None:
    plain, model = kind(), kind()
    order = BlockOrder(streamed(model, 5, "full"))
    results = gradients(model, by_block=True, order=order)
    assert not order.is_regular
    for result, expected in zip(results, gradients(plain, by_block=False), strict=True):
        torch.testing.assert_close(result, expected)


def test_a_value_from_the_inside_of_a_block_is_an_error() -> None:
    """Its gradient would have to begin where backward has no graph."""

    def loss(model: nn.Module, values: Tensor) -> Tensor:
        taps: list[Tensor] = []
        hook = model.blocks[1].inner.register_forward_hook(lambda *call: taps.append(call[2]))
        result = model(values).mean() + taps[0].mean()
        hook.remove()
        return result

    model = Deterministic()
    streamed(model, 5, "full")
    with pytest.raises(RuntimeError, match="a value from the inside of a block"):
        gradients(model, loss, by_block=True)


def test_an_input_that_is_changed_after_its_block_is_an_error() -> None:
    def loss(model: nn.Module, values: Tensor) -> Tensor:
        first = model.blocks[0](values)
        second = model.blocks[1](first)
        first.mul_(2)
        return (first + second).mean()

    model = Deterministic()
    streamed(model, 5, "full")
    with pytest.raises(RuntimeError, match="modified by an in-place operation"):
        gradients(model, loss, by_block=True)


class Watched(Deterministic):
    """Counts the activations of blocks, and those of the loss, that exist at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.existing, self.most = {"inner": 0, "loss": 0}, {"inner": 0, "loss": 0}
        for block in self.blocks:
            block.inner.register_forward_hook(lambda *call: self.watch("inner", call[2]))

    def watch(self, kind: str, values: Tensor) -> None:
        self.existing[kind] += 1
        self.most[kind] = max(self.most[kind], self.existing[kind])
        weakref.finalize(values.untyped_storage(), lambda: self.existing.update({kind: self.existing[kind] - 1}))


def test_activations_exist_for_one_microbatch_at_a_time_and_nothing_is_left() -> None:
    def loss(model: Any, values: Tensor) -> Tensor:
        logits = model(values).expand(3, 50).exp()
        model.watch("loss", logits)
        return logits.log().square().mean()

    model = Watched()
    streamed(model, 3, "full")
    gc.collect()
    gc.disable()
    try:
        gradients(model, loss, by_block=True)
    finally:
        gc.enable()
    assert model.most == {"inner": 1, "loss": 1} and model.existing == {"inner": 0, "loss": 0}


class Stop(BaseException):
    pass


ERRORS = {
    "out of memory": torch.OutOfMemoryError,
    "interrupt": KeyboardInterrupt,
    "error": ValueError,
    "stop": Stop,
}


@pytest.mark.parametrize("where", ["first", "middle", "last", "loss", "backward"])
@pytest.mark.parametrize("error", slow_except(ERRORS, "out of memory"))
def test_an_error_ends_all_threads_and_leaves_no_memory(error: type[BaseException], where: str) -> None:
    model = Watched()
    streamed(model, 5, "full")
    calls: list[int] = []

    def fail(*_: Any) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise error("CUDA out of memory")

    blocks = {"first": 0, "middle": 2, "last": 4}
    hook = None
    if where in blocks:
        hook = model.blocks[blocks[where]].outer.register_forward_hook(fail)

    def loss(model: Any, values: Tensor) -> Tensor:
        logits = model(values).exp()
        model.watch("loss", logits)
        if where == "loss":
            fail()
        if where == "backward":
            logits.register_hook(fail)
        return logits.mean()

    gc.collect()
    gc.disable()
    try:
        with pytest.raises(error) as raised:
            gradients(model, loss, by_block=True)
        assert any(entry.name == "fail" for entry in raised.traceback)
        del raised
        assert [thread for thread in threading.enumerate() if thread.name == "microbatch"] == []
        assert model.existing == {"inner": 0, "loss": 0}
    finally:
        gc.enable()
    if hook:
        hook.remove()
    model.zero_grad()
    calls[:] = range(3)
    plain = Watched()
    expected = gradients(plain, loss, by_block=False)
    assert_same(gradients(model, loss, by_block=True), expected)
