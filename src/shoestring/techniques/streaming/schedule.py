"""Which blocks are streamed, and which copies each use of one starts: functions of numbers, without torch.

The streamed blocks of a model are numbered from 0 in the order of its blocks. Block n always uses slot n % slots, so
that a module is given the same tensors in each of its uses. The copies that are started are those that will be needed
if blocks run in their order: forwards from the first to the last, backward from the last to the first. This is a guess.
A block that is not in its slot when it runs is copied then; a wrong guess costs a copy and changes no value.

Training and estimates of time use the same functions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Pass = Literal["forward", "backward", "inference"]
"""What a use of a block belongs to: a forward that backward follows, that backward, or a forward without backward.

A block that is recomputed is used by the backward."""

SLOTS = 2
"""While one block computes, the next one is copied."""


def streamed_positions(blocks: int, streamed: int) -> list[int]:
    """Return which of a model's `blocks` are streamed: evenly spread, so that each copy has the computation of the same
    number of resident blocks to hide behind.
    """
    return [(2 * number + 1) * blocks // (2 * streamed) for number in range(streamed)]


def next_in_slots(first: int, count: int, slots: int, pass_: Pass) -> list[int]:
    """Return the block that each slot should have when `first` is the next of `count` blocks to be used, in the order
    in which they are needed.

    Beyond the last block of a pass its successor is the first one of what follows: backward after the forward, the next
    forward after backward and after a forward without backward.
    """
    chosen: dict[int, int] = {}
    for number in _uses_from(first, count, pass_):
        chosen.setdefault(number % slots, number)
        if len(chosen) == min(slots, count):
            break
    return list(chosen.values())


def _uses_from(first: int, count: int, pass_: Pass) -> Iterator[int]:
    if pass_ == "backward":
        yield from range(first, -1, -1)
        yield from range(count)
    else:
        yield from range(first, count)
        yield from range(count - 1, -1, -1) if pass_ == "forward" else range(count)


class SlotContents:
    """Which block is in each slot, or is being copied into it."""

    def __init__(self, count: int, slots: int) -> None:
        """Begin with empty slots for `count` blocks."""
        self.count = count
        self.blocks: list[int | None] = [None] * min(slots, count)

    def has(self, number: int) -> bool:
        return self.blocks[number % len(self.blocks)] == number

    def begin(self, number: int, pass_: Pass) -> list[int]:
        """Return the blocks to copy now because `number` is about to be used; its own slot has it afterwards."""
        return self._replace(number, pass_)

    def end(self, number: int, pass_: Pass) -> list[int]:
        """Return the blocks to copy now that the use of `number` is over."""
        return self._replace(number - 1 if pass_ == "backward" else number + 1, pass_)

    def remove(self, number: int) -> None:
        """Forget that a block is in its slot."""
        if self.has(number):
            self.blocks[number % len(self.blocks)] = None

    def _replace(self, first: int, pass_: Pass) -> list[int]:
        missing = [
            number for number in next_in_slots(first, self.count, len(self.blocks), pass_) if not self.has(number)
        ]
        for number in missing:
            self.blocks[number % len(self.blocks)] = number
        return missing


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A copy of a block to its slot, in a sequence of uses of blocks."""

    block: int
    use: int
    """The use that starts it."""
    at_end: bool
    """Whether it starts at the end of that use, when its computation is over, and not at its beginning."""
    needed_by: int | None
    """The next use of the block; None if the sequence ends before."""


def uses_of_update(count: int) -> list[tuple[int, Pass]]:
    """Return the uses of `count` blocks in the forward and backward of a microbatch."""
    return [*((number, "forward") for number in range(count)), *((number, "backward") for number in range(count)[::-1])]


def copies(uses: Sequence[tuple[int, Pass]], contents: SlotContents) -> list[Copy]:
    """Return the copies that a sequence of uses starts; `contents` are those of the slots before, and change."""
    started: list[Copy] = []
    for index, (number, pass_) in enumerate(uses):
        for at_end, missing in ((False, contents.begin), (True, contents.end)):
            for block in missing(number, pass_):
                first = index + at_end
                started.append(Copy(block=block, use=index, at_end=at_end, needed_by=_next_use(uses, first, block)))
    return started


def _next_use(uses: Sequence[tuple[int, Pass]], first: int, block: int) -> int | None:
    return next((index for index in range(first, len(uses)) if uses[index][0] == block), None)
