"""The table of what a T4 sustains, derived from NeuSight's timings of single kernels (sitar-lab/NeuSight, MIT).

    python benchmarks/time/derive.py FOLDER

FOLDER has their files of one operator each (`linear.csv.gz`, `bmm.csv.gz`, `conv.csv.gz`, `add.csv.gz`, ...): `Latency`
in milliseconds, fp32, torch 2.1. What is printed is what `src/shoestring/estimate/rates.py` has for `t4`.
"""

from __future__ import annotations

import csv
import gzip
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parents[2]))

from shoestring.estimate.kernels import padded_flops, tiled_flops

Row = dict[str, str]
Timed = tuple[float, float]
"""Work (FLOPs or bytes) and seconds."""

ELEMENTWISE = ("add", "mul", "div", "pow", "gelu", "relu", "tanh")
_OPERANDS = {"add": 3, "mul": 3, "div": 3, "pow": 3}
"""Tensors read or written; two by default."""

LARGE = 1e8
"""Bytes from which on a memory-bound kernel's time is its bytes alone."""

TINY = 1e5
"""Bytes below which it is the launch alone."""

PRODUCTS = tuple(exponent / 2 for exponent in range(14, 25))
CONVOLUTIONS = tuple(exponent / 2 for exponent in range(16, 23))
"""log10 of FLOPs at which a rate is given: up to where at least a hundred timings stand."""


def rows(folder: Path, operator: str) -> list[Row]:
    """The timings of one operator."""
    with gzip.open(folder / f"{operator}.csv.gz", "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def seconds(row: Row) -> float:
    return float(row["Latency"]) * 1e-3


def curve(timed: Iterable[Timed], points: Sequence[float], floor: float) -> Iterator[tuple[float, float]]:
    """At each log10 of work the rate (per second, without the launch): the median of what lies within a quarter of it,
    and of all the neighbours together where it would fall from one to the next.

    That is the isotonic regression of the medians. A long kernel is slower than a short one on its own, because the
    card clocks down; in training both run one after another, at one clock.
    """
    found = [(math.log10(work), work / (taken - floor)) for work, taken in timed if taken > floor]
    pools: list[tuple[list[float], list[float]]] = []
    for point in points:
        near = [rate for size, rate in found if abs(size - point) < 0.25]
        if len(near) < 20:
            continue
        pools.append(([point], near))
        while len(pools) > 1 and median(pools[-2][1]) > median(pools[-1][1]):
            places, rates = pools.pop()
            pools[-1] = (pools[-1][0] + places, pools[-1][1] + rates)
    for places, rates in pools:
        yield from ((place, median(rates)) for place in places)


def products(folder: Path) -> Iterator[Timed]:
    """Padded FLOPs and seconds of the matrix products whose operands alone would not take most of the time."""
    for operator in ("linear", "bmm"):
        for row in rows(folder, operator):
            many, m, n, k = (int(row[name]) for name in ("B", "M", "N", "K"))
            moved = 4 * many * (m * k + k * n + m * n)
            if moved / 240e9 < 0.7 * seconds(row):
                yield padded_flops((many, m, n, k)), seconds(row)


def convolutions(folder: Path) -> Iterator[Timed]:
    """FLOPs of the sum as written, of whole tiles, and seconds, of 3x3 convolutions with a stride of one."""
    for row in rows(folder, "conv"):
        size, kernel, stride = (int(row[name]) for name in ("Input_Size", "Kernel_Szie", "Stride"))
        out = (size + 2 * int(row["Padding"]) - kernel) // stride + 1
        inputs, outputs, many = (int(row[name]) for name in ("Input_Channel", "Output_Channel", "B"))
        if (kernel, stride) == (3, 1):
            yield tiled_flops((1, many * out**2, outputs, inputs * 9, 3, 3, out, out)), seconds(row)


def memory_bound(folder: Path, operator: str) -> Iterator[Timed]:
    """Bytes and seconds of an operator on rows of fp32 values."""
    for row in rows(folder, operator):
        yield 4 * _OPERANDS.get(operator, 2) * int(row["B"]) * int(row["H"]), seconds(row)


def middle(timed: Iterable[Timed], chosen: Callable[[float], bool], of: Callable[[Timed], float]) -> float:
    """The median of `of` over the timings whose work is `chosen`."""
    return median(of(each) for each in timed if chosen(each[0]))


def main(arguments: Sequence[str]) -> int:
    folder = Path(arguments[0])
    tiny = [middle(memory_bound(folder, name), lambda size: size < TINY, lambda each: each[1]) for name in ELEMENTWISE]
    floor = min(tiny)
    print(f"least seconds of an operator: {floor * 1e6:.1f} us, median {median(tiny) * 1e6:.1f} us")
    for name in (*ELEMENTWISE, "softmax", "ln"):
        large = middle(memory_bound(folder, name), lambda size: size >= LARGE, lambda each: each[0] / each[1])
        print(f"{name}: {large / 1e9:.0f} GB/s")
    for title, timed, points in (
        ("matrix products", products(folder), PRODUCTS),
        ("3x3 convolutions", convolutions(folder), CONVOLUTIONS),
    ):
        found = curve(timed, points, floor)
        print(f"{title}: " + ", ".join(f"({size}, {rate / 1e12:.2f}e12)" for size, rate in found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
