"""Compare predicted steps on two GPUs without access to each other's memory with published ones.

    python benchmarks/time/two_gpus.py LLAMA_2_7B.json --json OUT

AnswerDotAI/fsdp_qlora, `benchmarks_03_2024.md`: LoRA on Llama-2-7B in bf16 with 1,024 samples of 2,048 tokens, all
blocks recomputed, on two RTX 3090s (limited to 280 W each, "older motherboard and slow PCI lanes") and two RTX 4090s
("full PCIe v4 x16 lanes"), weights sharded over both (FSDP) or not. The seconds of a step are those of the run divided
by its steps, so they contain all else that the program does. Nothing is measured here.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parents[2]))
    sys.path.remove(str(Path(__file__).parent))

from benchmarks.memory.lora import OutputsRetained
from benchmarks.memory.score import import_once

from shoestring.base.settings import Settings
from shoestring.hardware.catalog import DEVICES
from shoestring.integrations.huggingface import Options
from shoestring.planning.estimate.exchange import link_of
from shoestring.planning.estimate.time import Seconds, update_seconds
from shoestring.planning.trace.record import Trace
from shoestring.planning.trace.tracer import Tracer
from shoestring.recipe.adaptation import Adaptation
from shoestring.recipe.finding import find

SAMPLES, TOKENS, GPUS = 1024, 2048, 2


@dataclass(frozen=True)
class Run:
    """A published run: the device, the microbatch of each GPU, whether weights were sharded, and its seconds."""

    device: str
    micro_batch: int
    is_sharded: bool
    seconds: float

    @property
    def step(self) -> float:
        return self.seconds * self.micro_batch * GPUS / SAMPLES


RUNS = (
    Run("rtx3090", 1, True, 3090),
    Run("rtx3090", 4, True, 1366),
    Run("rtx3090", 6, True, 1199),
    Run("rtx3090", 4, False, 881),
    Run("rtx4090", 6, True, 481),
    Run("rtx4090", 4, False, 437),
)


def predicted(run: Run, trace: Trace, *, is_hidden: bool = False) -> Seconds:
    """Predict a step; with `is_hidden` as if the GPUs computed while they exchange."""
    device = DEVICES[run.device]
    link = link_of(device)
    estimate = update_seconds(
        trace,
        device,
        1,
        gpus=GPUS,
        sharding="zero3" if run.is_sharded else "ddp",
        torch_ddp=not run.is_sharded,
        link=replace(link, hides_gathers=True) if is_hidden else link,
    )
    assert estimate
    return estimate


def row(run: Run, tracer: Tracer) -> dict[str, Any]:
    """Return a run with its predictions, in seconds."""
    settings = Settings(
        micro_batch=run.micro_batch,
        precision="fp32",
        checkpointing="full",
        sharding="zero3" if run.is_sharded else "ddp",
    )
    trace = tracer.trace(settings, accumulate=1, device=DEVICES[run.device], gpus=GPUS, torch_ddp=not run.is_sharded)
    estimate = predicted(run, trace)
    return {
        "id": f"{GPUS} x {run.device}, {'FSDP' if run.is_sharded else 'DDP'}, microbatch {run.micro_batch}",
        "measured": run.step,
        "estimate": estimate.value,
        "low": estimate.low,
        "high": estimate.high,
        "exchange": estimate.parts["exchange"],
        "hidden": predicted(run, trace, is_hidden=True).value,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("configuration", type=Path)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args(arguments)
    import_once()
    adaptation = Adaptation(lora_r=64, lora_alpha=16, quantization="none", weights="bf16")
    rows = []
    for micro_batch in dict.fromkeys(run.micro_batch for run in RUNS):
        recipe_options = Options(seq_len=TOKENS, attention="sdpa", effective_batch=micro_batch * GPUS)
        kind = type(
            "OutputsRetained", (OutputsRetained,), {"source": str(options.configuration), "adaptation": adaptation}
        )
        with Tracer(find(kind(recipe_options))) as tracer:
            rows += [row(run, tracer) for run in RUNS if run.micro_batch == micro_batch]
    for entry in rows:
        inside = "yes" if entry["low"] <= entry["measured"] <= entry["high"] else "no"
        print(
            f"{entry['id']}: predicted {entry['estimate']:.2f} s ({entry['low']:.2f} to {entry['high']:.2f}; "
            f"exchange {entry['exchange']:.2f}, hidden {entry['hidden']:.2f}), measured {entry['measured']:.2f} s, "
            f"ratio {entry['estimate'] / entry['measured']:.2f}, in range: {inside}"
        )
    options.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
