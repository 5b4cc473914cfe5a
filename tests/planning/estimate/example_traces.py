"""Handmade traces for tests of estimates, which need no torch."""

from collections.abc import Iterable

from shoestring.base.units import MIB
from shoestring.planning.trace.record import Alloc, Event, Facts, Free, Op, Part, Phase, Storage, Trace

FACTS = Facts(
    parameters_total=1000,
    parameters_trainable=1000,
    weight_bytes=4000,
    batch_norm=False,
    samples=None,
    process_bytes=200_000_000,
)


def trace(storages: Iterable[tuple[int, Part]], events: Iterable[Event], microbatches: int = 1) -> Trace:
    return Trace(
        micro_batch=8,
        microbatches=microbatches,
        precision="fp32",
        facts=FACTS,
        storages=tuple(Storage(size, part) for size, part in storages),
        events=tuple(events),
    )


def op(*, flops: int = 0, size: int = 0, launches: int = 1, name: str = "aten::mul") -> Op:
    return Op(name, flops, size, "fp32", launches)


def update(*, forward: Op, backward: Op, optimizer: Op, microbatches: int = 1) -> Trace:
    """Return the trace of a measured update with one operator per phase."""
    events: list[Event] = []
    for index in range(microbatches):
        events += [Phase("forward", 1, index), forward, Phase("backward", 1, index), backward]
    return trace([], [*events, Phase("optimizer", 1, 0), optimizer, Phase("end", 1, 0)], microbatches)


TRAINING = trace(
    [
        (4000, "weights"),
        (11 * MIB, "activations"),
        (4000, "gradients"),
        (8000, "optimizer states"),
        (30 * MIB, "temporaries"),
    ],
    [
        Phase("model", 0, 0),
        Alloc(0),
        Phase("forward", 0, 0),
        Alloc(1),
        op(name="aten::mm"),
        op(name="aten::mm"),
        Phase("backward", 0, 0),
        op(name="aten::mm"),
        Alloc(4),
        Free(1),
        Free(4),
        Alloc(2),
        Phase("optimizer", 0, 0),
        Alloc(3),
        Free(2),
        Phase("end", 1, 0),
    ],
)
"""Memory peaks in backward, with weights, activations and temporaries; a checkpoint holds weights and states."""
