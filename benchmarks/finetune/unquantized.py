"""Losses of QLoRA with the weights that are not packed in fp32, and in the type of the others.

    python -m benchmarks.finetune.unquantized MODEL SHARED_DATA [--updates 150] [--seeds 0 1 2] [--types bf16 fp16]

`quantization=nf4` leaves norms, embeddings and the head unpacked: `unquantized=fp32` casts them to fp32, as peft does,
`unquantized=own` leaves them in the type of `weights`. With each seed both are trained on the same batches from the
same adapters, in the type that the products compute in; the loss of held-out rows is measured at the end. MODEL is a
language model that `finetune` reads, such as SmolLM2-135M-Instruct. The memory is that of plans for one T4, for
configurations in SHARED_DATA.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from benchmarks.finetune.conversations import write
from bitsandbytes.functional import dequantize_4bit
from bitsandbytes.nn import Linear4bit
from torch.nn import functional

from shoestring.base.settings import Settings
from shoestring.recipe.finding import load
from shoestring.recipe.options import LoadedRecipe
from shoestring.techniques import adapt, offload
from shoestring.training.data.seeding import seed_all
from shoestring.training.engine.precision import mixed_precision

RESULTS = Path(__file__).parents[1] / "results"
UNQUANTIZED = ("fp32", "own")
ROWS = 2
"""In an update."""
TOKENS = 96
HELD_OUT = 48
SHOWN = 15
"""The updates of which a point of the curve is the mean."""
PACKAGES = ("torch", "transformers", "peft", "bitsandbytes")
CONFIGURATIONS = ("Qwen--Qwen2.5-0.5B", "Qwen--Qwen2.5-1.5B")
PLANNED = ("lora.r=16", "lora.targets=linear", "quantization=nf4", "weights=fp16", "seq_len=1024", "effective_batch=4")
ESTIMATED = ("micro_batch=4", "precision=fp16", "checkpointing=full")


def recipe(model: Path, data: Path, dtype: str, unquantized: str, seed: int) -> LoadedRecipe:
    """Return the recipe that is trained."""
    options = {"model": str(model), "data": str(data), "seq_len": TOKENS, "seed": seed, "effective_batch": ROWS}
    return load("finetune", {**options, "weights": dtype, "quantization": "nf4", "unquantized": unquantized})


class Unpacked(torch.nn.Module):
    """A 4-bit layer whose values are unpacked once, and not in each pass as by bitsandbytes, with the same result."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.compute = layer.compute_dtype
        values = dequantize_4bit(layer.weight.data, layer.weight.quant_state).to(self.compute)
        self.register_buffer("values", values, persistent=False)
        self.bias = layer.bias

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Compute in the layer's type, and return the type of the inputs, as `Linear4bit` does."""
        bias = None if self.bias is None else self.bias.to(self.compute)
        return functional.linear(inputs.to(self.compute), self.values, bias).to(inputs.dtype)


def unpack(network: torch.nn.Module) -> None:
    """Replace the 4-bit layers, which a CPU unpacks slowly."""
    for module in list(network.modules()):
        for name, layer in list(module.named_children()):
            if type(layer) is Linear4bit:
                setattr(module, name, Unpacked(layer))


def batches(samples: Any, loaded: LoadedRecipe, seed: int, count: int) -> Iterator[Any]:
    """Yield `count` batches; every epoch has an order of its own."""
    generator = torch.Generator().manual_seed(seed)
    order: list[int] = []
    for _ in range(count):
        if len(order) < ROWS:
            order = torch.randperm(len(samples), generator=generator).tolist()
        rows, order = order[:ROWS], order[ROWS:]
        yield loaded.recipe.collate([samples[row] for row in rows])


def train(model: Path, data: Path, dtype: Any, unquantized: str, seed: int, updates: int) -> dict[str, Any]:
    """Train, and return the mean losses of every `SHOWN` updates, and the loss of the held-out rows."""
    loaded = recipe(model, data, dtype, unquantized, seed)
    samples = loaded.data()
    seed_all(seed)
    network = adapt.trained_model(loaded.recipe.model(), loaded.adaptation, Settings(), keeps_stored_type=True)
    offload.move(network.train(), loaded.recipe, Settings(), torch.device("cpu"))
    unpack(network)
    precision = mixed_precision(dtype, torch.device("cpu"))
    optimizer = loaded.recipe.optimizer(network)
    losses, skipped, started = [], 0, time.monotonic()
    for batch in batches(samples["train"], loaded, seed, updates):
        with precision.autocast():
            total, count = loaded.recipe.loss(network, batch)
        loss = total / count
        losses.append(float(loss.detach()))
        (precision.scaler.scale(loss) if precision.scaler else loss).backward()
        if precision.scaler:
            scale = precision.scaler.get_scale()
            precision.scaler.step(optimizer)
            precision.scaler.update()
            skipped += precision.scaler.get_scale() < scale
        else:
            optimizer.step()
        optimizer.zero_grad()
    seconds = (time.monotonic() - started) / updates
    return {
        "type": dtype,
        "unquantized": unquantized,
        "seed": seed,
        "updates": updates,
        "losses": [round(fmean(losses[at : at + SHOWN]), 5) for at in range(0, updates, SHOWN)],
        "held_out": round(evaluate(network, samples["validation"], loaded, precision), 5),
        "skipped_updates": skipped,
        "seconds_per_update": round(seconds, 2),
        "largest_hidden_value": round(largest_hidden_value(network, samples["validation"], loaded, precision), 1),
    }


