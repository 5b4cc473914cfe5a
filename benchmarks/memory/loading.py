"""Print what loading a 4-bit model with adapters takes on a T4: by the engine, and by transformers with peft.

    python benchmarks/memory/loading.py CONFIG.json [CONFIG.json ...] --json OUT [--seq-len 1024] [--lora-r 16]

For each configuration and way: the peak while the model is loaded, the peak of training with a microbatch of one and
every block recomputed, and what loading leaves unused in the allocator's cache then. Predictions, without a GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.memory import score

from shoestring.base.settings import Settings
from shoestring.base.units import bytes_text
from shoestring.hardware.catalog import DEVICES
from shoestring.planning.estimate.memory import memory
from shoestring.planning.trace.tracer import Tracer
from shoestring.recipe.finding import load

Way = Literal["engine", "transformers"]


def predict(config: Path, seq_len: int, lora_r: int) -> list[dict[str, Any]]:
    """Return the predicted bytes of both ways of loading a configuration."""
    options = {"seq_len": seq_len, "lora_r": lora_r, "quantization": "nf4", "weights": "fp16", "effective_batch": 1}
    settings = Settings(micro_batch=1, precision="fp32", checkpointing="full")
    rows = []
    with Tracer(load(f"hf:{config}", options)) as tracer:
        for way in get_args(Way):
            trace = tracer.trace(settings, accumulate=1, device=DEVICES["t4"], loading=way)
            breakdown = memory(trace, DEVICES["t4"], deterministic=False)
            left = sum(part.bytes for part in breakdown.parts if part.name == "left by loading")
            rows.append(
                {
                    "model": config.stem,
                    "loaded by": way,
                    "loading": breakdown.loading_bytes,
                    "training": breakdown.peak_bytes,
                    "left by loading": left,
                }
            )
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("configs", type=Path, nargs="+")
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--lora-r", type=int, default=16)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args(arguments)
    score.import_once()
    rows = [row for config in options.configs for row in predict(config, options.seq_len, options.lora_r)]
    for row in rows:
        sizes = ", ".join(f"{name} {bytes_text(row[name])}" for name in ("loading", "training", "left by loading"))
        print(f"{row['model']}, loaded by {row['loaded by']}: {sizes}")
    options.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
