"""Plans of `finetune` for models that people train on Kaggle: a Markdown table, and a JSON file.

    python -m benchmarks.finetune.plans SHARED_DATA [--only MODEL ...] [--variants lora nf4 ...] [--json OUT]

SHARED_DATA has the models' configurations in `configs` and `architectures`. Each plan is made by a new process for
10,000 rows of 600 tokens, and its seconds are those of the whole process. `unsloth` plans the same training as a log of
Unsloth's own notebooks on a T4 (`t4/records.csv`), whose lengths are dynamic and unknown: seconds of an update stand
beside each other, not in a ratio. It needs no GPU and takes about six minutes.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
TARGETS = ("kaggle-t4", "kaggle-t4x2")
DATA = ("rows=10000", "row_tokens=600")
GOAL_SECONDS = 30
VARIANTS = {
    "default": (),
    "nf4": ("quantization=nf4",),
    "all weights": ("lora_r=none",),
    "unsloth": (
        "lora_r=16",
        "lora_targets=linear",
        "quantization=nf4",
        "optimizer_states=8bit",
        "effective_batch=8",
        "seq_len=2048",
    ),
}
"""Options by name; the last one is that of Unsloth's notebooks."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model's configuration in the shared data, and the row of Unsloth's log of the same architecture."""

    name: str
    file: str
    unsloth: str | None = None


MODELS = (
    Model(name="Llama-3.2-1B", file="architectures/llama-3.2-1b.json"),
    Model(name="Llama-3.2-3B", file="configs/meta-llama--Llama-3.2-3B-Instruct.json", unsloth="UNS-llama32-3b"),
    Model(name="Llama-3.1-8B", file="architectures/llama-3.1-8b.json", unsloth="UNS-llama3-8b-conv"),
    Model(name="Qwen3-0.6B", file="architectures/qwen3-0.6b.json"),
    Model(name="Qwen3-4B", file="configs/Qwen--Qwen3-4B.json"),
    Model(name="Qwen3-8B", file="architectures/qwen3-8b.json"),
    Model(name="Gemma-3-1B", file="architectures/gemma-3-1b.json"),
    Model(name="Mistral-7B", file="architectures/mistral-7b.json", unsloth="UNS-mistral03-7b"),
)


