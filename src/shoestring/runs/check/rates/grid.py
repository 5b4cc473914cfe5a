"""The shapes and sizes that are measured on a device. Data only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Sizes of operators, and how long they are measured."""

    sides: tuple[int, ...]
    """Rows, columns and depth of matrix products, in all combinations."""
    batches: tuple[int, ...]
    """The number of matrices in a batched product."""
    batched_sides: tuple[int, ...]
    channels: tuple[int, ...]
    """Input and output channels of convolutions, in all combinations."""
    images: tuple[tuple[int, int], ...]
    """The number of images, and their height and width."""
    attention: tuple[tuple[int, int, int], ...]
    """Heads of all samples, length of the sequence, width of a head."""
    recurrent: tuple[tuple[int, int, int], ...]
    """Time steps, samples and units of an LSTM layer."""
    values: tuple[int, ...]
    """Values of an operand of the operators that are bound by memory; multiples of 4096."""
    copied_bytes: tuple[int, ...]
    """Sizes of copies and of all-reduces."""
    cold_values: int
    """Operands of 2^18 values and more alternate with others, until all have so many: an update reads its tensors after
    others have taken the caches. 0: they do not alternate."""
    sample_seconds: float
    """A sample repeats the operator for at least so long."""
    rounds: tuple[int, int]
    """At least and at most so many samples of each operator, one in each pass over all of them."""
    seconds: float
    """No round begins that would end later."""


GPU = Grid(
    sides=(64, 256, 1024, 4096),
    batches=(16, 96),
    batched_sides=(64, 256, 1024),
    channels=(3, 16, 64, 256, 512),
    images=((32, 56), (32, 14)),
    attention=((96, 128, 64), (96, 512, 64), (48, 1024, 64), (32, 2048, 128)),
    recurrent=((32, 64, 128), (32, 64, 512)),
    values=(2**12, 2**16, 2**20, 2**22, 2**24, 2**26),
    copied_bytes=(2**12, 2**20, 2**25, 2**27),
    cold_values=0,
    sample_seconds=0.01,
    rounds=(3, 9),
    seconds=110.0,
)

CPU = Grid(
    sides=(8, 32, 128, 512, 2048),
    batches=(16,),
    batched_sides=(16, 64, 256),
    channels=(4, 32, 128, 512),
    images=((8, 4), (8, 16)),
    attention=((16, 64, 32), (16, 256, 64), (16, 1024, 64)),
    recurrent=((16, 16, 16), (16, 16, 64), (16, 64, 64), (16, 64, 256)),
    values=(2**12, 2**15, 2**18, 2**21, 2**24),
    copied_bytes=(),
    cold_values=2**24,
    sample_seconds=0.004,
    rounds=(3, 7),
    seconds=40.0,
)
"""A CPU's caches make small operands fast, and its cores share products of any shape, so the shapes are finer."""

SMALLEST = Grid(
    sides=(8, 32),
    batches=(2,),
    batched_sides=(8,),
    channels=(4,),
    images=((1, 8),),
    attention=((2, 8, 8),),
    recurrent=((2, 2, 4),),
    values=(2**12, 2**13),
    copied_bytes=(2**12,),
    cold_values=0,
    sample_seconds=0.0,
    rounds=(2, 2),
    seconds=10.0,
)
"""For tests: the numbers say nothing about the device."""
