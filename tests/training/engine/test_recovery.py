"""An update that is repeated until it fits in memory."""

import sys
import weakref

import pytest
import torch
from torch import nn

from shoestring.base.errors import RunError
from shoestring.training.engine.buffers import SMALL, BufferBackup
from shoestring.training.engine.memory import HalfDoneError
from shoestring.training.engine.precision import mixed_precision
from shoestring.training.engine.recovery import Recovering, discard_attempt
from shoestring.training.engine.update import update

CPU = torch.device("cpu")
DATA = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))


class Loop:
    """A training loop of one update of `DATA`, with memory for `capacity` samples."""

    def __init__(self, capacity, precision="fp32", scale=256.0, **recovering):
        self.model, self.capacity, self.sizes = model(), capacity, []
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
        if len(batch) > self.capacity:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return result

    def state(self):
        return {name: value.clone() for name, value in self.model.state_dict().items()}


def equal_tensors(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_halving_gives_the_bits_of_the_smaller_microbatch(precision):
    undisturbed = Loop(8, precision)
    undisturbed.attempt(2)
    loop = Loop(2, precision)
    _, micro_batch = loop.recovering.run(loop.attempt, 8)
    assert micro_batch == 2
    assert loop.sizes == [8, 4, 2]
    assert [(event.micro_batch, event.action) for event in loop.events] == [(8, "microbatch 4"), (4, "microbatch 2")]
    assert equal_tensors(loop.state(), undisturbed.state())


def test_scaler_keeps_its_scale_after_out_of_memory():
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
    assert equal_tensors(loop.state(), undisturbed.state())
    assert loop.mixed_precision.scaler.get_scale() == 256.0


def test_scaler_that_has_no_memory_for_its_counter_is_set_up_again(monkeypatch):
    loop, undisturbed, tensors, full = Loop(8, "fp16"), Loop(8, "fp16"), [], torch.full

    def fail_at_the_second(*arguments, **options):
        tensors.append(arguments)
        if len(tensors) == 2:  # the first one is the scale
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return full(*arguments, **options)

    undisturbed.attempt(4)
    monkeypatch.setattr(torch, "full", fail_at_the_second)
    _, micro_batch = loop.recovering.run(loop.attempt, 8)
    assert micro_batch == 4 and len(tensors) > 2
    assert equal_tensors(loop.state(), undisturbed.state())


def test_overflow_is_repeated_with_a_smaller_scale():
    loop, undisturbed = Loop(8, "fp16", scale=2.0**40), Loop(8, "fp16", scale=256.0)
    result, _ = loop.recovering.run(loop.attempt, 8)
    scale = loop.mixed_precision.scaler.get_scale()
    assert (result.stepped, result.skipped) == (True, len(loop.sizes) - 1)
    assert result.skipped == 40 - torch.tensor(scale).log2()
    undisturbed.mixed_precision.scaler._init_scale = scale
    undisturbed.attempt(8)
    assert equal_tensors(loop.state(), undisturbed.state())


def test_out_of_memory_after_an_overflow_begins_with_the_scale_of_the_update():
    loop, undisturbed = Loop(8, "fp16"), Loop(8, "fp16")
    for each in (loop, undisturbed):  # counts towards the next growth of the scale
        each.recovering.run(each.attempt, 4)
    loop.sizes.clear()
    plain_loss = loop.loss

    def attempt(micro_batch):
        if loop.sizes == [8]:
            loop.sizes.append(8)
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return loop.attempt(micro_batch)

    loop.loss = lambda model, batch: plain_loss(model, batch).float() * (1e6 if len(batch) == 8 else 1)  # overflows
    result, _ = loop.recovering.run(attempt, 8)
    undisturbed.recovering.run(undisturbed.attempt, 4)
    assert (loop.sizes, result.skipped) == ([8, 8, 4], 0)
    assert loop.mixed_precision.scaler.state_dict() == undisturbed.mixed_precision.scaler.state_dict()
    assert equal_tensors(loop.state(), undisturbed.state())


def test_copying_the_buffers_is_tried_again(monkeypatch):
    loop, save, calls = Loop(8), BufferBackup.save, []

    def fail_once(backup):
        calls.append(backup)
        if len(calls) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        save(backup)

    monkeypatch.setattr(BufferBackup, "save", fail_once)
    assert loop.recovering.run(loop.attempt, 8)[1] == 8 and len(calls) == 2


def test_non_finite_loss_is_skipped_without_retry():
    loop = Loop(8, "fp16")
    loop.loss = lambda model, batch: model(batch).sum() * float("inf")
    before = loop.state()
    result, _ = loop.recovering.run(loop.attempt, 8)
    assert (result.stepped, result.skipped, len(loop.sizes)) == (False, 1, 1)
    assert equal_tensors(loop.state(), before)


def test_gradients_that_always_overflow_end_the_retries():
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


def test_smallest_microbatch_that_does_not_fit_is_an_error():
    loop = Loop(0)
    with pytest.raises(RunError, match="even with microbatches of 2: CUDA out of memory"):
        loop.recovering.run(loop.attempt, 7)
    assert loop.sizes == [7, 4, 2]
    assert loop.model[0].weight.grad is None


def test_single_samples_are_tried_without_batch_norm():
    loop = Loop(0)
    loop.model[1].eval()
    with pytest.raises(RunError, match="even with microbatches of 1"):
        loop.recovering.run(loop.attempt, 7)
    assert loop.sizes == [7, 4, 2, 1]


def test_fallbacks_are_applied_until_none_is_left():
    descriptions = ["shorter samples", "a smaller model", ""]
    failures = []
    loop = Loop(0, fallback=lambda failure: failures.append(failure) or descriptions.pop(0))
    with pytest.raises(RunError):
        loop.recovering.run(loop.attempt, 4)
    assert loop.sizes == [4, 2, 2, 2]
    assert [event.action for event in loop.events] == ["microbatch 2", "shorter samples", "a smaller model"]
    assert failures == ["CUDA out of memory."] * 3


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_optimizer_step_is_not_retried(precision):
    loop = Loop(8, precision)
    loop.optimizer.step = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        loop.recovering.run(loop.attempt, 8)

    def raise_out_of_memory():
        raise RuntimeError("CUDA error: out of memory")

    loop = Loop(8, precision)
    loop.optimizer.step = raise_out_of_memory
    with pytest.raises(HalfDoneError, match="CUDA error: out of memory"):
        loop.recovering.run(loop.attempt, 8)
    assert loop.sizes == [8]


def test_activations_of_a_failed_attempt_are_freed():
    loop, references, alive = Loop(8), [], []
    loop.model[0].register_forward_hook(lambda module, inputs, output: references.append(weakref.ref(output)))

    def attempt(micro_batch):
        alive.append([reference() is not None for reference in references])
        return loop.attempt(micro_batch)

    loop.capacity = 2
    loop.recovering.run(attempt, 8)
    assert alive == [[], [False], [False, False]]


class BufferKinds(nn.Module):
    """Buffers of each kind: small, large, replaced in each forward, and None."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("table", torch.zeros(SMALL // 4 + 1))
        self.register_buffer("latest", torch.zeros(1))
        self.register_buffer("nothing", None)


def test_changed_or_replaced_buffers_are_restored():
    module = BufferKinds()
    buffers = BufferBackup(module)
    for _ in range(2):
        buffers.save()
        calls, latest = module.calls, module.latest
        module.calls += 1
        module.latest = torch.ones(1) * 5
        buffers.restore()
        assert module.calls is calls and float(calls) == 0
        assert module.latest is latest and float(latest) == 0
    module.calls += 1
    buffers.save()
    module.calls += 1
    buffers.restore()
    assert float(module.calls) == 1


def test_large_buffers_are_copied_without_version_counts(monkeypatch):
    monkeypatch.setattr(sys.modules[BufferBackup.__module__], "_version", lambda tensor: None)
    module = BufferKinds()
    buffers = BufferBackup(module)
    for _ in range(2):
        buffers.save()
        module.table += 1
        module.calls += 1
        buffers.restore()
        assert not module.table.any() and not module.calls.any()


def test_inference_mode_buffer_is_copied():
    module = nn.Module()
    with torch.inference_mode():
        module.register_buffer("table", torch.zeros(SMALL // 4 + 1))
    buffers = BufferBackup(module)
    buffers.save()
    with torch.inference_mode():
        module.table += 1
        buffers.restore()
    assert not module.table.any()


def test_discarding_keeps_the_count_of_the_scaler():
    line = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(line.parameters(), lr=0.1)
    fp16 = mixed_precision("fp16", CPU)
    before = fp16.scaler.state_dict()
    discard_attempt(line, optimizer, fp16)
    assert fp16.scaler.state_dict() == before
    for _ in range(3):
        fp16.scaler.scale(line(torch.ones(1, 1)).mean()).backward()
        fp16.scaler.step(optimizer)
        fp16.scaler.update()
    before = fp16.scaler.state_dict()
    assert before["_growth_tracker"] == 3
    fp16.scaler.unscale_(optimizer)
    discard_attempt(line, optimizer, fp16)
    assert fp16.scaler.state_dict() == before
    fp16.scaler.unscale_(optimizer)


def test_large_buffer_is_copied_after_it_changed():
    module = BufferKinds()
    buffers = BufferBackup(module)
    buffers.save()
    module.table += 1
    with pytest.raises(HalfDoneError, match="table"):
        buffers.restore()
    buffers.save()
    module.table += 1
    buffers.restore()
    assert float(module.table[0]) == 1


def test_large_running_statistics_are_always_copied():
    """torch's version counter misses their changes."""
    module = nn.BatchNorm1d(SMALL // 4 + 1)
    buffers = BufferBackup(module)
    buffers.save()
    module(torch.randn(2, SMALL // 4 + 1))
    buffers.restore()
    assert not module.running_mean.any()
    assert int(module.num_batches_tracked) == 0


def test_other_results_are_returned_unchanged():
    loop = Loop(8)
    assert loop.recovering.run(lambda size: {"loss": size}, 3) == ({"loss": 3}, 3)