def plan(folder: Path, target: str, options: Sequence[str]) -> tuple[dict[str, Any], float]:
    """Return the plan as JSON, and the seconds of the process.

    Raises RuntimeError with the message of a command that fails.
    """
    settings = [part for option in (f"model={folder}", *DATA, *options) for part in ("--set", option)]
    started = time.monotonic()
    process = subprocess.run(
        [sys.executable, "-m", "shoestring", "plan", "finetune", "--json", "--on", target, *settings],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    seconds = time.monotonic() - started
    if process.returncode:
        raise RuntimeError(process.stderr.strip()[-3000:])
    return json.loads(process.stdout), seconds


def row(model: Model, variant: str, target: str, answer: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Return what the results keep of a plan."""
    settings, memory, planned_time = answer["settings"], answer["memory"], answer["time"]
    return {
        "model": model.name,
        "variant": variant,
        "target": target,
        "verdict": answer["verdict"],
        "binding": answer["binding"],
        "changes": answer["changes"],
        "settings": {
            name: settings[name]
            for name in (
                "micro_batch",
                "precision",
                "checkpointing",
                "packing",
                "offload",
                "gpus",
                "sharding",
                "streamed_blocks",
            )
        },
        "trainable_parameters": memory["parameters"]["trainable"],
        "parameters": memory["parameters"]["total"],
        "peak_bytes": memory["peak_bytes"],
        "high_bytes": memory["high_bytes"],
        "capacity_bytes": memory["capacity_bytes"],
        "update_seconds": planned_time["update_seconds"],
        "hours": planned_time["total_seconds"] / 3600,
        "hours_range": [planned_time[f"{end}_total_seconds"] / 3600 for end in ("low", "high")],
        "sessions": len(answer["sessions"]),
        "disk_bytes": answer["disk"]["peak_bytes"],
        "plan_seconds": seconds,
    }


def planned(model: Model, variant: str, target: str, folder: Path) -> dict[str, Any]:
    """Return the row of a plan; of one that failed, its `error`."""
    try:
        answer, seconds = plan(folder, target, VARIANTS[variant])
    except RuntimeError as error:
        return {"model": model.name, "variant": variant, "target": target, "error": str(error)}
    return row(model, variant, target, answer, seconds)


def published(records: Path) -> dict[str, dict[str, Any]]:
    """Return Unsloth's own measurements by the name of the row: peak bytes, and seconds of an update of `rows` rows."""
    measured = {}
    with records.open(newline="") as file:
        for record in csv.DictReader(file):
            if record["id"].startswith("UNS-") and record["speed_unit"].endswith("_steps"):
                updates = int(record["speed_unit"].removeprefix("s/").removesuffix("_steps"))
                measured[record["id"]] = {
                    "peak_bytes": int(record["peak_mem_bytes"]),
                    "update_seconds": float(record["speed_value"]) / updates,
                    "rows": int(record["micro_batch"]) * int(record["grad_accum"]),
                    "task": record["task"],
                    "lengths": record["seq_len_or_image"],
                    "source": record["source"],
                }
    return measured


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format a Markdown table."""
    lines = [
        "| model | options | on | verdict | microbatch, precision, checkpointing, packing, GPUs | memory at most "
        "| an update | all | sessions | disk | planned in |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in rows:
        if "error" in one:
            lines.append(f"| {one['model']} | {one['variant']} | {one['target']} | {one['error'].splitlines()[0]} |")
            continue
        settings, (low, high) = one["settings"], one["hours_range"]
        chosen = (settings[name] for name in ("micro_batch", "precision", "checkpointing", "packing", "gpus"))
        cells = [
            one["model"],
            one["variant"],
            one["target"],
            one["verdict"] if one["verdict"] == "fits" else f"{one['verdict']}: {one['binding']}",
            ", ".join(map(str, chosen)),
            f"{one['high_bytes'] / 1e9:.2f} GB",
            f"{one['update_seconds']:.3g} s",
            f"{one['hours']:.1f} h ({low:.1f} to {high:.1f})",
            str(one["sessions"]),
            f"{one['disk_bytes'] / 1e9:.1f} GB",
            f"{one['plan_seconds']:.1f} s" + ("" if one["plan_seconds"] <= GOAL_SECONDS else " (too slow)"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def beside_unsloth(rows: Sequence[Mapping[str, Any]], measured: Mapping[str, Mapping[str, Any]]) -> str:
    """Format the planned values beside those that Unsloth measured; empty without a common model."""
    lines = [
        "| model | planned peak | Unsloth's | planned update of 8 rows of 600 tokens | Unsloth's, of its lengths |"
    ]
    lines.append("|---|---|---|---|---|")
    names = {model.name: model.unsloth for model in MODELS}
    for one in rows:
        theirs = measured.get(names[one["model"]] or "")
        if one["variant"] == "unsloth" and "error" not in one and theirs:
            cells = [
                one["model"],
                f"{one['peak_bytes'] / 1e9:.2f} GB (at most {one['high_bytes'] / 1e9:.2f})",
                f"{theirs['peak_bytes'] / 1e9:.2f} GB",
                f"{one['update_seconds']:.2f} s",
                f"{theirs['update_seconds']:.2f} s ({theirs['task']})",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) if len(lines) > 2 else ""


def targets_of(model: Model, variant: str) -> tuple[str, ...]:
    """Return the targets to plan for: Unsloth's notebooks use one T4."""
    if variant == "unsloth":
        return TARGETS[:1] if model.unsloth else ()
    return TARGETS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, metavar="SHARED_DATA")
    parser.add_argument("--only", nargs="+", choices=[model.name for model in MODELS], metavar="MODEL")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--json", type=Path, default=RESULTS / "finetune_plans.json")
    arguments = parser.parse_args()
    models = [model for model in MODELS if not arguments.only or model.name in arguments.only]
    measured = published(arguments.data / "t4" / "records.csv")
    rows: list[dict[str, Any]] = []
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as temporary:
        for model in models:
            folder = Path(temporary) / model.name
            folder.mkdir()
            shutil.copyfile(arguments.data / model.file, folder / "config.json")
            for variant in arguments.variants:
                for target in targets_of(model, variant):
                    rows.append(planned(model, variant, target, folder))
                    print(table(rows[-1:]).splitlines()[-1], flush=True)
    content = {
        "environment": {
            "python": platform.python_version(),
            "processors": os.cpu_count(),
            "load before": load_before,
            "load after": os.getloadavg()[0],
            **{package: metadata.version(package) for package in ("torch", "transformers", "peft")},
        },
        "data": DATA,
        "options": VARIANTS,
        "unsloth": {model.name: measured[model.unsloth] for model in models if model.unsloth},
        "rows": rows,
    }
    arguments.json.write_text(json.dumps(content, indent=1) + "\n")
    print(table(rows), beside_unsloth(rows, measured), sep="\n\n")
    fast = [one for one in rows if one.get("plan_seconds", GOAL_SECONDS + 1) <= GOAL_SECONDS]
    print(f"\n{len(fast)} of {len(rows)} plans within {GOAL_SECONDS} s")


if __name__ == "__main__":
    main()
