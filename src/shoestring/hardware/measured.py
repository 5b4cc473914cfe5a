"""Rates of a device that were measured on it, and the JSON file that has them (`shoestring check --measure FILE`).

The file has timings as they were measured: of operators by name and shape, of the host, of copies. What they mean for a
prediction is decided when they are read (`planning/estimate/measured_rates.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from shoestring.base.settings import Precision


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The seconds of something that was measured several times."""

    seconds: float
    """The median."""
    low: float
    high: float
    """The fastest and the slowest."""


@dataclass(frozen=True, kw_only=True)
class OperatorTiming(Timing):
    """The seconds of one call of an operator, with the properties that the trace of a recipe gives it."""

    operator: str
    """Such as `aten::mm`."""
    precision: Precision
    layout: str = ""
    """The memory format of a convolution's input and weight: `channels_first` or `channels_last`."""
    flops: int
    bytes: int
    """Bytes read and written if every operand is moved once."""
    launches: int = 1
    shape: tuple[int, ...] = ()
    """As in `planning/trace/products.py`; empty for operators that are neither products nor convolutions."""


@dataclass(frozen=True, kw_only=True)
class CopyTiming(Timing):
    """The seconds to move so many bytes."""

    kind: str
    """One of `COPIES`."""
    bytes: int


PINNED, PAGEABLE, TOGETHER = "host to device", "host to device, pageable", "host to device, all GPUs"
COPIES: Mapping[str, str] = {
    PINNED: "a copy from pinned host memory to a GPU",
    PAGEABLE: "the same from memory that is not pinned",
    TOGETHER: "the same as the first to each of all GPUs at once: the seconds until all have their bytes",
    "device to host": "a copy from a GPU to pinned host memory",
    "all-reduce": "a sum over all GPUs",
}
"""What is measured of copies."""


@dataclass(frozen=True, kw_only=True)
class MeasuredDevice:
    """The device that was measured."""

    name: str
    """Its name in the catalogue, or `cpu`."""
    title: str
    """Its name for people, such as "NVIDIA T4"."""
    kind: str
    """`cuda` or `cpu`."""
    memory_bytes: int
    """The device's memory; the RAM for a CPU."""
    compute_capability: tuple[int, int] | None = None
    """CUDA's (major, minor) version of the device's features; None for a CPU."""
    gpus: int
    """The number of GPUs of this model; 0 for a CPU."""
    cores: int
    """The hardware threads of the process."""
    threads: int
    """The threads with which torch computes on the CPU."""


@dataclass(frozen=True, kw_only=True)
class MeasuredRates:
    """The content of a file."""

    file: str = ""
    """The path of the file, as the user gave it."""
    date: str
    """When it was measured, in ISO 8601."""
    device: MeasuredDevice
    """The device that was measured."""
    versions: Mapping[str, str] = field(hash=False)
    """By name: python, torch, cuda, cudnn, driver, shoestring."""
    warnings: tuple[str, ...] = ()
    """Why the timings may be wrong, such as other processes on the device."""
    operators: tuple[OperatorTiming, ...] = field(hash=False, repr=False)
    host: Mapping[str, Timing] = field(hash=False, repr=False)
    """The host's seconds for one operator, by what it does: see `HOST`."""
    copies: tuple[CopyTiming, ...] = ()

    @property
    def source(self) -> str:
        """The sentence part that names the file and its date."""
        return f"kernels measured on {self.device.title} on {self.date[:10]} ({self.file})"

    def summary(self) -> dict[str, str]:
        """Return the highest rates and the host's times, for people."""
        rates: dict[str, float] = {}
        for row in self.operators:
            layout = f" {row.layout.replace('_', ' ')}" if row.layout == "channels_last" else ""
            kind = _SUMMARIZED.get(row.operator)
            if kind:
                name = f"{kind}, {row.precision}{layout}"
                rates[name] = max(rates.get(name, 0.0), (row.flops or row.bytes) / row.seconds)
        units = {name: "GB/s" if name.startswith("memory") else "GFLOP/s" for name in rates}
        texts = {name: f"{rate / 1e9:,.0f} {units[name]}" for name, rate in rates.items()}
        hosts = {f"host, {name}": f"{timing.seconds * 1e6:.1f} us per operator" for name, timing in self.host.items()}
        largest = {copy.kind: copy for copy in sorted(self.copies, key=lambda copy: copy.bytes)}
        copies = {kind: f"{copy.bytes / copy.seconds / 1e9:.1f} GB/s" for kind, copy in largest.items()}
        return {**texts, **copies, **hosts}

    def json(self) -> dict[str, Any]:
        """Return the device, the versions and the summary: what `shoestring check --measure --json` prints.

        Keys:
            operators (integer): the number of operators and sizes that were measured
            summary (object of texts by name): the highest rates and the host's times, for people
        """
        return {
            "file": self.file, "date": self.date, "device": asdict(self.device), "versions": dict(self.versions),
            "warnings": list(self.warnings), "operators": len(self.operators), "summary": self.summary(),
        }  # fmt: skip

    @property
    def noise(self) -> tuple[float, float]:
        """Medians over all timings of the fastest and of the slowest, as shares of the typical one."""
        timings = (*self.operators, *self.host.values())
        fastest = median(timing.low / timing.seconds for timing in timings)
        return fastest, median(timing.high / timing.seconds for timing in timings)


_SUMMARIZED: Mapping[str, str] = {
    "aten::mm": "products",
    "aten::convolution": "convolutions",
    "aten::add.Tensor": "memory, add",
    "aten::_softmax": "memory, softmax",
    "aten::native_layer_norm": "memory, norm",
}
"""The operators of `MeasuredRates.summary`."""

HOST: Mapping[str, str] = {
    "call": "an operator without gradients, with a kernel of a few values",
    "view": "an operator without a kernel",
    "forward": "an operator with a kernel in a forward pass of modules, which autograd records",
    "backward": "an operator with a kernel in a backward pass",
    "optimizer": "an operator with a kernel in a step of AdamW",
    "kernel": "the smallest kernel, from one to the next without the host",
}
"""What is measured of the host. On a CPU `kernel` is left out: the host runs the kernels."""
