"""Compare the estimates of single convolutions with timings on a T4, a P100 or a V100.

    python benchmarks/time/convolutions.py [--device t4|p100|v100] [--deepbench FILE.xlsx] [--neusight conv.csv.gz]

FILE.xlsx is `results/train/DeepBench_NV_T4.xlsx` of baidu-research/DeepBench, or that of the other GPU: forward and
both gradients, fp32 channels first and fp16 channels last (cuDNN 7.6.2, on the P100 6.0.21), with the algorithms that
cuDNN finds fastest. Its 16-bit tensors contain zeros, with which the card is not at its limit of power, so they are
compared at the rate that its products reach (40 TFLOP/s on a T4). conv.csv.gz is NeuSight's: fp32, forward, with the
algorithms that torch chooses. This script measures and downloads nothing.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import math
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from xml.etree import ElementTree
from zipfile import ZipFile

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.percentiles import percentile

from shoestring.base.settings import Precision
from shoestring.planning.estimate.kernels import kernel_seconds
from shoestring.planning.estimate.rates import MEASURED_RATES, Rates
from shoestring.planning.trace.convolution import ConvolutionShape
from shoestring.planning.trace.record import Op

SHORTEST = 35e-6
"""Seconds below which a timing is that of the host."""

_SHEETS: dict[str, Precision] = {"Results FP32": "fp32", "Results - FP16 ip, Mixed math": "fp16"}
_MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_ZEROS = {"t4": 40e12, "v100": 99.5e12}
"""The rate of DeepBench's large products in 16 bits, whose tensors contain zeros."""


@dataclass(frozen=True)
class Timing:
    """A timed convolution; a weight's gradient is an operator of its own, an input's the rest of both gradients."""

    precision: Precision
    direction: str
    shape: ConvolutionShape
    seconds: float

    @property
    def kind(self) -> str:
        height, width = self.shape.kernel
        stride = "" if self.shape.stride == (1, 1) else ", strided"
        size = f"{height} x {width}" if (height, width) in ((1, 1), (3, 3)) else "larger"
        return f"{self.precision} {self.direction}, {size}{stride}"

    def estimate(self, rates: Rates) -> float:
        """Return the estimated seconds."""
        if self.direction != "input":
            return kernel_seconds(self._op(1), rates)
        return kernel_seconds(self._op(2), rates) - kernel_seconds(self._op(1), rates)

    def _op(self, launches: int) -> Op:
        shape, size = self.shape, 2 if self.precision == "fp16" else 4
        weights = shape.groups * shape.columns * shape.depth
        moved = size * (shape.values + weights + shape.groups * shape.columns * shape.rows)
        name = "aten::convolution" if self.direction == "forward" else "aten::convolution_backward"
        flops = launches * 2 * math.prod(shape.product)
        return Op(name, flops, launches * moved, self.precision, launches, shape=shape)


def shape(
    images: int, channels: int, height: int, width: int, outputs: int, kernel: Sequence[int], padding: Sequence[int],
    stride: Sequence[int], channels_last: bool,
) -> ConvolutionShape:  # fmt: skip
    """Return the shape of a convolution; pairs are height and width."""
    result = [
        (size + 2 * pad - length) // step + 1
        for size, pad, length, step in zip((height, width), padding, kernel, stride, strict=True)
    ]
    depth = channels * math.prod(kernel)
    return ConvolutionShape(
        1, images * math.prod(result), outputs, depth, *kernel, *result, *stride, int(channels_last)
    )  # fmt: skip


