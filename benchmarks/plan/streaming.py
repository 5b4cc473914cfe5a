"""Plans of `finetune` for models that are larger than the GPU: which blocks are streamed, and how long updates take.

    python -m benchmarks.plan.streaming [--only MODEL ...] [--json OUT]

The models are those of the configurations below, which have the sizes that their authors published; weights are not
needed. Each is planned for 10,000 rows of 500 tokens, 5 million tokens, with LoRA on 4-bit weights. Its tokens to hide
copies are those of the smallest microbatch in which a GPU waits for copies for less than 1% of the time, if all blocks
are streamed and each microbatch copies them. It needs no GPU, and takes some minutes for a model.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path
from typing import Any

from shoestring.base.errors import ShoestringError
from shoestring.base.settings import Settings
from shoestring.base.units import parse_bytes
from shoestring.hardware import targets
from shoestring.hardware.catalog import Target
from shoestring.planning.candidates import candidate, seconds_of
from shoestring.planning.plan import Plan
from shoestring.planning.planner import plan_with
from shoestring.planning.trace import Tracer
from shoestring.planning.weight_type import with_weight_type
from shoestring.recipe.finding import choose_for_plan
from shoestring.recipe.options import LoadedRecipe

ROWS, TOKENS = 10_000, 500
OPTIONS = {
    "rows": ROWS,
    "row_tokens": TOKENS,
    "seq_len": 512,
    "packing": "no",
    "quantization": "nf4",
    "unquantized": "own",
}
HIDDEN = 0.01
"""The share of an update in which a GPU may wait for copies that count as hidden."""
LARGEST_MICRO_BATCH = 64

SIZES: Mapping[str, Mapping[str, Any]] = {
    name: {
        "model_type": kind,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "vocab_size": words,
    }
    for name, kind, width, inner, layers, heads, groups, words in (
        ("Qwen2.5-7B", "qwen2", 3584, 18944, 28, 28, 4, 152064),
        ("Qwen2.5-14B", "qwen2", 5120, 13824, 48, 40, 8, 152064),
        ("Qwen2.5-32B", "qwen2", 5120, 27648, 64, 40, 8, 152064),
        ("Qwen2.5-72B", "qwen2", 8192, 29568, 80, 64, 8, 152064),
        ("Llama-3.1-70B", "llama", 8192, 28672, 80, 64, 8, 128256),
    )
}
ARCHITECTURES = {"qwen2": "Qwen2ForCausalLM", "llama": "LlamaForCausalLM"}

MACHINES: tuple[tuple[str, str | None, Mapping[str, Any]], ...] = (
    ("kaggle-t4", None, {}),
    ("kaggle-t4x2", None, {}),
    ("kaggle-t4x2", None, {"sharding": "zero3"}),
    ("colab-t4", None, {}),
    ("rtx3060", "16GB", {}),
    ("rtx4090", "64GB", {}),
)
"""Targets, their host memory where no platform tells it, and options and settings that are fixed."""

SMALLER_UPDATES: Mapping[str, tuple[str, str | None, Mapping[str, Any]]] = {
    "Qwen2.5-32B": ("rtx3060", "16GB", {"effective_batch": 8}),
}
"""A machine on which a model is planned with fewer rows in an update too."""


def configuration(name: str) -> dict[str, Any]:
    """Return the content of a model's `config.json`."""
    sizes = SIZES[name]
    return {
        **sizes,
        "architectures": [ARCHITECTURES[sizes["model_type"]]],
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def hidden_tokens(tracer: Tracer, loaded: LoadedRecipe, target: Target, plan: Plan) -> int | None:
    """Return the tokens of the smallest microbatch whose computation hides the copies of all blocks."""
    trace = candidate(tracer, loaded, target, plan.settings).trace
    settings = plan.settings.replace(streamed_blocks=len(trace.block_bytes), stream_order=None, stream_group=None)
    for size in range(1, LARGEST_MICRO_BATCH + 1):
        seconds = seconds_of(trace, target.device, loaded, settings, micro_batch=size, samples=size)
        if seconds and seconds.parts.get("streaming", 0.0) < HIDDEN * seconds.value:
            return size * TOKENS
    return None


def row(name: str, target: Target, plan: Plan, hidden: int | None, seconds: float) -> dict[str, Any]:
    """Return what the results keep of a plan."""
    update, trace_blocks = plan.time.predicted.update_seconds, plan.facts.blocks
    streaming = plan.time.parts.get("streaming")
    tokens = plan.settings.gpus and update and int(TOKENS * effective_batch(plan)) / update
    return {
        "model": name,
        "target": target.name,
        "ram_bytes": target.platform.ram_bytes if target.platform else None,
        "rows_of_update": effective_batch(plan),
        "verdict": plan.verdict,
        "exceeded": [limit.name for limit in plan.limits if not limit.holds],
        "settings": {
            setting: getattr(plan.settings, setting)
            for setting in (
                "micro_batch",
                "checkpointing",
                "gpus",
                "sharding",
                "streamed_blocks",
                "stream_from",
                "stream_order",
                "stream_group",
            )
        },
        "blocks": trace_blocks,
        "notes": [note for note in plan.facts.notes if "streamed" in note],
        "peak_bytes": plan.memory.peak_bytes,
        "high_bytes": plan.memory.high_bytes,
        "capacity_bytes": plan.memory.capacity_bytes,
        "host_bytes": plan.host.peak_bytes,
        "streamed_bytes": plan.host.parts.get("streamed weights") or plan.disk.parts.get("streamed weights") or 0,
        "update_seconds": update,
        "waiting_seconds": streaming.seconds if streaming else 0.0,
        "tokens_per_second": tokens,
        "hours": ROWS * TOKENS / tokens / 3600 if tokens else None,
        "hidden_tokens": hidden,
        "plan_seconds": round(seconds, 1),
    }


def effective_batch(plan: Plan) -> int:
    """Return the samples of an update."""
    return int(plan.options["effective_batch"])


def plans(name: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a model; of a plan that is not possible, its error."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as tracers:
        (Path(folder) / "config.json").write_text(json.dumps(configuration(name)), encoding="utf-8")
        opened: dict[object, Tracer] = {}
        for machine, ram, fixed in machines(name):
            target = targets.with_limits(targets.find(machine), ram_bytes=parse_bytes(ram) if ram else None)
            loaded, requested = choose_for_plan("finetune", {"model": folder, **OPTIONS, **fixed})
            loaded = with_weight_type(loaded, target, requested)
            options = loaded.options.get("weights"), loaded.effective_batch
            started = time.monotonic()
            try:
                if options not in opened:
                    opened[options] = tracers.enter_context(Tracer(loaded))
                tracer = opened[options]
                plan = _plan(tracer, loaded, target, requested)
                seconds = time.monotonic() - started
                hidden = hidden_tokens(tracer, loaded, target, plan) if plan.settings.sharding != "zero3" else None
                yield row(name, target, plan, hidden, seconds)
            except ShoestringError as error:
                problem = "; ".join((error.message, *getattr(error, "problems", ())))
                yield {"model": name, "target": machine, "fixed": dict(fixed), "error": problem}


def _plan(tracer: Tracer, loaded: LoadedRecipe, target: Target, requested: Settings) -> Plan:
    return plan_with(tracer, loaded, target, requested, thorough=False, usd_per_hour=None, calibration=None)


def machines(name: str) -> list[tuple[str, str | None, Mapping[str, Any]]]:
    return [*MACHINES, *([SMALLER_UPDATES[name]] if name in SMALLER_UPDATES else ())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[*SIZES], choices=[*SIZES])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for name in arguments.only:
        for one in plans(name):
            rows.append(one)
            print(json.dumps(one), flush=True)
    if arguments.json:
        versions = {package: metadata.version(package) for package in ("torch", "transformers", "peft")}
        result = {"command": "python -m benchmarks.plan.streaming", "versions": versions, "rows": rows}
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
