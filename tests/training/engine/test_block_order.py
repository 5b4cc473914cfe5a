"""Sessions with stream_order=block end in the bits of one microbatch after the other, or use that order and say why."""

import gc
import json
import math
import threading
import weakref
from functools import partial

import pytest
import torch
from torch import nn

from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings
from shoestring.techniques import checkpointing
from shoestring.techniques.streaming.stream import stream_of
from shoestring.training.data.own_generators import OwnGenerators
from shoestring.training.engine.block_order import CheckedBlockOrder
from shoestring.training.engine.one_process import OneProcess
from shoestring.training.engine.precision import mixed_precision
from shoestring.training.engine.recovery import Recovering
from shoestring.training.engine.update import add_gradients
from tests.sessions import CPU, ActingAtLoss, session
from tests.slow import slow_except
from tests.techniques.streaming.test_block_order import Deterministic, Uneven, WithDropout, square
from tests.techniques.streaming.test_sessions import LORA, NF4, Repeatable
from tests.techniques.streaming.test_stream import assert_same, streamed
from tests.training.engine.test_techniques import training_result

pytest.importorskip("peft")

BLOCKS, STREAMED = 6, 4
ORDINARY = {**LORA, "checkpointing": "full"}
BLOCK = {**ORDINARY, "streamed_blocks": STREAMED, "stream_order": "block"}


