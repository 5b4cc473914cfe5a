"""The memory of sums by indices in a fixed order.

The bytes are those that the allocator of PyTorch 2.10 was asked for on a simulated T4, without blocks of up to 8 bytes
and the buffers of reductions.
"""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from shoestring.planning.trace import scratch
from shoestring.planning.trace.sorting import Steps, passes, sort_pairs

ATEN = torch.ops.aten
ROWS = [32_000] * 5 + [70_655]
GRID, WHOLE, LAST = 26_214_400, 13_107_200, 53_627_391


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    """Select deterministic algorithms, as training does."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def positions(*shape: int) -> Tensor:
    return meta(*shape, dtype=torch.int64)


def sizes(operator: object, *arguments: object) -> list[int]:
    """Return the bytes of the steps' allocations, and check that nothing is freed twice."""
    steps = scratch.scratch(operator, arguments).after
    freed = [~step for step in steps if step < 0]
    assert len(freed) == len(set(freed))
    return [step for step in steps if step >= 0]


CUBE, TRANSPOSED = meta(256, 100, 128), meta(256, 128, 100).transpose(1, 2)
TABLE, ROW_VALUES = meta(5000, 64), meta(4000, 64)
TARGET, FIRST, SECOND = meta(100, 100, 64), positions(40, 1), positions(50)

CASES: dict[str, tuple[Callable[[], list[int]], list[int]]] = {
    "scatter_add": (
        lambda: sizes(ATEN.scatter_add.default, CUBE, 1, positions(256, 100, 128), TRANSPOSED),
        # Positions in the other dimensions; copies of what is expanded; the index of each dimension; the source's copy.
        [2048, 1024, GRID, GRID, GRID, GRID, GRID, GRID, GRID, GRID, GRID, GRID, WHOLE, GRID, GRID, GRID, LAST],
    ),
    "scatter": (
        lambda: sizes(ATEN.scatter.src, CUBE, 2, positions(256, 100, 128), TRANSPOSED),
        [2048, 800, GRID, GRID, GRID, GRID, GRID, GRID, GRID, GRID, GRID, GRID, WHOLE, GRID, GRID, GRID, LAST],
    ),
    "scatter_add of rows": (
        lambda: sizes(ATEN.scatter_add.default, CUBE, 1, positions(100).view(1, -1, 1).expand(256, 100, 128), CUBE),
        [800] * 5 + [1],
    ),
    "sums of rows": (lambda: sizes(ATEN.index_put_.default, TABLE, [positions(4000)], ROW_VALUES, True), ROWS),
    "rows": (lambda: sizes(ATEN.index_put_.default, TABLE, [positions(4000)], ROW_VALUES), ROWS),
    "masked rows": (
        lambda: sizes(ATEN.index_put_.default, TABLE, [meta(5000, dtype=torch.bool)], TABLE),
        [40_000] * 6 + [87_039],
    ),
    "masked scalar": (
        lambda: sizes(ATEN.index_put_.default, TABLE, [meta(5000, dtype=torch.bool)], meta()),
        [40_000],
    ),
    "two dimensions": (
        lambda: sizes(ATEN.index_put_.default, TARGET, [FIRST, SECOND], meta(40, 50, 64), True),
        [16_000] * 8 + [16_000] * 3 + [1],
    ),
    "two dimensions, one value": (
        lambda: sizes(ATEN.index_put_.default, TARGET, [FIRST, SECOND], meta(1, 1, 64), True),
        [16_000] * 8 + [512_000] + [16_000] * 3 + [1],
    ),
    "second dimension": (
        lambda: sizes(ATEN.index_put_.default, TARGET, [None, SECOND], meta(100, 50, 64), True),
        [400] * 5 + [1],
    ),
    "index_add": (lambda: sizes(ATEN.index_add_.default, TABLE, 0, positions(4000), ROW_VALUES), [1_024_000, *ROWS]),
    "index_copy": (lambda: sizes(ATEN.index_copy_.default, TABLE, 0, positions(4000), ROW_VALUES), ROWS),
}


@pytest.mark.parametrize("name", CASES)
def test_memory(name: str) -> None:
    compute, expected = CASES[name]
    assert compute() == expected


@pytest.mark.parametrize("name", ["scatter_add", "scatter", "index_add", "index_copy", "rows"])
def test_only_deterministic_mode_sorts(name: str) -> None:
    torch.use_deterministic_algorithms(False)
    assert CASES[name][0]() == []


def test_sums_are_sorted_in_any_mode() -> None:
    torch.use_deterministic_algorithms(False)
    assert CASES["sums of rows"][0]() == ROWS


@pytest.mark.parametrize(("count", "size"), [(2304, 1), (2305, 43_007), (2560, 46_591), (2816, 50_687), (2817, 52_223)])
def test_few_indices_are_sorted_without_memory(count: int, size: int) -> None:
    steps = Steps()
    sort_pairs(steps, count, passes(5000))
    assert steps == [count * 8, size, ~1, ~0]
