"""Compare predicted memory with what PyTorch's allocator takes on a simulated GPU, for models with streamed blocks.

    python -m benchmarks.lab.memory.streaming [--rows FOLDER] [--json OUT] [--only WORD ...]

The models have the shapes of Qwen2.5 from 0.5 to 32 billion parameters; those of 14 and 32 billion have 8 layers of
theirs, so that machines with little memory can measure them. Host memory is what the operating system has given to the
streamed blocks, where they have at most 8 GiB. Answers in FOLDER are not computed again, and OUT is written after each
row; with `--only` it keeps its other rows.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.lab.memory import command
from benchmarks.lab.memory.architectures import ARCHITECTURES
from benchmarks.lab.memory.configurations import Configuration
from benchmarks.lab.memory.predictions import SIDES, collect, read

from shoestring.base.settings import Settings

RESULTS = Path(__file__).parents[2] / "results" / "lab-streaming.json"

MODELS = ("qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-3b", "qwen2.5-7b", "qwen2.5-14b-cut", "qwen2.5-32b-cut")

ALLOWED = {"allocated": 0.02, "reserved": 0.05, "host": 0.05}
"""The largest relative error of each quantity."""

_NF4 = {"quantization": "nf4", "unquantized": "own"}
_FEW = 4
"""Streamed blocks where nearly all are resident."""


def configurations() -> Iterator[Configuration]:
    """Yield LoRA on 4-bit weights, with half and all blocks streamed, and on 16-bit ones with half; of the smallest
    model also with few and none, and without checkpointing.
    """
    for model in MODELS:
        blocks = ARCHITECTURES[model]["num_hidden_layers"]
        for quantization, counts in ((_NF4, (blocks // 2, blocks)), ({}, (blocks // 2,))):
            if model == MODELS[0] and quantization:
                yield _of(model, quantization, blocks // 2, "no")
                counts = (0, _FEW, *counts)
            for count in counts:
                yield _of(model, quantization, count, "full")


def _of(model: str, quantization: Mapping[str, Any], count: int, checkpointing: str) -> Configuration:
    settings = Settings(micro_batch=1, precision="fp16", checkpointing=checkpointing, streamed_blocks=count)
    options = {"seq_len": 512, "lora_r": 16, "lora_targets": "linear", "weights": "fp16", **quantization}
    return Configuration(kind="4-bit" if quantization else "16-bit", model=model, options=options, settings=settings)


def row(item: Configuration, measured: Mapping[str, Any], estimate: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of a configuration from the answers of both sides; bytes, and None for what is not measured."""
    result: dict[str, Any] = {
        "id": item.id,
        "model": item.model,
        "weights": item.kind,
        "blocks": ARCHITECTURES[item.model]["num_hidden_layers"],
        "streamed": item.settings.streamed_blocks,
        "checkpointing": item.settings.checkpointing,
    }
    errors = {
        side: answer["error"] for side, answer in zip(SIDES, (measured, estimate), strict=True) if "error" in answer
    }
    if errors or not measured["fits"]:
        return {**result, "error": errors or "out of memory"}
    return {
        **result,
        "measured": {name: measured.get(name) for name in (*ALLOWED, "loading")},
        "predicted": {
            "allocated": estimate["allocated"]["value"],
            "reserved": estimate["reserved"]["value"],
            "host": estimate.get("host"),
            "loading": estimate["loading"],
        },
    }


def error(row: Mapping[str, Any], quantity: str) -> float | None:
    """Return the relative error of a row, positive for overestimates; None for what is not measured."""
    measured, predicted = row["measured"][quantity], row["predicted"][quantity]
    return None if measured is None else predicted / measured - 1


def misses(row: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a row: quantities with larger errors than allowed, or that it could not be measured."""
    if "error" in row:
        return [str(row["error"])]
    errors = {name: error(row, name) for name in ALLOWED}
    return [
        f"{name} {value:+.2%}" for name, value in errors.items() if value is not None and abs(value) > ALLOWED[name]
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    options = command.parser(__doc__, RESULTS).parse_args(arguments)
    order = [item.id for item in configurations()]
    folder = command.rows_folder(options)
    items = command.chosen(configurations(), options)
    by_id = {item.id: item for item in items}
    rows: dict[str, Any] = {}
    if options.only and options.json.exists():
        known_rows = json.loads(options.json.read_text(encoding="utf-8"))["rows"]
        rows = {known["id"]: known for known in known_rows if known["id"] in order}
    for score in collect(items, folder, SIDES):
        measured, estimate = (read(folder / f"{side}.jsonl")[score.id] for side in SIDES)
        rows[score.id] = row(by_id[score.id], measured, estimate)
        in_order = sorted(rows.values(), key=lambda known: order.index(known["id"]))
        options.json.write_text(json.dumps({"rows": in_order}, indent=1) + "\n", encoding="utf-8")
        print(score.describe(), *misses(rows[score.id]), file=sys.stderr, flush=True)
    missed = [f"{known['id']}: {', '.join(misses(known))}" for known in rows.values() if misses(known)]
    print("\n".join(f"MISSED: {line}" for line in missed) or f"all {len(rows)} rows are within their limits")
    return bool(missed)


if __name__ == "__main__":
    raise SystemExit(main())