@torch.no_grad()
def evaluate(network: Any, samples: Any, loaded: LoadedRecipe, precision: Any) -> float:
    """Return the loss of the held-out rows."""
    network.eval()
    total = count = 0.0
    for at in range(0, len(samples) - ROWS + 1, ROWS):
        with precision.autocast():
            value, number = loaded.recipe.loss(
                network, loaded.recipe.collate([samples[at + row] for row in range(ROWS)])
            )
        total, count = total + float(value), count + float(number)
    return total / count


@torch.no_grad()
def largest_hidden_value(network: Any, samples: Any, loaded: LoadedRecipe, precision: Any) -> float:
    """Return the largest magnitude between two layers, which in fp16 has to be below 65,504."""
    batch = loaded.recipe.collate([samples[row] for row in range(ROWS)])
    with precision.autocast():
        hidden = network.get_base_model().model(batch["input_ids"], output_hidden_states=True).hidden_states
    return max(float(values.abs().max()) for values in hidden)


def planned_memory(configuration: Path, unquantized: str) -> dict[str, Any]:
    """Return the predicted memory of QLoRA on a T4."""
    words = [*PLANNED, *ESTIMATED, f"unquantized={unquantized}"]
    settings = [part for word in words for part in ("--set", word)]
    command = [sys.executable, "-m", "shoestring", "estimate", f"hf:{configuration}", "--on", "t4", "--json", *settings]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        raise SystemExit(process.stderr[-3000:])
    answer = json.loads(process.stdout)
    return {
        "model": configuration.stem,
        "unquantized": unquantized,
        **{name: answer[name] for name in ("peak_bytes", "high_bytes")},
        "allocated_bytes": answer["allocated"]["value"],
        "parts": {part["name"]: part["bytes"] for part in answer["parts"]},
    }


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format the held-out losses of each pair of runs."""
    lines = []
    by_key = {(row["type"], row["seed"], row["unquantized"]): row for row in rows}
    for (dtype, seed, unquantized), row in by_key.items():
        other = by_key.get((dtype, seed, "own"))
        if unquantized == "fp32" and other:
            lines.append(f"{dtype} seed {seed}: held out {row['held_out']:.4f} in fp32, {other['held_out']:.4f} in own")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, metavar="MODEL")
    parser.add_argument("data", type=Path, metavar="SHARED_DATA")
    parser.add_argument("--updates", type=int, default=150)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--types", nargs="+", default=["bf16"], choices=["bf16", "fp16", "fp32"])
    parser.add_argument("--json", type=Path, default=RESULTS / "finetune_unquantized.json")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        data = Path(temporary) / "data"
        write(data, 10 * HELD_OUT, seed=0)
        memory = [
            planned_memory(arguments.data / "configs" / f"{name}.json", unquantized)
            for name in CONFIGURATIONS
            for unquantized in UNQUANTIZED
        ]
        for dtype in arguments.types:
            for seed in arguments.seeds:
                for unquantized in UNQUANTIZED:
                    rows.append(train(arguments.model, data, dtype, unquantized, seed, arguments.updates))
                    print(json.dumps(rows[-1]), flush=True)
                    content = {
                        "environment": {
                            "python": platform.python_version(),
                            "processors": os.cpu_count(),
                            **{
                                name: metadata.version(name)
                                for name in ("torch", "transformers", "peft", "bitsandbytes")
                            },
                        },
                        "rows_of_an_update": ROWS,
                        "tokens": TOKENS,
                        "updates_of_a_point": SHOWN,
                        "runs": rows,
                        "memory": memory,
                    }
                    # Written after each run, so that a later failure does not lose its measurements.
                    arguments.json.write_text(json.dumps(content, indent=1) + "\n")
    print(summary(rows))


if __name__ == "__main__":
    main()