def events(run, kind):
    lines = (run / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def reasons(run):
    """Return the reasons why sessions have used the usual order."""
    texts = [event["message"] for event in events(run, "note")]
    return [text for text in texts if text.startswith("stream_order=block is not used")]


def assert_same_result(run, plain):
    assert training_result(run) == training_result(plain)
    assert [thread for thread in threading.enumerate() if thread.name == "microbatch"] == []


CASES = {
    "adapters": {"micro_batch": 2},
    "one microbatch": {"micro_batch": 10},
    "4 bits": {**NF4, "micro_batch": 2},
    "bf16": {"weights": "bf16", "precision": "bf16"},
    "states in host memory": {"offload": "optimizer"},
    "groups from the disk": {"stream_from": "disk", "stream_group": 2, "micro_batch": 2},
}


@pytest.mark.parametrize("values", slow_except(CASES, "4 bits"))
def test_same_bits_as_one_microbatch_after_the_other_also_after_a_stop(tmp_path, values):
    if "quantization" in values:
        pytest.importorskip("bitsandbytes")
    resident = {name: value for name, value in values.items() if not name.startswith("stream_")}
    session(Repeatable(), tmp_path / "plain", {**ORDINARY, **resident})
    block, per_update = {**BLOCK, **values}, 10 // values.get("micro_batch", LORA["micro_batch"])
    # In the second of four updates. The first one has its losses in both orders.
    at = 2 * per_update + 1 if per_update > 1 else 2
    assert session(Repeatable(), tmp_path / "run", block, stop="SIGTERM", at=at).status == "paused"
    assert session(Repeatable(), tmp_path / "run", {**block, "streamed_blocks": BLOCKS}).status == "finished"
    assert_same_result(tmp_path / "run", tmp_path / "plain")
    assert reasons(tmp_path / "run") == []


def train(model, loss, *, by_block, group=None, updates=3, precision="fp32"):
    """Return the losses and weights after some updates of four microbatches, and the reasons for the usual order."""
    notes = []
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer, mixed_precision_ = torch.optim.AdamW(trained, lr=0.1), mixed_precision(precision, CPU)
    order = CheckedBlockOrder(model, partial(stream_of, model), notes.append, lambda: group) if by_block else None
    strategy = OneProcess(model, optimizer, seed=0, block_order=order)
    recovering, losses = Recovering(model, optimizer, mixed_precision_), []
    for number in range(updates):
        samples = torch.randn(12, 6, generator=torch.Generator().manual_seed(number))

        def attempt(micro_batch, number=number, samples=samples):
            batches = [(batch, len(batch)) for batch in samples.split(micro_batch)]
            return strategy.update(
                loss, number, [(0, batches)], samples=12, mixed_precision=mixed_precision_, clip_norm=1.0
            )

        result, _ = recovering.run(attempt, 3)
        losses.append(result.loss)
    assert [thread for thread in threading.enumerate() if thread.name == "microbatch"] == []
    return [*losses, *trained, *model.buffers()], notes


def both(make, loss=square, *, group=None):
    """Compare the results of both orders; return the reasons for the usual one and the copies in later updates."""
    plain, model = make(), make()
    checkpointing.apply(plain, object(), "full")
    stream = streamed(model, 5, "full")
    expected, _ = train(plain, loss, by_block=False)
    result, notes = train(model, loss, by_block=True, group=group)
    assert_same(result, expected)
    return notes, stream.copies


@pytest.mark.parametrize(("group", "groups"), [(None, 1), (4, 1), (3, 2), (2, 2)])
def test_the_first_update_is_made_in_both_orders_and_the_others_in_this_one(group, groups):
    """Of four microbatches; in groups of three, the fourth has copies of its own."""
    notes, copies = both(Deterministic, group=group)
    per_update = groups * 2 * 3
    assert notes == [] and copies == 2 + (per_update + 4 * 2 * 3) + 2 * per_update


def test_the_batches_of_one_group_at_a_time_are_on_the_device():
    model = Deterministic()
    streamed(model, 5, "full")
    existing, most = set(), []

    def batches():
        for number in range(6):
            batch = torch.randn(3, 6)
            existing.add(number)
            most.append(len(existing))
            weakref.finalize(batch.untyped_storage(), existing.discard, number)
            yield batch, 3

    order = CheckedBlockOrder(model, partial(stream_of, model), print, lambda: 2)
    gc.collect()
    gc.disable()
    try:
        run_all = order.begin(OwnGenerators())
        add_gradients(
            model, square, batches(), samples=18, mixed_precision=mixed_precision("fp32", CPU), run_all=run_all
        )
    finally:
        gc.enable()
    # Until the next batch is loaded, a variable of the generator refers to the last one.
    assert most == [1, 2, 2, 2, 2, 2] and existing <= {5}


def in_second_group():
    """Return whether a microbatch is the third or the fourth of its update."""
    updates = (torch.randn(12, 6, generator=torch.Generator().manual_seed(number)) for number in range(3))
    first_values = {float(samples[row, 0]) for samples in updates for row in (6, 9)}
    return lambda values: float(values[0, 0]) in first_values


def test_what_only_a_later_group_does_is_noticed():
    is_later = in_second_group()

    def draws(model, values):
        result = square(model, values)
        return result * torch.rand(()) if is_later(values) else result

    def repeats(model, values):
        return square(model, model.blocks[0](values) if is_later(values) else values)

    (reason,), _ = both(Deterministic, draws, group=2)
    assert "the loss draws random numbers" in reason
    (reason,), _ = both(Deterministic, repeats, group=2)
    assert "use the same blocks once" in reason


def test_each_group_may_use_blocks_of_its_own():
    """The sum of each gradient is in the order of the microbatches all the same."""
    is_later = in_second_group()

    def loss(model, values):
        return model.head(model.blocks[2](values)).square().mean() if is_later(values) else square(model, values)

    assert both(Deterministic, loss, group=2)[0] == []
    assert both(Deterministic, loss)[0] != []


def test_running_statistics_are_those_of_the_usual_order():
    class Normalized(Deterministic):
        def __init__(self):
            super().__init__()
            for block in self.blocks:
                block.norm = nn.BatchNorm1d(6).requires_grad_(False)

    notes, copies = both(Normalized)
    assert notes == [] and copies < 3 * 4 * 2 * 3


def test_dropout_is_noticed():
    (reason,), copies = both(WithDropout)
    assert "the loss draws random numbers" in reason and copies > 3 * 4 * 2 * 3


def test_microbatches_that_use_other_blocks_are_noticed():
    (reason,), _ = both(Uneven)
    assert "not all microbatches of an update use the same blocks" in reason


class Storing(Deterministic):
    """Stores a value of a microbatch before its blocks, and reads it behind them, from loss number `first` on."""

    def __init__(self, first, write, read):
        super().__init__()
        self.first, self.write, self.read, self.values, self.losses = first, write, read, [], [0]
        self.register_buffer("buffer", torch.zeros(()))

    def forward(self, values):
        self.losses[0] += 1
        is_active = self.losses[0] > self.first
        mean = values.mean() if is_active else 0.0
        if is_active:
            self.write(self, values.mean())
        for block in self.blocks:
            values = block(values)
        return self.head(values) * (1 + (self.read(self) if is_active else mean))


WRITE_AND_READ = {
    "list": (lambda model, value: model.values.__setitem__(slice(None), [value]), lambda model: model.values[0]),
    "attribute": (lambda model, value: setattr(model, "stored", value), lambda model: model.stored),
    "buffer": (lambda model, value: model.buffer.copy_(value), lambda model: model.buffer.clone()),
    "random numbers": (lambda *_: None, lambda _: torch.rand(())),
}


@pytest.mark.parametrize(
    ("kind", "first", "message"),
    [
        ("list", 0, "other bits"),
        ("attribute", 0, "other bits"),
        ("buffer", 0, "other bits"),
        # The first update has eight losses, in both orders.
        ("attribute", 8, "stores values of a microbatch in stored"),
        ("buffer", 8, "changes its buffer buffer in a forward"),
        ("random numbers", 8, "draws random numbers"),
    ],
)
def test_values_of_another_microbatch_are_never_used(kind, first, message):
    def make(first=first):
        return Storing(first, *WRITE_AND_READ[kind])

    plain, model = make(first and 4), make()  # the usual order alone has four losses in the first update
    checkpointing.apply(plain, object(), "full")
    streamed(model, 5, "full")
    expected, _ = train(plain, square, by_block=False)
    result, (reason,) = train(model, square, by_block=True)
    assert message in reason
    assert_same(result, expected)


def test_an_error_of_this_order_alone_is_a_reason_for_the_usual_one():
    def loss(model, values):
        taps = []
        hook = model.blocks[1].inner.register_forward_hook(lambda *call: taps.append(call[2]))
        result = square(model, values) + taps[0].square().mean()
        hook.remove()
        return result

    (reason,), _ = both(Deterministic, loss)
    assert "RuntimeError: the loss uses a value from the inside of a block" in reason


def test_an_error_that_occurs_once_is_named():
    losses = []

    def loss(model, values):
        losses.append(threading.current_thread().name)
        if losses[-3:] == 3 * ["microbatch"]:
            raise KeyError("missing")
        return square(model, values)

    (reason,), _ = both(Deterministic, loss)
    assert f"KeyError: 'missing' (test_block_order.py, line {loss.__code__.co_firstlineno + 3})" in reason


def test_gradients_that_overflow_are_not_compared():
    """Infinite gradients are equal, whatever they are computed from."""
    model = Deterministic()
    stream = streamed(model, 5, "full")
    notes = train(model, lambda model, values: square(model, values) * math.inf, by_block=True)[1]
    assert notes == [] and stream.copies == 2 + 3 * (2 * 3 + 4 * 2 * 3)  # each update in both orders


def test_an_error_of_the_data_is_no_reason():
    model = Deterministic()
    streamed(model, 5, "full")
    order = CheckedBlockOrder(model, partial(stream_of, model), pytest.fail, lambda: 2)
    strategy = OneProcess(model, torch.optim.SGD(model.parameters()), seed=0, block_order=order)

    def batches():
        yield from [(torch.randn(3, 6), 3)] * 2
        raise OSError("of the data")

    with pytest.raises(OSError, match="of the data"):
        strategy.update(square, 0, [(0, batches())], samples=12, mixed_precision=mixed_precision("fp32", CPU))


# The first update has eight losses, in both orders.
@pytest.mark.parametrize(
    ("error", "at"), [(KeyboardInterrupt, [10]), (ValueError, [10]), (ValueError, range(100))], ids=str
)
def test_an_error_in_a_loss_reaches_the_caller(error, at):
    losses = [0]

    def loss(model, values):
        losses[0] += 1
        if losses[0] in at:
            raise error("of the loss")
        return square(model, values)

    model = Deterministic()
    streamed(model, 5, "full")
    with pytest.raises(error, match="of the loss") as raised:
        train(model, loss, by_block=True)
    assert raised.traceback[-1].name == "loss"
    assert [thread for thread in threading.enumerate() if thread.name == "microbatch"] == []


class LacksMemory(ActingAtLoss):
    """From a loss on there is memory for one sample at a time, and for a group of so many microbatches."""

    group = 1

    def loss(self, model, batch, **stage):
        value = super().loss(model, batch, **stage)
        microbatches = sum(thread.name == "microbatch" for thread in threading.enumerate())
        if self._count <= 0 and (len(batch[0]) > 1 or microbatches > self.group):
            value.register_hook(self._fail)
        return value

    def _fail(self, _):
        raise torch.OutOfMemoryError("CUDA out of memory")


def test_same_bits_after_running_out_of_memory(tmp_path):
    """Blocks are streamed further, then microbatches and groups of them become smaller. The next session continues with
    these, and the last resort is the usual order."""
    # In the backward of the third update.
    session(Repeatable(), tmp_path / "plain", ORDINARY, wrap=lambda recipe: LacksMemory(recipe, 5, lambda: None))
    recipe = LacksMemory(Repeatable(), 7, lambda: None)
    recipe.group = 3
    session(Repeatable(), tmp_path / "run", BLOCK, wrap=lambda _: recipe, stop="limit", at=45)
    session(Repeatable(), tmp_path / "run", BLOCK, wrap=lambda recipe: LacksMemory(recipe, 1, lambda: None))
    assert_same_result(tmp_path / "run", tmp_path / "plain")
    failures = events(tmp_path / "run", "oom")
    assert [(event["update"], event["done"]) for event in failures] == [
        *((2, f"{blocks} of 6 blocks streamed") for blocks in (5, 6)),
        *((2, f"microbatch {size}") for size in (3, 2, 1)),
        *((2, f"each copy of a streamed block is used by {group} microbatches") for group in (5, 3)),
        (3, "each copy of a streamed block is used by 2 microbatches"),
        (3, "one microbatch after the other (stream_order=microbatch)"),
    ]
    assert reasons(tmp_path / "run") == []


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"streamed_blocks": 0}, "set streamed_blocks or stream_order=microbatch"),
        ({"checkpointing": "2"}, "set checkpointing=full"),
        ({"gpus": 2}, "set gpus=1 and logical_shards=1"),
        ({"logical_shards": 2}, "set gpus=1 and logical_shards=1"),
        ({"sharding": "pipeline"}, "two microbatches are on the two GPUs"),
        ({"compile": "yes"}, "set compile=no"),
        ({"stream_group": 4, "stream_order": "microbatch"}, "set stream_order=block, or leave out stream_group"),
        ({"stream_group": 1}, "stream_group=1: must be at least 2"),
    ],
    ids=str,
)
def test_what_does_not_go_with_it(values, message):
    settings = {"streamed_blocks": 2, "checkpointing": "full", "stream_order": "block", **values}
    with pytest.raises(UsageError, match=message):
        Settings(**settings)


def test_open_checkpointing_of_estimates_recomputes_all_blocks():
    assert Settings(streamed_blocks=2, stream_order="block").recomputed == "full"
    assert Settings(streamed_blocks=2, checkpointing="2").recomputed == "2" and Settings().recomputed == "no"


def test_settings_of_earlier_versions_have_no_order():
    values = Settings(streamed_blocks=2).json()
    del values["stream_order"]
    assert Settings.from_json(values).stream_order is None
