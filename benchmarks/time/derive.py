"""Derive the rates of a GPU from NeuSight's timings of single kernels (sitar-lab/NeuSight, MIT).

    python benchmarks/time/derive.py FOLDER

FOLDER contains a file for each operator (`linear.csv.gz`, `bmm.csv.gz`, `conv.csv.gz`, `add.csv.gz`, ...): `Latency` in
milliseconds, fp32, torch 2.1. The output is an entry of `src/shoestring/planning/estimate/rates.py`. NeuSight's
repository has the timings of a GPU in `scripts/asplos/data/dataset/train/collect/OPERATOR/p2.1.0/GPU.csv`.
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

from shoestring.planning.estimate.kernels import padded_flops, tiled_flops

Row = dict[str, str]
Timing = tuple[float, float]
"""Work (FLOPs or bytes) and seconds."""

ELEMENTWISE = ("add", "mul", "div", "pow", "gelu", "relu", "tanh")
_OPERANDS = {"add": 3, "mul": 3, "div": 3, "pow": 3}
"""Number of tensors read or written; the default is two."""

LARGE = 1e8
"""Bytes from which on the time of a memory-bound kernel depends only on its bytes."""

TINY = 1e5
"""Bytes below which the time is only that of the launch."""

PRODUCTS = tuple(exponent / 2 for exponent in range(14, 25))
CONVOLUTIONS = tuple(exponent / 2 for exponent in range(16, 23))
"""log10 of the FLOPs for which rates are given, up to the largest with at least a hundred timings."""


def rows(folder: Path, operator: str) -> list[Row]:
    """Read the timings of one operator."""
    with gzip.open(folder / f"{operator}.csv.gz", "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def seconds(row: Row) -> float:
    return float(row["Latency"]) * 1e-3


def rate_curve(timings: Iterable[Timing], points: Sequence[float], floor: float) -> Iterator[tuple[float, float]]:
    """Yield the rate (per second, without the launch) at each log10 of work.

    A rate is the median of the timings within a quarter of the log10; points at which the rate would decrease are
    pooled with their neighbours, which is an isotonic regression of the medians. Measured alone, a long kernel is
    slower than a short one because the GPU lowers its clock; in training both run in sequence at the same clock.
    """
    measured_rates = [(math.log10(work), work / (duration - floor)) for work, duration in timings if duration > floor]
    pools: list[tuple[list[float], list[float]]] = []
    for point in points:
        near = [rate for size, rate in measured_rates if abs(size - point) < 0.25]
        if len(near) < 20:
            continue
        pools.append(([point], near))
        while len(pools) > 1 and median(pools[-2][1]) > median(pools[-1][1]):
            pooled_points, rates = pools.pop()
            pools[-1] = (pools[-1][0] + pooled_points, pools[-1][1] + rates)
    for pooled_points, rates in pools:
        yield from ((point, median(rates)) for point in pooled_points)


def products(folder: Path, bandwidth: float) -> Iterator[Timing]:
    """Yield padded FLOPs and seconds of the matrix products that are not bound by reading their operands.

    NeuSight multiplies M x N by N x K (`neusight/Dataset/collect.py`), as the kernels' grids confirm in all rows.
    """
    for operator in ("linear", "bmm"):
        for row in rows(folder, operator):
            batch, count, depth, columns = (int(row[name]) for name in ("B", "M", "N", "K"))
            transferred_bytes = 4 * batch * (count * depth + depth * columns + count * columns)
            if transferred_bytes / bandwidth < 0.7 * seconds(row):
                yield padded_flops((batch, count, columns, depth)), seconds(row)


def convolutions(folder: Path) -> Iterator[Timing]:
    """Yield FLOPs in whole tiles and seconds of the 3x3 convolutions with a stride of one."""
    for row in rows(folder, "conv"):
        size, kernel, stride = (int(row[name]) for name in ("Input_Size", "Kernel_Szie", "Stride"))
        out = (size + 2 * int(row["Padding"]) - kernel) // stride + 1
        inputs, outputs, batch = (int(row[name]) for name in ("Input_Channel", "Output_Channel", "B"))
        if (kernel, stride) == (3, 1):
            yield tiled_flops((1, batch * out**2, outputs, inputs * 9, 3, 3, out, out, 1, 1, 0)), seconds(row)


def memory_bound(folder: Path, operator: str) -> Iterator[Timing]:
    """Yield bytes and seconds of an operator on rows of fp32 values."""
    for row in rows(folder, operator):
        yield 4 * _OPERANDS.get(operator, 2) * int(row["B"]) * int(row["H"]), seconds(row)


def median_value(
    timings: Iterable[Timing], is_selected: Callable[[float], bool], value: Callable[[Timing], float]
) -> float:
    """Return the median of `value` over the timings whose work `is_selected`."""
    return median(value(timing) for timing in timings if is_selected(timing[0]))


def main(arguments: Sequence[str]) -> int:
    folder = Path(arguments[0])
    tiny = [
        median_value(memory_bound(folder, name), lambda size: size < TINY, lambda timing: timing[1])
        for name in ELEMENTWISE
    ]
    floor = min(tiny)
    print(f"minimum seconds of an operator: {floor * 1e6:.1f} us, median {median(tiny) * 1e6:.1f} us")
    bandwidths = {
        name: median_value(memory_bound(folder, name), lambda size: size >= LARGE, lambda timing: timing[0] / timing[1])
        for name in (*ELEMENTWISE, "softmax", "ln")
    }
    for name, bandwidth in bandwidths.items():
        print(f"{name}: {bandwidth / 1e9:.0f} GB/s")
    for title, timings, points in (
        ("matrix products", products(folder, bandwidths["add"]), PRODUCTS),
        ("3x3 convolutions", convolutions(folder), CONVOLUTIONS),
    ):
        rates = rate_curve(timings, points, floor)
        print(f"{title}: " + ", ".join(f"({size}, {rate / 1e12:.2f}e12)" for size, rate in rates))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
