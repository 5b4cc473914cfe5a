"""Scores the estimator on LoRA and QLoRA steps that others measured on Tesla T4s.

    python benchmarks/memory/t4.py lora ROWS.csv [--configs DIR] --json OUT [--only ID,ID]

ROWS.csv has a row for each measured step. Judged is `allocated_bytes`, the peak of a step after one to warm up.
OUT has bytes: {"rows": [{"id", "measured", "estimate", "low", "high"} or {"id", "skipped"}]}. `low` has no block larger
than its request; in `high` every block above 1 MiB is larger by all that the caching allocator does not split off,
1 MiB, since which free blocks a model's loading leaves behind differs from run to run.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoestring import recipe
from shoestring.errors import ShoestringError
from shoestring.estimate.allocator import SMALL, Allocator, Block, rounded
from shoestring.hardware.catalog import DEVICES
from shoestring.recipes.huggingface import HuggingFace, Options
from shoestring.settings import Settings
from shoestring.trace import Tracer
from shoestring.trace.record import Alloc, Free, Op, Phase, Trace
from shoestring.units import MIB

if TYPE_CHECKING:
    from torch import Tensor, nn

Row = Mapping[str, str]

CONFIGS = Path(__file__).parents[3] / "shared" / "data" / "configs"

PHASES = ("forward", "backward", "optimizer")

WORKSPACE = 8 * MIB + 128 * 1024
"""Of cuBLAS for each thread that multiplies, below Hopper: torch's `aten/src/ATen/cuda/CublasHandlePool.cpp`."""


class Step(HuggingFace):
    """The measured loop keeps the model's outputs, logits among them, until the step has ended."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        self._outputs: Any = None
        self._outputs = model(**batch)
        loss: Tensor = self._outputs.loss
        return loss


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """Bytes in allocated blocks of the second step by phase, and what is reserved."""

    phases: Mapping[str, int]
    requested: int
    """The peak were no block larger than its request, rounded to 512 bytes."""
    unsplit: int
    """Bytes by which the blocks of the peak could be larger than their requests."""
    reserved: int

    @property
    def allocated(self) -> int:
        return max(self.phases.values())

    @property
    def high(self) -> int:
        return self.requested + self.unsplit


def trace(row: Row, configs: Path) -> Trace:
    """The row's step, followed. Raises ShoestringError, KeyError for a column that is missing."""
    source = configs / (row["model"].replace("/", "--") + ".json")
    size = int(row["micro_batch"])
    options = Options(
        seq_len=int(row["seq_len"]),
        lora_r=int(row["lora_r"]),
        lora_alpha=int(row["lora_alpha"]),
        quantization="nf4" if row["quantization"] == "nf4" else "none",
        weights="fp16",
        attention="eager" if row["attention"] == "eager" else "sdpa",
        checkpointing=row["checkpointing"] == "1",
        effective_batch=size,
    )
    kind = type("Step", (Step,), {"source": str(source)})
    with Tracer(recipe.live(kind(options))) as tracer:
        return tracer.trace(Settings(micro_batch=size, precision="fp32"), accumulate=1, device=DEVICES["t4"])


def peaks(found: Trace) -> Peaks:
    """The trace through the simulated allocator, with cuBLAS' workspace of each thread before its first product."""
    allocator = Allocator()
    blocks: dict[int, Block] = {}
    phases: dict[str, int] = defaultdict(int)
    requested = most = large = unsplit = 0
    phase = Phase("model", 0, 0)
    threads: set[bool] = set()
    for event in found.events:
        match event:
            case Phase():
                phase = event
            case Op(name) if name in {"aten::mm", "aten::addmm", "aten::bmm"} and phase.name != "optimizer":
                if (phase.name == "backward") not in threads:
                    threads.add(phase.name == "backward")
                    allocator.allocate(WORKSPACE)
                    requested += WORKSPACE
            case Alloc(index):
                blocks[index] = allocator.allocate(found.storages[index].bytes)
                requested += rounded(found.storages[index].bytes)
                large += found.storages[index].bytes > SMALL
            case Free(index):
                allocator.free(blocks.pop(index))
                requested -= rounded(found.storages[index].bytes)
                large -= found.storages[index].bytes > SMALL
        if phase.update == 1 and phase.name in PHASES:
            phases[phase.name] = max(phases[phase.name], allocator.allocated)
            if requested > most:
                most, unsplit = requested, large * SMALL
    return Peaks(phases=phases, requested=most, unsplit=unsplit, reserved=allocator.peak_reserved)


