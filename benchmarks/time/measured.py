"""Compare predictions of updates on this machine's CPU from its measured rates, and from two rates, with real updates.

    python benchmarks/time/measured.py [--json OUT] [--rates FILE] [--only MODEL,MODEL]

The CPU is measured first, as by `shoestring check --measure` (`--rates` reads a file instead). Then the engine's
updates of five models are timed, each in a new process, and predicted twice: from the file, and as without it, from the
rates of one large product and one large copy. Nothing of the models is in the file. It takes about four minutes, during
which nothing else may run: timings are those of the whole machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parents[2]))
    sys.path.remove(str(Path(__file__).parent))

from benchmarks.gpu import harness
from benchmarks.gpu.cases import Case

from shoestring.base.settings import Settings
from shoestring.hardware.catalog import Device
from shoestring.hardware.measured_file import read_measured, write_measured
from shoestring.hardware.probe import local_cpu
from shoestring.planning.estimate.time import Seconds, update_seconds
from shoestring.planning.trace import Tracer
from shoestring.runs.check.rates.measure import measure_rates

MICROBATCHES = 2
"""Per update, as in `benchmarks/gpu/clock.py`."""


def _case(model: str, micro_batch: int, **options: Any) -> Case:
    settings = Settings(micro_batch=micro_batch, precision="fp32", checkpointing="no")
    return Case(model=model, settings=settings, options=options)


CASES = (
    _case("resnet-18", 8, image_size=64),
    _case("bert-small", 8, seq_len=128),
    _case("gpt2-small", 4, seq_len=256),
    _case("temporal", 64),
    _case("cloud", 1, size="tiny"),
)
"""Convolutions, an encoder, a language model, an LSTM with attention, and many small operators."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A case with its predictions and its measured updates, in seconds."""

    case: Case
    catalogue: Seconds
    from_file: Seconds
    updates: tuple[float, ...]

    @property
    def measured(self) -> float:
        return median(self.updates)

    def json(self) -> dict[str, Any]:
        return {
            "id": self.case.id,
            "measured": self.measured,
            "fastest": min(self.updates),
            "slowest": max(self.updates),
            "updates": len(self.updates),
            **{name: dataclasses.asdict(getattr(self, name)) for name in ("catalogue", "from_file")},
        }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, default=harness.RESULTS / "time_measured.json", help="output file")
    parser.add_argument("--rates", type=Path, help="a file of this CPU, instead of measuring it")
    parser.add_argument("--only", default="", help="models, separated by commas")
    options = parser.parse_args(arguments)
    target = local_cpu()
    with tempfile.TemporaryDirectory() as folder:
        file = options.rates or Path(folder) / "cpu.json"
        start = time.monotonic()
        if not options.rates:
            write_measured(file, measure_rates(target))
        seconds = time.monotonic() - start
        device = dataclasses.replace(target.device, measured=read_measured(file))
    only = options.only.split(",") if options.only else [case.model for case in CASES]
    rows = [_row(case, target.device, device) for case in CASES if case.model in only]
    assert device.measured
    content = {
        "environment": harness.environment(target.device),
        "measuring_seconds": seconds,
        "warnings": device.measured.warnings,
        "catalogue_rates": {"fp32_flops": target.device.fp32_flops, "bandwidth": target.device.bandwidth},
        "rows": [row.json() for row in rows],
    }
    options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(table(rows))
    return 0


def _row(case: Case, catalogue: Device, measured: Device) -> Row:
    with tempfile.TemporaryDirectory() as folder, Tracer(case.load(Path(folder))) as tracer:
        trace = tracer.trace(case.settings, accumulate=MICROBATCHES, device=catalogue)
    predictions = [update_seconds(trace, device, MICROBATCHES) for device in (catalogue, measured)]
    answer = harness.run_script("clock.py", {"case": case.json(), "device": "cpu"}, 300)
    if "error" in answer:
        raise SystemExit(f"{case.id}: {answer['error']}")
    assert predictions[0] and predictions[1]
    row = Row(case=case, catalogue=predictions[0], from_file=predictions[1], updates=tuple(answer["seconds"]))
    print(f"{case.id}: {row.measured:.3f} s", file=sys.stderr, flush=True)
    return row


def table(rows: Sequence[Row]) -> str:
    """Format the measured and the predicted seconds of each case, and the errors over all."""
    lines = [f"{'':<44}{'measured':>10}{'file':>10}{'error':>8}{'catalogue':>11}{'error':>8}  in range"]
    errors: dict[str, list[float]] = {"from_file": [], "catalogue": []}
    for row in rows:
        texts = []
        for name in errors:
            value = getattr(row, name).value
            errors[name].append(abs(value / row.measured - 1))
            texts.append(f"{value:>10.3f}{value / row.measured - 1:>+8.0%}")
        contains = row.from_file.low <= row.measured <= row.from_file.high
        lines.append(f"{row.case.id:<44}{row.measured:>10.3f}{texts[0]}{texts[1]:>19}  {'yes' if contains else 'no'}")
    if rows:
        lines.append("absolute error, median and largest: " + ", ".join(
            f"{name.replace('_', ' ')} {median(values):.0%} and {max(values):.0%}" for name, values in errors.items()
        ))  # fmt: skip
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
