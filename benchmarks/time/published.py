"""Print how far updates predicted from published rates are from those predicted from timed kernels.

    python benchmarks/time/published.py

Each GPU whose kernels others have timed is predicted twice: by them, and as if nobody had timed it, from the published
rates of its own (`published`) or only from those of similar GPUs (`similar`), with the curves of another generation.
The results are constants of `src/shoestring/planning/estimate/spread.py`. Nothing was measured here, and no row with a
measured update is read.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median, variance
from typing import Any
from unittest import mock

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parents[2]))
    sys.path.remove(str(Path(__file__).parent))

from benchmarks.gpu.cases import Case

from shoestring.base.settings import Precision, Settings
from shoestring.hardware.catalog import DEVICES, Device
from shoestring.hardware.tables import read_table
from shoestring.planning.estimate import measured_rates, rates
from shoestring.planning.estimate.rates import Rates
from shoestring.planning.estimate.time import update_seconds
from shoestring.planning.trace import Tracer
from shoestring.planning.trace.record import Trace

_MODELS: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("resnet-18", 64, {"image_size": 224}),
    ("bert-small", 64, {"seq_len": 128}),
    ("gpt2-small", 16, {"seq_len": 512}),
)
"""Models with their microbatches: convolutions, an encoder and a language model, as large as the GPU is busy."""

_PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16")

_CURVES = {"t4": "v100", "p100": "v100", "v100": "t4", "a100-40": "v100", "a100-80": "v100", "l4": "a100-40"}
"""The GPUs whose kernels of both kinds, products and memory, were timed, and whose curves stand for theirs."""


def traces() -> Iterator[Trace]:
    for model, micro_batch, options in _MODELS:
        for precision in _PRECISIONS:
            settings = Settings(micro_batch=micro_batch, precision=precision, checkpointing="no")
            case = Case(model=model, settings=settings, options=options)
            with tempfile.TemporaryDirectory() as folder, Tracer(case.load(Path(folder))) as tracer:
                yield tracer.trace(settings, accumulate=1, device=DEVICES["v100"])


def seconds(trace: Trace, device: Device, used: Rates) -> float:
    """Return the seconds of an update by given rates."""
    with mock.patch.object(measured_rates, "find_rates", return_value=used):
        estimate = update_seconds(trace, device, 1)
    assert estimate
    return estimate.value


def ratios(all_traces: Sequence[Trace], *, own: bool) -> Iterator[tuple[str, float]]:
    """Yield for each GPU and trace the seconds by timed kernels over those by published rates."""
    for name, curves in _CURVES.items():
        device = DEVICES[name]
        timed = rates.find_rates(device)
        untimed = replace(device, sustained=device.sustained if own else {})
        others = [] if own else [name]
        assert timed
        published = rates.published_rates(untimed, curves=curves, without=others)
        for trace in all_traces:
            yield name, seconds(trace, device, timed) / seconds(trace, untimed, published)


def between_publications() -> float:
    """Return the standard deviation of the logarithms of 16-bit rates of one device in different publications."""
    squares = degrees = 0.0
    publications: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in read_table("sustained.csv"):
        for device in (DEVICES[name] for name in row["devices"].split()):
            columns = [column for column in ("fp16", "bf16") if getattr(device, f"{column}_flops") and row[column]]
            publications[device.name][row["source"]] += [float(row[column]) for column in columns]
    for rates_by_source in publications.values():
        logarithms = [math.log(fmean(values)) for values in rates_by_source.values() if values]
        if len(logarithms) > 1:
            squares += variance(logarithms) * (len(logarithms) - 1)
            degrees += len(logarithms) - 1
    return math.sqrt(squares / degrees)


def between_devices() -> float:
    """Return the root mean square of logarithms: a device's 16-bit share over that of the devices similar to it."""
    return _root_mean_square(
        device.sustained["fp16_flops"] / device.fp16_flops
        / median(rates.similar_shares(device, "fp16_flops", [device.name]))
        for device in DEVICES.values()
        if device.fp16_flops and "fp16_flops" in device.sustained
    )  # fmt: skip


def _root_mean_square(values: Iterable[float]) -> float:
    return math.sqrt(fmean(math.log(value) ** 2 for value in values))


def main() -> int:
    print(f"between publications: {between_publications():.3f}")
    print(f"between similar devices: {between_devices():.3f}")
    all_traces = list(traces())
    for title, own in (("published", True), ("similar", False)):
        all_ratios = list(ratios(all_traces, own=own))
        for name in _CURVES:
            print(f"{title} {name}: " + ", ".join(f"{ratio:.2f}" for device, ratio in all_ratios if device == name))
        print(f"{title}: {_root_mean_square(ratio for _, ratio in all_ratios):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