def score(rows: Iterable[Row], configs: Path) -> list[dict[str, Any]]:
    """Each row with its estimate, or why there is none. Rows of one configuration share a trace."""
    known: dict[tuple[str, ...], Peaks] = {}
    scored: list[dict[str, Any]] = []
    for row in rows:
        if not row.get("allocated_bytes"):
            scored.append({"id": row["id"], "skipped": "nothing was measured: it did not fit"})
            continue
        try:
            key = tuple(row[name] for name in _KEY)
            if key not in known:
                known[key] = peaks(trace(row, configs))
            found = known[key]
        except (ShoestringError, KeyError, ValueError) as error:
            scored.append({"id": row["id"], "skipped": str(error)})
            continue
        scored.append(_scored(row, found))
        print(_line(row, scored[-1]), file=sys.stderr, flush=True)
    return scored


_KEY = ("model", "micro_batch", "seq_len", "attention", "checkpointing", "lora_r", "lora_alpha", "quantization")


def _scored(row: Row, found: Peaks) -> dict[str, Any]:
    return {
        "id": row["id"],
        "measured": int(row["allocated_bytes"]),
        "estimate": found.allocated,
        "low": found.requested,
        "high": found.high,
        "phases": {
            name: {"measured": int(row[f"{name}_peak_bytes"]) if row.get(f"{name}_peak_bytes") else None, "estimate": n}
            for name, n in found.phases.items()
        },
        "reserved": {
            "measured": int(row["reserved_bytes"]) if row["reserved_bytes"] else None,
            "estimate": found.reserved,
        },
        "group": f"{row['quantization']} {row['attention']}",
    }


def _line(row: Row, result: Mapping[str, Any]) -> str:
    parts = [f"{row['id']:9} {row['model'].rpartition('/')[2]:28} {result['group']:11} {error(result):+7.2%}"]
    for name, pair in result["phases"].items():
        if pair["measured"]:
            parts.append(
                f"{name} {pair['estimate'] / pair['measured'] - 1:+.2%} ({pair['estimate'] - pair['measured']:+d})"
            )
    return "  ".join(parts)


def error(result: Mapping[str, Any]) -> float:
    """Above (positive) or below what was measured, relative to it."""
    return float(result["estimate"] / result["measured"] - 1)


def table(results: Iterable[Mapping[str, Any]]) -> str:
    """Median, 90th percentile and worst relative error by group, and how often the estimate was too low."""
    groups: dict[str, list[float]] = defaultdict(list)
    for result in results:
        if "estimate" in result:
            for name in ("all", result["group"]):
                groups[name].append(error(result))
    lines = [f"{'rows':12} {'number':>6} {'median':>7} {'p90':>7} {'worst':>7} {'below':>6}"]
    for name, errors in sorted(groups.items()):
        sizes = sorted(map(abs, errors))
        below = sum(value < 0 for value in errors) / len(errors)
        ninetieth = sizes[-(-len(sizes) * 9 // 10) - 1]
        lines.append(
            f"{name:12} {len(sizes):6} {statistics.median(sizes):7.2%} {ninetieth:7.2%} {sizes[-1]:7.2%} {below:6.0%}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", choices=["lora"])
    parser.add_argument("rows", type=Path)
    parser.add_argument("--configs", type=Path, default=CONFIGS)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--only", help="ids with commas between")
    asked = parser.parse_args(arguments)
    # Here once, so that the process of each row has them already.
    import peft
    import torch
    import transformers

    assert peft and torch
    transformers.logging.set_verbosity_error()
    with asked.rows.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if not asked.only or row["id"] in asked.only.split(",")]
    results = score(rows, asked.configs)
    asked.json.write_text(json.dumps({"rows": results}, indent=1) + "\n", encoding="utf-8")
    print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