def deepbench(path: Path) -> Iterator[Timing]:
    """Yield the timings of the training convolutions."""
    for sheet, precision in _SHEETS.items():
        rows = iter(_rows(path, sheet))  # none if the GPU has no tensor cores
        for row in rows:
            if row.get("A") == "Convolution":
                break
        for row in rows:
            if row.get("A", "").startswith("Recurrent"):
                break
            if not all(row.get(column, "").isdigit() for column in "CDEFGHIJKLM"):
                continue
            width, height, channels, images, outputs, *rest = (int(row[column]) for column in "CDEFGHIJKLM")
            kernel, padding, stride = rest[1::-1], rest[3:1:-1], rest[:3:-1]
            if precision == "fp16":  # DeepBench pads the channels itself.
                channels, outputs = -(-channels // 8) * 8, -(-outputs // 8) * 8
            size = shape(images, channels, height, width, outputs, kernel, padding, stride, precision == "fp16")
            for direction, column in (("forward", "N"), ("input", "O"), ("weight", "P")):
                if re.fullmatch(r"[\d.E-]+", row.get(column, "")):
                    yield Timing(precision, direction, size, float(row[column]) * 1e-3)


def neusight(path: Path) -> Iterator[Timing]:
    """Yield the timings of the forward convolutions."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            size, kernel, padding, step = (
                [int(row[name])] * 2 for name in ("Input_Size", "Kernel_Szie", "Padding", "Stride")
            )
            images, channels, outputs = (int(row[name]) for name in ("B", "Input_Channel", "Output_Channel"))
            yield Timing(
                "fp32",
                "forward",
                shape(images, channels, *size, outputs, kernel, padding, step, False),
                float(row["Latency"]) * 1e-3,
            )


def table(timings: Sequence[Timing], rates: Rates) -> str:
    """Format measured over predicted seconds by kind, and the relative errors."""
    lines = [f"{'kind':<34}{'n':>6}{'ratio of sums':>15}{'median ratio':>14}{'median error':>14}{'p90':>8}"]
    for kind in sorted({timing.kind for timing in timings}):
        group = [(timing.seconds, timing.estimate(rates)) for timing in timings if timing.kind == kind]
        errors = [abs(estimate / seconds - 1) for seconds, estimate in group]
        total = sum(seconds for seconds, _ in group) / sum(estimate for _, estimate in group)
        ratio = median(seconds / estimate for seconds, estimate in group)
        lines.append(
            f"{kind:<34}{len(group):>6}{total:>15.2f}{ratio:>14.2f}{median(errors):>14.0%}"
            f"{percentile(errors, 0.9):>8.0%}"
        )
    return "\n".join(lines)


def _rows(path: Path, sheet: str) -> Iterator[dict[str, str]]:
    """Yield the rows of a sheet of an Excel file: the text of each cell by its column."""
    with ZipFile(path) as archive:
        strings = [
            "".join(text.text or "" for text in item.iter(f"{_MAIN}t"))
            for item in ElementTree.fromstring(archive.read("xl/sharedStrings.xml"))
        ]
        names = [
            item.get("name") for item in ElementTree.fromstring(archive.read("xl/workbook.xml")).iter(f"{_MAIN}sheet")
        ]
        if sheet not in names:
            return
        content = archive.read(f"xl/worksheets/sheet{names.index(sheet) + 1}.xml")
    for row in ElementTree.fromstring(content).iter(f"{_MAIN}row"):
        cells = {}
        for cell in row:
            value = cell.findtext(f"{_MAIN}v")
            if value is not None:
                column = (cell.get("r") or "").rstrip("0123456789")
                cells[column] = strings[int(value)] if cell.get("t") == "s" else value
        yield cells


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=sorted(MEASURED_RATES), default="t4")
    parser.add_argument("--deepbench", type=Path, metavar="FILE.xlsx")
    parser.add_argument("--neusight", type=Path, metavar="conv.csv.gz")
    options = parser.parse_args(arguments)
    rates = MEASURED_RATES[options.device]
    half = _ZEROS.get(options.device, rates.half["fp16"])
    fastest = replace(rates, half={**rates.half, "fp16": half}, autotuned=True)
    for path, read, path_rates in ((options.deepbench, deepbench, fastest), (options.neusight, neusight, rates)):
        if path:
            timings = [timing for timing in dict.fromkeys(read(path)) if timing.seconds >= SHORTEST]
            print(path.name, table(timings, path_rates), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
