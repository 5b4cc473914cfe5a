"""The memory of updates whose microbatches run each block together, by traces that can be followed by hand."""

from dataclasses import replace
from typing import Any

import pytest

from shoestring.base.units import MIB
from shoestring.planning.estimate.block_order import (
    can_change_order,
    group_sizes,
    in_block_order,
    lengths_of_groups,
)
from shoestring.planning.estimate.phases import peak_tensor_bytes
from shoestring.planning.estimate.requests import accumulate_in_place
from shoestring.planning.trace.record import Alloc, BlockUse, Event, Free, Phase, Trace
from tests.planning.estimate.example_traces import op, trace

SIZES = {"batch": 1, "input": 10, "middle": 12, "output": 14, "logits": 100, "temporary": 30}
"""The MiB of what a microbatch allocates: its batch, the inputs of two blocks, the output of the second, and more."""


def two_updates(microbatches: int = 2) -> Trace:
    """Return the trace of two blocks that are recomputed, whose gradients take 5 MiB and weights 50."""
    storages: list[tuple[int, Any]] = [(50 * MIB, "weights")]
    events: list[Event] = [Phase("model", 0, 0), Alloc(0)]

    def allocate(size: int, part: str = "activations") -> int:
        storages.append((size * MIB, part))
        events.append(Alloc(len(storages) - 1))
        return len(storages) - 1

    for update in range(2):
        gradient, batches = 0, list[int]()
        for number in range(microbatches):
            events.append(Phase("forward", update, number))
            of_pass = {}
            for name in ("batch", "input", "middle", "output", "logits"):
                of_pass[name] = allocate(SIZES[name], "batch" if name == "batch" else "activations")
                if name != "batch":
                    events.append(op())  # the embedding, two blocks, and the head
            events += map(Free, batches)  # the next forward frees the batch of the one before
            events.append(Phase("backward", update, number))
            events.append(Free(of_pass["logits"]))
            for name in ("output", "middle", "input"):
                temporary = allocate(SIZES["temporary"], "temporaries")
                events += [op(), Free(temporary), Free(of_pass[name])]
            added = allocate(5, "gradients")
            events.append(replace(op(), in_place=number > 0))
            if number:
                events.append(Free(gradient))  # the operator adds to it in place
            gradient, batches = added, [of_pass["batch"]]
        events += [Phase("optimizer", update, 0), op(), Free(gradient), *map(Free, batches)]
    events.append(Phase("end", 1, 0))
    return replace(
        trace(storages, events, microbatches),
        block_bytes=(MIB, MIB),
        block_uses=(BlockUse(0, 1, 2), BlockUse(1, 2, 3)),
    )


def peaks(record: Trace) -> dict[str, int]:
    return {name: size // MIB for name, size in peak_tensor_bytes(accumulate_in_place(record)).items()}


def test_inputs_of_blocks_are_kept_for_all_microbatches() -> None:
    usual = two_updates()
    # Weights, the activations and the batch, and in the second microbatch the first gradient and batch.
    assert peaks(usual)["forward"] == 50 + 137 + 5 + 1
    for others in (0, 1, 7):
        changed = in_block_order(usual, [others + 1])
        kept, gradients = others * (1 + 10 + 12), others * 12  # not the output of the last block, nor the logits
        assert peaks(changed)["forward"] == 50 + 137 + kept
        assert peaks(changed)["backward"] == 50 + 137 + kept + gradients
        assert peaks(changed)["optimizer"] == 50 + 5  # the gradients of the parameters


def test_only_what_is_before_the_last_block_is_kept() -> None:
    """What follows runs forward and backward for one microbatch after the other."""
    usual = two_updates()
    first_of_two = replace(usual, block_bytes=(MIB,), block_uses=usual.block_uses[:1])
    assert peaks(in_block_order(first_of_two, [3]))["forward"] == 50 + 137 + 2 * (1 + 10)


def test_a_group_after_the_first_one_begins_with_gradients_of_the_parameters() -> None:
    for groups, others in (([4, 4, 4], 3), ([4, 1], 0), ([1, 4], 3)):
        changed = in_block_order(two_updates(), groups)
        kept, gradients = others * (1 + 10 + 12), others * 12
        # The second group: with the batch of the first one, which its forward frees at the end in this trace.
        first = 50 + 137 + (groups[0] - 1) * 23
        assert peaks(changed)["forward"] == max(first, 50 + 137 + kept + 5 + 1)
        assert peaks(changed)["backward"] == max(first + (groups[0] - 1) * 12, 50 + 137 + kept + gradients + 5)
        assert peaks(changed)["optimizer"] == 50 + 5 + 1 and changed.microbatches == 2


@pytest.mark.parametrize("groups", [[4], [3, 3, 2]], ids=str)
def test_every_storage_is_freed_once(groups: list[int]) -> None:
    changed = in_block_order(two_updates(), groups)
    live: set[int] = set()
    for event in changed.events:
        if isinstance(event, Alloc):
            assert event.storage not in live
            live.add(event.storage)
        elif isinstance(event, Free):
            live.remove(event.storage)
    assert live == {0}  # the weights


def test_groups_of_an_update() -> None:
    assert group_sizes(16, None) == [16] == group_sizes(16, 20)
    assert group_sizes(16, 6) == [6, 6, 4] and group_sizes(16, 5) == [5, 5, 5, 1]
    assert lengths_of_groups([[0.5, 0.75, 1, 0.25, 0.125], [0.5, 0.25]], 2) == [[0.75, 1, 0.125], [0.5]]


@pytest.mark.parametrize(
    "changes",
    [
        {"microbatches": 1},
        {"stages": 2},
        {"draws_random": True},
        {"block_uses": (BlockUse(0, 1, 2), BlockUse(1, 2, 3), BlockUse(0, 3, 4), BlockUse(1, 4, 5))},
        {"block_uses": (BlockUse(0, 1, 2),)},
        {"second": two_updates()},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_updates_that_keep_the_usual_order(changes: dict[str, Any]) -> None:
    assert can_change_order(two_updates())
    assert not can_change_order(replace(two_updates(), **changes))
