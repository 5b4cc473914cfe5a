"""An update, in anyone's loop, that is done again until it fits."""

import sys
import weakref

import pytest
import torch
from torch import nn

from shoestring.engine.buffers import SMALL, Buffers
from shoestring.engine.memory import HalfDoneError
from shoestring.engine.precision import mixed_precision
from shoestring.engine.recovery import Recovering, forget
from shoestring.engine.update import update
from shoestring.errors import RunError

CPU = torch.device("cpu")
DATA = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))


class Loop:
    """Somebody's own: one update of `DATA`; memory suffices for `room` samples."""

    def __init__(self, room, precision="fp32", scale=256.0, **recovering):
        self.model, self.room, self.sizes = model(), room, []
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.mixed_precision = mixed_precision(precision, CPU)
        if self.mixed_precision.scaler:
            self.mixed_precision.scaler._init_scale = scale
        self.events = []
        self.recovering = Recovering(
            self.model, self.optimizer, self.mixed_precision, on_out_of_memory=self.events.append, **recovering
        )

    def attempt(self, micro_batch):
        self.sizes.append(micro_batch)
        torch.manual_seed(7)
        return update(
            self.model,
            self.optimizer,
            self.loss,
            [(piece, len(piece)) for piece in DATA.split(micro_batch)],
            samples=len(DATA),
            mixed_precision=self.mixed_precision,
            clip_norm=1.0,
        )

    def loss(self, model, batch):
        result = model(batch).square().mean()
        if len(batch) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return result

    def state(self):
        return {name: value.clone() for name, value in self.model.state_dict().items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_it_halves_until_it_fits_and_ends_where_the_smaller_size_would_have(precision):
    undisturbed = Loop(8, precision)
    undisturbed.attempt(2)
    loop = Loop(2, precision)
    _, micro_batch = loop.recovering.run(loop.attempt, 8)
    assert micro_batch == 2
    assert loop.sizes == [8, 4, 2]
    assert [(event.micro_batch, event.done) for event in loop.events] == [(8, "microbatch 4"), (4, "microbatch 2")]
    assert same(loop.state(), undisturbed.state())


def test_out_of_memory_after_unscaling_the_scaler_begins_anew_with_its_scale():
    loop = Loop(8, "fp16")
    tries = []

    def attempt(micro_batch):
        tries.append(micro_batch)
        if len(tries) == 1:
            loop.mixed_precision.scaler.scale(loop.model(DATA).mean()).backward()
            loop.mixed_precision.scaler.unscale_(loop.optimizer)
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return loop.attempt(micro_batch)

    undisturbed = Loop(8, "fp16")
    undisturbed.attempt(4)
    loop.recovering.run(attempt, 8)
    assert same(loop.state(), undisturbed.state())
    assert loop.mixed_precision.scaler.get_scale() == 256.0


def test_an_overflow_is_done_again_with_a_smaller_scale_and_no_sample_is_lost():
    loop, undisturbed = Loop(8, "fp16", scale=2.0**40), Loop(8, "fp16", scale=256.0)
    result, _ = loop.recovering.run(loop.attempt, 8)
    scale = loop.mixed_precision.scaler.get_scale()
    assert (result.stepped, result.skipped) == (True, len(loop.sizes) - 1)
    assert result.skipped == 40 - torch.tensor(scale).log2()
    undisturbed.mixed_precision.scaler._init_scale = scale
    undisturbed.attempt(8)
    assert same(loop.state(), undisturbed.state())


def test_a_loss_that_is_not_finite_is_left_out_at_once_and_leaves_no_trace():
    loop = Loop(8, "fp16")
    loop.loss = lambda model, batch: model(batch).sum() * float("inf")
    before = loop.state()
    result, _ = loop.recovering.run(loop.attempt, 8)
    assert (result.stepped, result.skipped, len(loop.sizes)) == (False, 1, 1)
    assert same(loop.state(), before)


def test_gradients_that_overflow_at_any_scale_end():
    loop = Loop(8, "fp16")

    class Infinite(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * float("inf")

    loop.loss = lambda model, batch: Infinite.apply(model(batch).mean())
    result, _ = loop.recovering.run(loop.attempt, 8)
    assert (result.stepped, len(loop.sizes)) == (False, 9)
    assert torch.isfinite(result.loss)


def test_when_one_sample_does_not_fit_it_is_an_error_and_never_a_loop():
    loop = Loop(0)
    with pytest.raises(RunError, match="even with microbatches of 2: CUDA out of memory"):
        loop.recovering.run(loop.attempt, 7)
    assert loop.sizes == [7, 4, 2]
    assert loop.model[0].weight.grad is None


def test_a_model_without_batch_norm_is_tried_with_single_samples_too():
    loop = Loop(0)
    loop.model[1].eval()
    with pytest.raises(RunError, match="even with microbatches of 1"):
        loop.recovering.run(loop.attempt, 7)
    assert loop.sizes == [7, 4, 2, 1]


def test_what_else_can_be_made_smaller_is_asked_for_until_there_is_nothing_left():
    means = ["shorter samples", "a smaller model", ""]
    heard = []
    loop = Loop(0, fallback=lambda failure: heard.append(failure) or means.pop(0))
    with pytest.raises(RunError):
        loop.recovering.run(loop.attempt, 4)
    assert loop.sizes == [4, 2, 2, 2]
    assert [event.done for event in loop.events] == ["microbatch 2", "shorter samples", "a smaller model"]
    assert heard == ["CUDA out of memory."] * 3


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_within_the_optimizers_step_there_is_no_second_try(precision):
    loop = Loop(8, precision)
    loop.optimizer.step = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        loop.recovering.run(loop.attempt, 8)

    def out_of_memory():
        raise RuntimeError("CUDA error: out of memory")

    loop = Loop(8, precision)
    loop.optimizer.step = out_of_memory
    with pytest.raises(HalfDoneError, match="CUDA error: out of memory"):
        loop.recovering.run(loop.attempt, 8)
    assert loop.sizes == [8]


def test_no_activation_of_the_failed_attempt_is_alive_in_the_next():
    loop, seen, alive = Loop(8), [], []
    loop.model[0].register_forward_hook(lambda module, inputs, output: seen.append(weakref.ref(output)))

    def attempt(micro_batch):
        alive.append([reference() is not None for reference in seen])
        return loop.attempt(micro_batch)

    loop.room = 2
    loop.recovering.run(attempt, 8)
    assert alive == [[], [False], [False, False]]


class Counting(nn.Module):
    """Buffers of each kind: small, large, made anew in each forward, and none."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("table", torch.zeros(SMALL // 4 + 1))
        self.register_buffer("last", torch.zeros(1))
        self.register_buffer("nothing", None)


def test_buffers_come_back_changed_or_replaced():
    module = Counting()
    buffers = Buffers(module)
    for _ in range(2):
        buffers.keep()
        calls, last = module.calls, module.last
        module.calls += 1
        module.last = torch.ones(1) * 5
        buffers.restore()
        assert module.calls is calls and float(calls) == 0
        assert module.last is last and float(last) == 0
    module.calls += 1
    buffers.keep()
    module.calls += 1
    buffers.restore()
    assert float(module.calls) == 1


def test_where_changes_are_not_counted_large_buffers_are_copied_too(monkeypatch):
    monkeypatch.setattr(sys.modules[Buffers.__module__], "_version", lambda tensor: None)
    module = Counting()
    buffers = Buffers(module)
    for _ in range(2):
        buffers.keep()
        module.table += 1
        module.calls += 1
        buffers.restore()
        assert not module.table.any() and not module.calls.any()


def test_a_buffer_whose_changes_torch_does_not_count_is_copied():
    module = nn.Module()
    with torch.inference_mode():
        module.register_buffer("table", torch.zeros(SMALL // 4 + 1))
    buffers = Buffers(module)
    buffers.keep()
    with torch.inference_mode():
        module.table += 1
        buffers.restore()
    assert not module.table.any()


def test_a_scaler_that_has_scaled_nothing_forgets_nothing_and_keeps_its_count():
    line = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(line.parameters(), lr=0.1)
    fp16 = mixed_precision("fp16", CPU)
    before = fp16.scaler.state_dict()
    forget(line, optimizer, fp16)
    assert fp16.scaler.state_dict() == before
    for _ in range(3):
        fp16.scaler.scale(line(torch.ones(1, 1)).mean()).backward()
        fp16.scaler.step(optimizer)
        fp16.scaler.update()
    before = fp16.scaler.state_dict()
    assert before["_growth_tracker"] == 3
    fp16.scaler.unscale_(optimizer)
    forget(line, optimizer, fp16)
    assert fp16.scaler.state_dict() == before
    fp16.scaler.unscale_(optimizer)


def test_a_large_buffer_is_copied_once_it_was_seen_to_change():
    module = Counting()
    buffers = Buffers(module)
    buffers.keep()
    module.table += 1
    with pytest.raises(HalfDoneError, match="table"):
        buffers.restore()
    buffers.keep()
    module.table += 1
    buffers.restore()
    assert float(module.table[0]) == 1


def test_large_running_statistics_are_copied_from_the_first_update_on():
    """torch does not count their changes."""
    module = nn.BatchNorm1d(SMALL // 4 + 1)
    buffers = Buffers(module)
    buffers.keep()
    module(torch.randn(2, SMALL // 4 + 1))
    buffers.restore()
    assert not module.running_mean.any()
    assert int(module.num_batches_tracked) == 0


def test_the_result_of_something_else_than_an_update_is_passed_on():
    loop = Loop(8)
    assert loop.recovering.run(lambda size: {"loss": size}, 3) == ({"loss": 3}, 3)
